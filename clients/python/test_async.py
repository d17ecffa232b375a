"""create_subprocess_exec and _shell: the same body against asyncio's and ours."""

import asyncio
import os
import signal
import threading
import unittest

from pinfold import DEVNULL, PIPE, STDOUT
from testservice import ServiceCase

BIG = 8 << 20


class Cases:
    def go(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, 300))

    def test_communicate(self):
        async def main():
            p = await self.exec("sh", "-c", "cat; echo e >&2; exit 3", stdin=PIPE, stdout=PIPE, stderr=PIPE)
            self.assertIsNone(p.returncode)
            self.assertEqual(await p.communicate(b"in"), (b"in", b"e\n"))
            self.assertEqual(p.returncode, 3)
            self.assertEqual(await p.wait(), 3)
        self.go(main())

    def test_big_both_ways(self):
        async def main():
            p = await self.exec("cat", stdin=PIPE, stdout=PIPE)
            out, err = await p.communicate(b"x" * BIG)
            self.assertEqual((len(out), err), (BIG, None))
        self.go(main())

    def test_input_that_nobody_reads(self):
        async def main():
            p = await self.exec("true", stdin=PIPE)
            self.assertEqual(await p.communicate(b"x" * BIG), (None, None))
            self.assertEqual(p.returncode, 0)
        self.go(main())

    def test_lines(self):
        async def main():
            p = await self.exec("cat", stdin=PIPE, stdout=PIPE)
            for i in range(20):
                p.stdin.write(b"%d\n" % i)
                await p.stdin.drain()
                self.assertEqual(await p.stdout.readline(), b"%d\n" % i)
            p.stdin.close()
            await p.stdin.wait_closed()
            self.assertEqual(await p.stdout.read(), b"")
            self.assertEqual(await p.wait(), 0)
        self.go(main())

    def test_limit(self):
        async def main():
            p = await self.exec("sh", "-c", "echo 0123456789", stdout=PIPE, limit=4)
            with self.assertRaises((asyncio.LimitOverrunError, ValueError)):
                await p.stdout.readline()
            await p.stdout.read()
            await p.wait()
        self.go(main())

    def test_shell_and_streams(self):
        async def main():
            p = await self.shell("echo 1; echo 2 >&2; exit $((6 * 7))", stdout=PIPE, stderr=STDOUT, stdin=DEVNULL)
            self.assertEqual(await p.communicate(), (b"1\n2\n", None))
            self.assertEqual(p.returncode, 42)
            self.assertIsNone(p.stdin)
        self.go(main())

    def test_signals(self):
        async def main():
            p = await self.exec("sleep", "600")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(p.wait(), 0.1)
            self.assertIsNone(p.returncode)
            p.terminate()
            self.assertEqual(await p.wait(), -signal.SIGTERM)
            for send in (p.terminate, p.kill, lambda: p.send_signal(signal.SIGINT)):
                with self.assertRaises(ProcessLookupError):
                    send()
            q = await self.exec("sleep", "600")
            q.kill()
            self.assertEqual(await q.wait(), -signal.SIGKILL)
        self.go(main())

    def test_return_code_comes_by_itself(self):
        async def main():
            p = await self.exec("sh", "-c", "exit 9")
            for _ in range(6000):
                if p.returncode is not None:
                    break
                await asyncio.sleep(0.01)
            self.assertEqual(p.returncode, 9)
        self.go(main())

    def test_several_waiters(self):
        async def main():
            p = await self.exec("cat", stdin=PIPE)
            waiters = [asyncio.ensure_future(p.wait()) for _ in range(5)]
            await asyncio.sleep(0.05)
            waiters[0].cancel()
            p.stdin.close()
            self.assertEqual(await asyncio.gather(*waiters[1:]), [0] * 4)
        self.go(main())

    def test_failures(self):
        async def main():
            with self.assertRaises(FileNotFoundError) as e:
                await self.exec("/no/such/program", stdin=PIPE, stdout=PIPE)
            self.assertEqual(e.exception.filename, "/no/such/program")
            with self.assertRaises(PermissionError):
                await self.exec("/etc/passwd")
            with self.assertRaises(ValueError):
                await self.exec("true", text=True)
        self.go(main())

    def test_fifty_at_once(self):
        async def one(i):
            p = await self.exec("sh", "-c", f"cat; exit {i}", stdin=PIPE, stdout=PIPE)
            out, _ = await p.communicate(b"%d" % i)
            return out, p.returncode

        async def main():
            self.assertEqual(await asyncio.gather(*(one(i) for i in range(50))), [(b"%d" % i, i) for i in range(50)])
        before = len(os.listdir("/proc/self/fd"))
        self.go(main())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 2)


class AsyncIO(Cases, unittest.TestCase):
    exec = staticmethod(asyncio.create_subprocess_exec)
    shell = staticmethod(asyncio.create_subprocess_shell)


class Pinfold(Cases, ServiceCase):
    def setUp(self):
        self.t = self.turn()
        self.exec, self.shell = self.t.create_subprocess_exec, self.t.create_subprocess_shell

    def test_a_grandchild_holds_stdout(self):
        """The exit is the process's; asyncio's own wait() waits for the pipe."""
        async def main():
            p = await self.exec("sh", "-c", "sleep 600 & echo $!; exit 4", stdout=PIPE)
            grandchild = int(await p.stdout.readline())
            self.assertEqual(await asyncio.wait_for(p.wait(), 60), 4)
            self.assertFalse(p.stdout.at_eof())
            self.assertEqual([m["pid"] for m in self.t.tree()], [grandchild])
            self.t.abandon(grace=0)
            self.assertEqual(await asyncio.wait_for(p.stdout.read(), 60), b"")
        self.go(main())

    def test_drain(self):
        async def main():
            p = await self.shell("sleep 600 & cat; exit 4", stdin=PIPE, stdout=PIPE)
            self.assertEqual(await p.communicate(b"in", drain=0.2), (b"in", None))
            self.assertEqual(p.returncode, 4)
            p = await self.shell("cat", stdin=PIPE, stdout=PIPE)
            self.assertEqual(await p.communicate(b"in", drain=60), (b"in", None))
        self.go(main())

    def test_no_threads(self):
        async def main():
            before = threading.active_count()
            ps = [await self.exec("cat", stdin=PIPE, stdout=PIPE) for _ in range(10)]
            self.assertEqual(threading.active_count(), before)
            for p in ps:
                await p.communicate(b"x")
        self.go(main())

    def test_a_turn_is_an_async_block(self):
        async def main():
            async with self.client.turn(leftovers="reap") as t:
                p = await t.create_subprocess_exec("sleep", "600")
            self.assertEqual(t.receipt.state, "finished")
            self.assertEqual(await p.wait(), -signal.SIGTERM)
            with self.assertRaises(KeyError):
                async with self.client.turn(grace=0) as t:
                    p = await t.create_subprocess_exec("sleep", "600")
                    raise KeyError
            self.assertEqual((t.receipt.state, await p.wait()), ("abandoned", -signal.SIGKILL))
        self.go(main())

    def test_a_cancelled_task_abandons(self):
        async def work(turns):
            async with self.client.turn(grace=0) as t:
                turns.append(t)
                await (await t.create_subprocess_exec("sleep", "600")).wait()

        async def main():
            turns = []
            task = asyncio.ensure_future(work(turns))
            while not turns or not turns[0].tree():
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(turns[0].receipt.state, "abandoned")
        self.go(main())

    def test_signal_tells_the_verdict(self):
        async def main():
            p = await self.exec("sleep", "600")
            self.assertEqual(await p.signal(signal.SIGKILL), "owned")
            await p.wait()
            self.assertEqual(await p.signal(signal.SIGKILL), "gone")
        self.go(main())

    def test_the_wait_outlasts_a_restart(self):
        async def main():
            p = await self.exec("sh", "-c", "cat; exit 5", stdin=PIPE, stdout=PIPE)
            await asyncio.sleep(0.1)
            self.service.kill()
            await asyncio.sleep(0.1)
            self.service.start()
            self.assertEqual(await p.communicate(b"x"), (b"x", None))
            self.assertEqual(p.returncode, 5)
        self.go(main())


if __name__ == "__main__":
    unittest.main()
