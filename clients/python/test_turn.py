"""Client, Turn, Process: against the real service."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
import unittest.mock
from pathlib import Path
from unittest import mock

import pinfold
from testservice import ServiceCase, exists, own_dir


class Turns(ServiceCase):
    def test_host(self):
        host = self.client.host()
        self.assertEqual(host["asked"], "cgroup")
        self.assertIn("version", host)

    def test_leaving_the_block_finishes(self):
        with self.client.turn(label="a label", session="s", labels={"k": "v"}, leftovers="reap") as t:
            self.assertEqual((t.info["label"], t.info["labels"], t.info["session"], t.state), ("a label", {"k": "v"}, "s", "open"))
            p = t.launch(["sleep", "600"])
            self.assertEqual([m["pid"] for m in t.tree()], [p.pid])
        self.assertEqual((t.receipt.state, t.receipt.reason, t.receipt.complete), ("finished", "finished", True))
        self.assertEqual(t.receipt.counts.ended, 1)
        self.assertEqual(p.wait(60).signal, "SIGTERM")
        self.assertEqual(self.client.receipt(t.id).raw, t.receipt.raw)
        self.assertIn(t.id, [r.turn for r in self.client.receipts()])

    def test_leftovers_are_kept(self):
        with self.client.turn(leftovers="keep") as t:
            p = t.launch(["sleep", "600"])
        self.addCleanup(lambda: t.abandon(grace=0, leftovers=True))
        self.assertEqual([x["pid"] for x in t.receipt.leftovers], [p.pid])
        self.assertTrue(exists(p.pid))
        again = t.abandon(grace=0, leftovers=True)
        self.assertTrue(again.complete)
        self.assertFalse(exists(p.pid))

    def test_an_exception_abandons(self):
        canary = subprocess.Popen(["sleep", "600"])
        self.addCleanup(lambda: (canary.kill(), canary.wait()))
        with self.assertRaises(ZeroDivisionError):
            with self.client.turn(on_error="superseded") as t:
                t.launch(["sh", "-c", "setsid sleep 600 & (sleep 600 &) ; exec sleep 600"])
                self.eventually("three sleep", lambda: len(t.tree()) == 3)
                pids = [m["pid"] for m in t.tree()]
                1 / 0
        self.assertEqual((t.receipt.state, t.receipt.reason, t.receipt.complete), ("abandoned", "superseded", True))
        self.assertEqual([p for p in pids if exists(p)], [])
        self.assertIsNone(canary.poll())

    def test_what_was_ended_stays(self):
        with self.client.turn() as t:
            first = t.abandon("idle", grace=0)
        self.assertEqual(t.receipt, first)
        with self.client.turn() as t:
            self.client.attach(t.id).abandon("operator", grace=0)
        self.assertEqual((t.receipt.state, t.receipt.reason), ("abandoned", "operator"))
        with self.assertRaises(pinfold.TurnOver) as e:
            t.launch(["true"])
        self.assertEqual((e.exception.code, e.exception.status), ("turn_over", 409))
        self.assertIn(t.id, e.exception.message)

    def test_begin_is_explicit_without_a_block(self):
        t = self.client.turn()
        with self.assertRaisesRegex(ValueError, "begin"):
            t.launch(["true"])
        t.begin()
        with self.assertRaisesRegex(ValueError, "already"):
            t.begin()
        self.assertTrue(t.finish().complete)

    def test_wait_for_a_turn(self):
        t = self.turn()
        with self.assertRaises(TimeoutError) as e:
            t.wait(0.05)
        self.assertIsInstance(e.exception, pinfold.Timeout)
        got = []
        waiter = threading.Thread(target=lambda: got.append(self.client.attach(t.id).wait()))
        waiter.start()
        t.finish()
        waiter.join(60)
        self.assertEqual(got, ["finished"])

    def test_lists(self):
        t = self.turn(session="listed")
        self.assertEqual([x["id"] for x in self.client.turns(session="listed")], [t.id])
        t.finish()
        self.assertEqual(self.client.turns(session="listed"), [])
        self.assertEqual([x["state"] for x in self.client.turns(session="listed", all=True)], ["finished"])

    def test_grace(self):
        with self.client.turn(grace=30) as t:
            p = t.launch(["sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"], stdout="spool")
            self.eventually("its trap is there", lambda: p.output().read().total > 0)
            t.abandon()
        self.assertEqual(p.wait(60).returncode, 9)
        self.assertEqual(t.receipt.raw["grace_ms"], 30000)

    def test_module_run(self):
        done = pinfold.run("sleep 600 >/dev/null & echo $!", client=self.client, shell=True, stdout=pinfold.PIPE, text=True, label="one")
        self.assertEqual(done.returncode, 0)
        self.assertFalse(exists(int(done.stdout)))


class Processes(ServiceCase):
    def test_status(self):
        t = self.turn()
        p = t.launch(["sh", "-c", "exit 7"], labels={"a": "b"})
        self.assertEqual((p.id, p.wait(60)), ("p1", pinfold.Status("exited", 7)))
        self.assertEqual((p.status.returncode, p.info["labels"]), (7, {"a": "b"}))
        q = t.launch(["sleep", "600"])
        self.assertIsNone(q.refresh().returncode)
        with self.assertRaises(pinfold.Timeout):
            q.wait(0)
        self.assertEqual(q.signal("TERM"), "owned")
        self.assertEqual((q.wait(60).signal, q.status.signal_number, q.status.returncode), ("SIGTERM", 15, -15))
        self.assertEqual(q.signal(signal.SIGTERM), "gone")
        self.assertEqual([(x.id, x.status.state) for x in t.processes()], [("p1", "exited"), ("p2", "signaled")])
        self.assertEqual(t.process("p1").status.code, 7)

    def test_lost_is_no_number(self):
        lost = pinfold.Status.of({"state": "lost", "why": "the keeper was killed", "later": "field"})
        with self.assertRaisesRegex(pinfold.ProcessLost, "keeper was killed"):
            lost.returncode

    def test_the_environment_is_the_services_base(self):
        t = self.turn()
        with tempfile.TemporaryFile() as out:
            t.launch(["/usr/bin/env"], stdout=out).wait()
            out.seek(0)
            names = {line.split(b"=")[0] for line in out.read().splitlines()}
        self.assertEqual(names, {b"PATH", b"HOME", b"USER", b"LOGNAME", b"SHELL", b"LANG"})

    def test_streams(self):
        t = self.turn()
        r, w = os.pipe()
        t.launch(["sh", "-c", "echo out; echo err >&2"], stdout=w, stderr=w, stdin=pinfold.DEVNULL).wait()
        os.close(w)
        with open(r, "rb") as f:
            self.assertEqual(f.read(), b"out\nerr\n")
        with self.assertRaisesRegex(ValueError, "Popen"):
            t.launch(["true"], stdout=pinfold.PIPE)
        with self.assertRaises(pinfold.BadRequest):
            t.launch(["true"], stdout="no such mode")

    def test_not_found(self):
        with self.assertRaises(pinfold.NotFound):
            self.client.attach("nosuchturn")
        with self.assertRaises(pinfold.NotFound):
            self.turn().process("p9")
        for bad in ("", "../x", "a/b", "ü", "x" * 65, "a\r\nb"):
            with self.subTest(bad), self.assertRaises(pinfold.BadRequest):
                self.client.attach(bad)

    def test_epoch(self):
        t = self.turn()
        with self.assertRaises(pinfold.StaleEpoch):
            t.launch(["true"], epoch=t.epoch + 1)
        self.assertEqual(t.launch(["true"], epoch=t.epoch).wait(60).code, 0)

    def test_a_grade_that_cannot_be_had(self):
        with self.assertRaises(pinfold.GradeUnavailable) as e:
            self.client.begin(min_grade="scope")
        self.assertTrue(e.exception.remedy)
        self.assertIn(e.exception.remedy, str(e.exception))


class Users(ServiceCase):
    def as_nobody(self, work):
        """What work returns in a process of uid and gid 65534."""
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(r)
                os.chdir("/")
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.write(w, json.dumps(work(pinfold.Client(self.service.socket))).encode())
            except BaseException:
                os.write(w, json.dumps(traceback.format_exc()).encode())
            finally:
                os._exit(0)
        os.close(w)
        with open(r, "rb") as f:
            said = json.loads(f.read())
        os.waitpid(pid, 0)
        return said

    def test_an_ordinary_user(self):
        mine = self.turn()

        def work(client):
            with client.turn() as t:
                ids = t.check_output(["sh", "-c", "id -u; id -g; id -G"], text=True).split()
                refused = []
                for ask in (lambda: t.Popen(["id"], user="root"), lambda: client.attach(mine.id)):
                    try:
                        ask()
                    except pinfold.PinfoldError as e:
                        refused.append(e.code)
            return ids, refused, t.receipt.state, [x["id"] == t.id for x in client.turns(all=True)]

        self.assertEqual(self.as_nobody(work), [["65534"] * 3, ["forbidden", "not_found"], "finished", [True]])


class InPlace(ServiceCase):
    """What an SDK starts by argv, and then speaks to over its own pipes."""

    def test_an_sdk_starts_a_server(self):
        t = self.turn()
        server = "import sys, subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\nfor l in sys.stdin: print(l.upper(), end='', flush=True)"
        argv = [self.service.bin / "pinfold", "run", "--in-place", "--turn", t.id, "--", sys.executable, "-c", server]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PINFOLD_SOCKET=self.service.socket)) as p:
            p.stdin.write("hello\n")
            p.stdin.flush()
            self.assertEqual(p.stdout.readline(), "HELLO\n")
            joined = t.processes()[0]
            self.assertEqual((joined.pid, joined.info["in_place"]), (p.pid, True))
            self.assertEqual(sorted(m["comm"] for m in t.tree())[-1], "sleep")
            self.assertTrue(t.abandon(grace=0).complete)
            self.assertEqual(p.wait(60), -signal.SIGKILL)  # our own child still


class Adopted(ServiceCase):
    """What ran before there was a turn."""

    def test_adopt(self):
        t = self.turn()
        argv = ["sh", "-c", "sleep 600 & echo; wait"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as p, subprocess.Popen(["sleep", "600"]) as canary:
            p.stdout.readline()
            one = t.adopt(p.pid, tree=True, labels={"k": "v"})
            self.assertEqual((one.pid, one.info["adopted"]["moved"], one.info["labels"], one.status.running), (p.pid, 2, {"k": "v"}, True))
            with self.assertRaises(pinfold.AdoptRefused) as held:
                t.adopt(p.pid)
            self.assertEqual(held.exception.details["reason"], "held")
            with self.assertRaises(pinfold.AdoptRefused) as us:
                t.adopt(os.getpid())
            self.assertIn(us.exception.details["reason"], ("ancestor", "pinfold"))  # we may have started the service
            self.assertIn("adopted", [e.kind for e in t.events()])
            r = t.abandon(grace=0)
            self.assertTrue(r.complete and r.processes[0]["adopted"] and r.processes[0]["evidence"])
            self.assertEqual(p.wait(60), -signal.SIGKILL)  # our own child still
            self.assertIsNone(canary.poll())
            canary.kill()

    def test_by_its_start_tick(self):
        t = self.turn()
        with subprocess.Popen(["sleep", "600"]) as p, unittest.mock.patch.object(os, "pidfd_open", create=True):
            del os.pidfd_open
            self.assertEqual(t.adopt(p.pid).pid, p.pid)
            self.assertTrue(t.abandon(grace=0).complete)
            self.assertEqual(p.wait(60), -signal.SIGKILL)


class Restarts(ServiceCase):
    """The service is killed; turns, waits and exit codes are not."""

    def setUp(self):
        self.dir = own_dir(self)

    def test_a_wait_outlasts_a_restart(self):
        t = self.turn()
        go = self.dir / "go"
        p = t.Popen(["sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done; cat; exit 5"],
                    stdin=pinfold.PIPE, stdout=pinfold.PIPE)
        got = []
        waiter = threading.Thread(target=lambda: got.append(p.wait()))
        waiter.start()
        time.sleep(0.2)
        self.service.kill()
        self.service.start()
        self.assertEqual(self.client.attach(t.id).state, "open")
        go.touch()
        self.assertEqual(p.communicate(b"over the restart"), (b"over the restart", None))
        waiter.join(60)
        self.assertEqual(got, [5])

    def test_it_may_end_while_the_service_is_away(self):
        t = self.turn()
        go = self.dir / "go2"
        p = t.Popen(["sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done; exit 6"])
        self.service.kill()
        go.touch()
        self.eventually("it has ended", lambda: not exists(p.pid))
        self.service.start()
        self.assertEqual(p.wait(60), 6)
        self.assertTrue(t.finish().complete)


class Sockets(unittest.TestCase):
    """Without a service."""

    def setUp(self):
        self.dir = own_dir(self)

    def test_the_default_socket(self):
        own = self.dir / "pinfold" / "pinfold.sock"
        env = {"XDG_RUNTIME_DIR": str(self.dir)}
        with mock.patch.dict(os.environ, env, clear=True):
            self.assertEqual(pinfold.default_socket(), "/run/pinfold/pinfold.sock")
            own.parent.mkdir()
            own.touch()
            self.assertEqual(pinfold.default_socket(), str(own))
            os.environ["PINFOLD_SOCKET"] = "/named"
            self.assertEqual(pinfold.default_socket(), "/named")
            self.assertEqual(pinfold.Client().socket, "/named")
            self.assertEqual(pinfold.Client("/given").socket, "/given")

    def test_nobody_there(self):
        c = pinfold.Client(str(self.dir / "none"), patience=0.1)
        with self.assertRaises(pinfold.Unavailable) as e:
            c.host()
        self.assertIsInstance(e.exception, ConnectionError)
        self.assertIn(str(self.dir / "none"), str(e.exception))
        self.assertTrue(e.exception.remedy)
        with self.assertRaises(pinfold.Unavailable):
            c.begin()

    def test_a_service_that_does_not_answer(self):
        path = str(self.dir / "mute")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen(8)
            with self.assertRaisesRegex(pinfold.Unavailable, "not answered in 0.2"):
                pinfold.Client(path, timeout=0.2, patience=0).begin()

    def test_patience_begins_anew(self):
        """A wait that was held, and lost, is asked again, however often."""
        path = str(self.dir / "restarts")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen(8)

            def serve():
                for _ in range(2):
                    c, _ = s.accept()
                    c.recv(1 << 16)
                    time.sleep(1.2)
                    c.close()
                c, _ = s.accept()
                c.recv(1 << 16)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                c.close()

            threading.Thread(target=serve, daemon=True).start()
            self.assertEqual(pinfold.Client(path, patience=0.5).host(), {})

    def test_a_service_that_dies_after_the_question(self):
        """Nobody knows whether the job was started, so it is asked once; a turn's
        begin has a key, so it is asked again."""
        path, asked = str(self.dir / "dies"), []
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen(8)

            def serve():
                while True:
                    c, _ = s.accept()
                    asked.append(c.recv(1 << 16))
                    c.close()
                    if asked[-1].startswith(b"GET /v1/stop"):
                        return

            t = threading.Thread(target=serve, daemon=True)
            t.start()
            client = pinfold.Client(path, patience=0.2)
            with self.assertRaisesRegex(pinfold.Unavailable, "may have"):
                client.start_job(["true"])
            self.assertEqual(len(asked), 1)
            with self.assertRaises(pinfold.Unavailable):
                pinfold.Client(path, patience=2).begin()
            self.assertGreater(len(asked), 2)
            with self.assertRaises(pinfold.Unavailable):
                client._call("GET", "/v1/stop")
            t.join()

    def test_an_answer_that_is_none(self):
        path = str(self.dir / "odd")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen(8)

            def serve():
                c, _ = s.accept()
                c.recv(1 << 16)
                c.sendall(b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\n<ht>")
                c.close()

            t = threading.Thread(target=serve)
            t.start()
            with self.assertRaisesRegex(pinfold.PinfoldError, "502"):
                pinfold.Client(path).begin()
            t.join()

    def test_errors(self):
        e = pinfold._error(422, b'{"code":"exec_failed","message":"m","remedy":"r","details":{"errno":"13","path":"/x"}}')
        self.assertIsInstance(e, pinfold.ExecFailed)
        self.assertIsInstance(e, PermissionError)
        self.assertEqual((e.errno, e.filename, str(e), e.remedy), (errno.EACCES, "/x", "m (r)", "r"))
        self.assertEqual(type(e).__module__, "pinfold")
        e = pinfold._error(418, b'{"code":"from_later","message":"m"}')
        self.assertEqual((type(e), e.code, e.status), (pinfold.PinfoldError, "from_later", 418))
        self.assertEqual({c.code for c in pinfold._ERRORS.values()}, set(pinfold._ERRORS))

    def test_milliseconds(self):
        self.assertEqual([pinfold._ms(x) for x in (None, 0, 0.0001, 0.05, 1, 1.0001, -1)], [None, 0, 1, 50, 1000, 1001, 0])

    def test_it_is_for_python_3_9(self):
        import ast
        source = Path(pinfold.__file__).read_text()
        ast.parse(source, feature_version=(3, 9))
        allowed = set(sys.stdlib_module_names) if hasattr(sys, "stdlib_module_names") else None
        for node in ast.walk(ast.parse(source)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) else []
            for n in names:
                self.assertTrue(allowed is None or n.split(".")[0] in allowed, n)

    def test_everything_public_is_typed_and_documented(self):
        import inspect
        for name in pinfold.__all__:
            obj = getattr(pinfold, name)
            if not inspect.isclass(obj) or obj.__module__ != "pinfold":
                continue
            self.assertTrue(obj.__doc__, name)
            for n, f in vars(obj).items():
                if n.startswith("_") or not inspect.isfunction(f):
                    continue
                hints = f.__annotations__
                self.assertIn("return", hints, f"{name}.{n}")
                missing = [a for a in inspect.signature(f).parameters if a not in hints and a not in ("self", "cls")]
                self.assertEqual(missing, [], f"{name}.{n}")


if __name__ == "__main__":
    unittest.main()
