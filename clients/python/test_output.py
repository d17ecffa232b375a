"""Output that the service keeps, input that it carries, and terminals."""

import os
import signal
import threading
import time
import unittest

import pinfold
from pinfold import Gap
from testservice import ServiceCase, own_dir


def joined(pieces) -> bytes:
    return b"".join(p for p in pieces if isinstance(p, bytes))


class Spools(ServiceCase):
    def setUp(self):
        self.dir = own_dir(self)
        self.t = self.turn()

    def test_read(self):
        p = self.t.launch(["sh", "-c", "printf 0123456789; echo err >&2"], stdout="spool", stderr="spool")
        p.wait(60)
        out = p.output()
        self.eventually("it has all", lambda: out.read(0).total == 10)
        self.assertEqual(out.read(0), pinfold.Slice(b"0123456789", 0, 10, [], 10, 0))
        self.assertEqual(out.read(), pinfold.Slice(b"", 10, 10, [], 10, 0))
        self.assertEqual(out.read(3, 4).data, b"3456")
        self.assertEqual((out.offset, out.read(limit=1).data), (7, b"7"))
        self.assertEqual(out.tail(3)[:3], (b"789", 7, 10))
        self.assertEqual(joined(p.output("stderr")), b"err\n")
        self.assertEqual(p.output("stderr").read().data, b"err\n")

    def test_follow(self):
        go = self.dir / "go"
        p = self.t.launch(["sh", "-c", f"echo one; until [ -e {go} ]; do sleep 0.02; done; echo two; exit 3"], stdout="spool")
        reader = p.output()
        got = iter(reader)
        self.assertEqual(next(got), b"one\n")
        self.assertIsNone(reader.status)
        go.touch()
        self.assertEqual(joined(got), b"two\n")
        self.assertEqual(p.wait(60).code, 3)
        self.assertEqual(joined(p.output(offset=2)), b"e\ntwo\n")
        again = p.output()
        self.assertEqual(joined(again.follow(4)), b"two\n")
        self.assertEqual((again.offset, again.status.code), (8, 3))

    def test_follow_ends_when_nobody_keeps_the_stream(self):
        p = self.t.launch(["sh", "-c", "echo one; sleep 1000 & exit 3"], stdout="spool")
        self.assertEqual(p.wait(60).code, 3)
        self.eventually("it is kept", lambda: p.output().read(0).total == 4)
        os.kill(self.t.refresh()["keeper_pid"], signal.SIGKILL)
        got = []
        reader = threading.Thread(target=lambda: got.extend(p.output()), daemon=True)
        reader.start()
        reader.join(60)
        self.assertFalse(reader.is_alive(), "it asks for ever")
        self.assertEqual(joined(got), b"one\n")

    def test_several_readers(self):
        p = self.t.launch(["sh", "-c", "for i in $(seq 200); do echo line $i; done"], stdout="spool")
        want = b"".join(b"line %d\n" % i for i in range(1, 201))
        got = []
        threads = [threading.Thread(target=lambda: got.append(joined(p.output()))) for _ in range(4)]
        stuck = iter(p.output())
        next(stuck)  # and no more
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertEqual(got, [want] * 4)
        stuck.close()

    def test_gaps(self):
        p = self.t.launch(["sh", "-c", "seq 100000"], stdout={"mode": "spool", "max_bytes": 65536})
        p.wait(60)
        want = b"".join(b"%d\n" % i for i in range(1, 100001))
        pieces = list(p.output())
        at, gaps = 0, []
        for piece in pieces:
            if isinstance(piece, Gap):
                self.assertEqual(piece.start, at)
                at = piece.end
                gaps.append(piece)
            else:
                self.assertEqual(piece, want[at:at + len(piece)])
                at += len(piece)
        self.assertEqual(at, len(want))
        self.assertEqual([g.reason for g in gaps], ["overwritten"])
        s = p.output().read()
        self.assertEqual((s.gaps, s.total, s.next_offset), (gaps, len(want), len(want)))
        self.assertEqual(s.dropped, gaps[0].end - gaps[0].start)
        self.assertTrue(want.startswith(s.data[:gaps[0].start]) and want.endswith(s.data[gaps[0].start:]))
        self.assertEqual(p.output().read(gaps[0].start + 5, 10).gaps, [Gap(gaps[0].start + 5, gaps[0].end, "overwritten")])

    def test_binary_and_big(self):
        (self.dir / "data").write_bytes(os.urandom(3 << 20))
        p = self.t.launch(["cat", self.dir / "data"], stdout="spool")
        self.assertTrue(joined(p.output()) == (self.dir / "data").read_bytes())

    def test_merged(self):
        p = self.t.launch(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], stdout="spool", stderr="stdout")
        self.assertEqual(joined(p.output()), b"1\n2\n3\n")

    def test_drain(self):
        p = self.t.launch(["sh", "-c", "sleep 600 & echo here"], stdout="spool")
        self.assertEqual(joined(p.output().follow(drain=0.2)), b"here\n")
        self.assertTrue(p.output().read().data)

    def test_popen_with_a_spool(self):
        with self.t.Popen(["sh", "-c", "cat; exit 2"], stdin=pinfold.PIPE, stdout="spool") as p:
            self.assertEqual(p.communicate(b"in"), (None, None))
        self.assertEqual(joined(p.process.output()), b"in")

    def test_what_is_not_kept(self):
        p = self.t.launch(["true"])
        with self.assertRaises(pinfold.PinfoldError):
            p.output().read()
        with self.assertRaises(pinfold.PinfoldError):
            next(iter(p.output("stdlog")))

    def test_acknowledged(self):
        p = self.t.launch(["echo", "x"], stdout="spool")
        self.assertEqual(joined(p.output()), b"x\n")
        p.wait(60)
        p.ack()
        self.assertTrue(p.info["acknowledged"])

    def test_output_max(self):
        t = self.turn(output_max=10000, on_output_max="stop", grace=0)
        p = t.launch(["yes"], stdout="spool")
        self.assertEqual(t.wait(60), "abandoned")
        self.assertEqual((p.wait(60).signal, t.info["reason"]), ("SIGKILL", "limit"))


class Inputs(ServiceCase):
    def setUp(self):
        self.t = self.turn()

    def test_data(self):
        p = self.t.launch(["cat"], stdin=b"with the\0request\xff", stdout="spool")
        self.assertEqual(joined(p.output()), b"with the\0request\xff")
        self.assertEqual(joined(self.t.launch(["cat"], stdin=b"", stdout="spool").output()), b"")

    def test_pipe(self):
        p = self.t.launch(["cat"], stdin="pipe", stdout="spool")
        p.write(b"one\n")
        got = iter(p.output())
        self.assertEqual(next(got), b"one\n")
        p.write(b"x" * (1 << 20), close=True)
        self.assertEqual(len(joined(got)), 1 << 20)
        self.assertEqual(p.wait(60).code, 0)
        with self.assertRaises(pinfold.PinfoldError):
            p.write(b"late")

    def test_close(self):
        p = self.t.launch(["sh", "-c", "cat; echo end"], stdin="pipe", stdout="spool")
        p.close_stdin()
        self.assertEqual(joined(p.output()), b"end\n")

    def test_nobody_to_write_to(self):
        """A refusal comes before all is sent, and is told."""
        p = self.t.launch(["sleep", "600"])
        for data in (b"", b"x", b"x" * (8 << 20)):
            with self.assertRaises(pinfold.PinfoldError) as e:
                p.write(data)
            self.assertNotEqual(e.exception.status, 0, e.exception)

    def test_who_does_not_read_holds_the_writer(self):
        p = self.t.launch(["sleep", "600"], stdin="pipe")
        done = threading.Event()

        def write():
            try:
                p.write(b"x" * (8 << 20))
            except pinfold.PinfoldError:
                pass
            done.set()

        w = threading.Thread(target=write)
        w.start()
        self.assertFalse(done.wait(0.5))
        p.signal(signal.SIGKILL)
        w.join(60)
        self.assertTrue(done.is_set())


class Launches(ServiceCase):
    def setUp(self):
        self.t = self.turn()

    def said(self, argv, **options) -> str:
        return joined(self.t.launch(argv, stdout="spool", stderr="stdout", **options).output()).decode()

    def test_options(self):
        self.assertEqual(self.said(["sh", "-c", "umask; nice; ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj"], umask=0o027,
                                   nice=5, rlimits={"nofile": (100, 200)}, oom_score_adj=300).split(),
                         ["0027", "5", "100", "200", "300"])
        self.assertIn("NoNewPrivs:\t1", self.said(["cat", "/proc/self/status"], no_new_privs=True))

    def test_env_add(self):
        words = self.said(["/usr/bin/env"], env_add={"EXTRA": "1", "LANG": None}).split()
        self.assertIn("EXTRA=1", words)
        self.assertFalse([w for w in words if w.startswith("LANG=")])
        self.assertEqual(self.said(["/usr/bin/env"], env={"A": "1", "B": "2"}, env_add={"B": None, "C": "3"}).split(),
                         ["A=1", "C=3"])

    def test_nearest_directory(self):
        p = self.t.launch(["pwd"], cwd="/tmp/no/such/dir", cwd_policy="nearest", stdout="spool")
        self.assertEqual(joined(p.output()), b"/tmp\n")
        self.assertEqual(p.info["cwd"], "/tmp")

    def test_pass_fds_by_number(self):
        r, w = os.pipe()
        try:
            p = self.t.launch(["sh", "-c", "echo seven >&7"], pass_fds={7: w})
            self.assertEqual(p.wait(60).code, 0)
            self.assertEqual(os.read(r, 100), b"seven\n")
        finally:
            os.close(r)
            os.close(w)

    def test_deadline(self):
        p = self.t.launch(["sleep", "600"], deadline=0.2)
        s = p.wait(120)
        self.assertEqual((s.signal, s.ended_by), ("SIGTERM", "deadline"))
        q = self.t.Popen(["sleep", "600"], deadline=0.2)
        self.assertEqual(q.wait(120), -signal.SIGTERM)

    def test_idempotency(self):
        first = self.t.launch(["true"], idempotency_key="k")
        self.assertEqual(self.t.launch(["true"], idempotency_key="k").id, first.id)
        with self.assertRaises(pinfold.IdempotencyConflict):
            self.t.launch(["false"], idempotency_key="k")
        self.assertNotEqual(self.t.launch(["true"]).id, first.id)
        self.assertEqual(len(self.t.processes()), 2)


class Terminals(ServiceCase):
    def setUp(self):
        self.t = self.turn()

    def shell(self, argv=("sh",), **options):
        return self.t.launch(list(argv), stdin="pty", stdout="pty", stderr="pty",
                             **{"pty": (30, 100), "env_add": {"PS1": "$ ", "TERM": "dumb"}, **options})

    def until(self, got, what: bytes) -> bytes:
        seen = b""
        while what not in seen:
            seen += next(got)
        return seen

    def test_a_shell(self):
        p = self.shell()
        got = iter(p.output())
        p.write(b"stty size; tty; echo $((6 * 7))\n")
        seen = self.until(got, b"42\r\n")
        self.assertIn(b"30 100\r\n", seen)
        self.assertIn(b"/dev/pts/", seen)
        self.assertEqual(p.resize(5, 20), (5, 20))
        p.write(b"stty size\n")
        self.until(got, b"5 20\r\n")
        p.write(b"exit 6\n")
        self.assertEqual(p.wait(60).code, 6)
        list(got)  # it ends

    def test_control_c(self):
        p = self.shell()
        got = iter(p.output())
        p.write(b"echo sleeping; sleep 600\n")
        self.until(got, b"sleeping\r\n")  # a prompt may come late
        self.eventually("sleep runs", lambda: "sleep" in [m["comm"] for m in self.t.tree()])
        p.write(b"\x03")
        p.write(b"echo code $?\n")
        self.until(got, b"code 130\r\n")
        p.close_stdin()
        self.assertTrue(p.wait(60).state == "exited")

    def test_fast_commands_lose_nothing(self):
        for _ in range(20):
            self.assertEqual(joined(self.shell(["echo", "x"]).output()), b"x\r\n")

    def test_a_late_reader(self):
        p = self.shell(["sh", "-c", "echo early; exec cat"])
        self.eventually("early", lambda: p.output().read().data == b"early\r\n")
        self.assertEqual(p.output().tail(100).data, b"early\r\n")
        p.signal("KILL")


class Restarts(ServiceCase):
    """No byte is lost to a restart, and no exit code."""

    def test_follow_and_terminal(self):
        t = self.turn()
        writer = t.launch(["sh", "-c", "for i in $(seq 300); do echo $i; sleep 0.01; done; exit 4"], stdout="spool")
        shell = t.launch(["sh"], stdin="pty", stdout="pty", stderr="pty", env_add={"PS1": ""})
        got = []
        reader = threading.Thread(target=lambda: got.append(joined(writer.output())))
        reader.start()
        self.eventually("it writes", lambda: writer.output().read().total > 20)
        self.service.kill()
        time.sleep(0.2)
        self.service.start()

        def types():
            try:
                shell.write(b"echo $((40 + 2)); exit 5\n")
            except pinfold.Unavailable:  # its keeper has not answered the new service yet: nothing was written
                return False
            return True
        self.eventually("the terminal is written to", types)
        self.assertIn(b"42\r\n", joined(shell.output()))
        reader.join(120)
        self.assertEqual(got, [b"".join(b"%d\n" % i for i in range(1, 301))])
        self.assertEqual((writer.wait(60).code, shell.wait(60).code), (4, 5))


if __name__ == "__main__":
    unittest.main()
