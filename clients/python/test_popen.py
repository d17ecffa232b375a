"""The same tests against subprocess.Popen and against ours: what CPython does
is right."""

import errno
import io
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
import unittest
import warnings
from pathlib import Path

import pinfold
from pinfold import DEVNULL, PIPE, STDOUT
from testservice import ServiceCase, exists, own_dir

BIG = 8 << 20


# Which descriptors are open, without opening one.
FDS = """
import os
def fds():
    found = []
    for n in range(256):
        try:
            os.fstat(n)
            found.append(n)
        except OSError:
            pass
    return found
"""


def py(code: str) -> list:
    return [sys.executable, "-c", code]


class Cases:
    """One body. `Popen` is subprocess's or a turn's, `run` and so on as well."""

    def setUp(self) -> None:
        super().setUp()
        self.dir = own_dir(self)

    # -- ends

    def test_return_codes(self):
        for code in (0, 1, 2, 127, 128, 137, 255):
            self.assertEqual(self.Popen(["sh", "-c", f"exit {code}"]).wait(), code)

    def test_signals_are_negative(self):
        for sig in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGRTMIN + 3):
            with self.subTest(sig=sig):
                p = self.Popen(py("import time; print(flush=True); time.sleep(600)"), stdout=PIPE)
                p.stdout.read(1)
                p.send_signal(sig)
                self.assertEqual(p.wait(60), -sig)
                self.assertEqual(p.returncode, -sig)
                p.stdout.close()

    def test_poll(self):
        p = self.Popen(["cat"], stdin=PIPE)
        self.assertIsNone(p.poll())
        self.assertIsNone(p.returncode)
        p.stdin.close()
        self.assertEqual(p.wait(), 0)
        self.assertEqual(p.poll(), 0)

    def test_signal_after_the_end_is_nothing(self):
        p = self.Popen(["true"])
        p.wait()
        p.send_signal(signal.SIGKILL)
        p.terminate()
        p.kill()
        self.assertEqual(p.returncode, 0)

    def test_wait_times_out(self):
        p = self.Popen(["sleep", "600"])
        for timeout in (0, 0.05):
            with self.assertRaises(subprocess.TimeoutExpired) as e:
                p.wait(timeout)
            self.assertEqual((e.exception.cmd, e.exception.timeout), (["sleep", "600"], timeout))
        with self.assertRaises(subprocess.TimeoutExpired):
            p.wait(timeout=0.01)
        p.terminate()
        self.assertEqual(p.wait(60), -signal.SIGTERM)
        self.assertEqual(p.wait(0), -signal.SIGTERM)

    def test_waits_from_threads(self):
        p = self.Popen(["cat"], stdin=PIPE)
        got = []
        threads = [threading.Thread(target=lambda: got.append(p.wait())) for _ in range(8)]
        for t in threads:
            t.start()
        p.stdin.close()
        for t in threads:
            t.join(60)
        self.assertEqual(got, [0] * 8)

    def test_pid_is_real(self):
        p = self.Popen(["sh", "-c", "echo $$; cat"], stdin=PIPE, stdout=PIPE)
        self.assertEqual(int(p.stdout.readline()), p.pid)
        self.assertTrue(exists(p.pid))
        p.communicate()

    # -- pipes

    def test_pipes(self):
        with self.Popen(["sh", "-c", "cat; echo err >&2"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as p:
            self.assertEqual(p.communicate(b"in\0\xff"), (b"in\0\xff", b"err\n"))
        self.assertEqual(p.returncode, 0)

    def test_unpiped_are_none(self):
        with self.Popen(["true"], stdout=PIPE) as p:
            self.assertIsNone(p.stdin)
            self.assertIsNone(p.stderr)
            self.assertEqual(p.communicate(), (b"", None))

    def test_big_both_ways(self):
        data = os.urandom(1 << 16) * (BIG >> 16)
        with self.Popen(py("import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer);"
                           "sys.stderr.buffer.write(b'e' * 1000000)"), stdin=PIPE, stdout=PIPE, stderr=PIPE) as p:
            out, err = p.communicate(data)
        self.assertEqual(len(out), len(data))
        self.assertTrue(out == data)
        self.assertEqual(len(err), 1000000)

    def test_input_that_nobody_reads(self):
        with self.Popen(["true"], stdin=PIPE) as p:
            self.assertEqual(p.communicate(b"x" * BIG), (None, None))
        self.assertEqual(p.returncode, 0)

    def test_reading_and_writing_by_hand(self):
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE) as p:
            for i in range(100):
                p.stdin.write(b"%d\n" % i)
                p.stdin.flush()
                self.assertEqual(p.stdout.readline(), b"%d\n" % i)
            p.stdin.close()
            self.assertEqual(p.stdout.read(), b"")

    def test_iterating(self):
        with self.Popen(["seq", "1000"], stdout=PIPE, text=True) as p:
            self.assertEqual([int(line) for line in p.stdout], list(range(1, 1001)))

    def test_closing_stdin_is_its_end(self):
        with self.Popen(["sh", "-c", "cat >/dev/null; echo done"], stdin=PIPE, stdout=PIPE) as p:
            self.assertFalse(select.select([p.stdout], [], [], 0.2)[0])
            p.stdin.close()
            self.assertEqual(p.stdout.read(), b"done\n")

    def test_closing_stdout_is_sigpipe(self):
        with self.Popen(["yes"], stdout=PIPE) as p:
            p.stdout.readline()
        self.assertEqual(p.returncode, -signal.SIGPIPE)

    def test_filenos_are_pipes(self):
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE, bufsize=0) as p:
            for f in (p.stdin, p.stdout):
                self.assertTrue(stat.S_ISFIFO(os.fstat(f.fileno()).st_mode))
                self.assertFalse(os.get_inheritable(f.fileno()))
                self.assertIsInstance(f, io.RawIOBase)
            self.assertEqual(select.select([p.stdout], [p.stdin], [], 0)[:2], ([], [p.stdin]))
            os.write(p.stdin.fileno(), b"x")
            self.assertEqual(select.select([p.stdout], [], [], 60)[0], [p.stdout])

    def test_a_full_pipe_holds_the_writer(self):
        with self.Popen(py("import os, sys\nfor i in range(1 << 20): os.write(1, b'x' * 4096)"), stdout=PIPE) as p:
            time.sleep(0.3)
            import fcntl
            import struct
            import termios
            n = struct.unpack("i", fcntl.ioctl(p.stdout, termios.FIONREAD, b"\0" * 4))[0]
            self.assertLessEqual(n, fcntl.fcntl(p.stdout, 1032))  # F_GETPIPE_SZ
            self.assertIsNone(p.poll())
            p.kill()

    def test_stderr_into_stdout(self):
        with self.Popen(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], stdout=PIPE, stderr=STDOUT) as p:
            self.assertEqual(p.communicate(), (b"1\n2\n3\n", None))
        with open(self.dir / "f", "wb") as f:
            self.Popen(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], stdout=f, stderr=STDOUT).wait()
        self.assertEqual((self.dir / "f").read_bytes(), b"1\n2\n3\n")
        self.assertEqual(self.Popen(["sh", "-c", "echo 1 >&2"], stdout=DEVNULL, stderr=STDOUT).wait(), 0)

    def test_stdout_needs_a_stream(self):
        with self.assertRaises((ValueError, OSError)):
            self.Popen(["true"], stdout=STDOUT)

    def test_files(self):
        (self.dir / "in").write_bytes(b"from a file")
        with open(self.dir / "in", "rb") as i, open(self.dir / "out", "wb") as o:
            self.assertEqual(self.Popen(["cat"], stdin=i, stdout=o.fileno()).wait(), 0)
        self.assertEqual((self.dir / "out").read_bytes(), b"from a file")

    def test_devnull(self):
        with self.Popen(["sh", "-c", "cat; echo x; exec 3>&1; readlink /proc/self/fd/3 >&2"],
                        stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE) as p:
            self.assertEqual(p.communicate(), (None, b"/dev/null\n"))

    def test_unnamed_streams_are_ours(self):
        """In a process of its own, whose streams are known."""
        code = self.child + ("p = Popen(['sh', '-c', 'cat; echo err >&2; exec 3>&1 >/dev/null; readlink /proc/self/fd/3 >&2'])\n"
                             "sys.exit(p.wait())")
        with open(self.dir / "out", "wb") as out:
            done = subprocess.run(py(code), input=b"in", stdout=out, stderr=PIPE, env=self.child_env)
        self.assertEqual((done.returncode, (self.dir / "out").read_bytes()), (0, b"in"), done)
        self.assertEqual(done.stderr.splitlines()[0], b"err")

    def test_pipe_size(self):
        import fcntl
        with self.Popen(["true"], stdout=PIPE, pipesize=4096) as p:
            self.assertEqual(fcntl.fcntl(p.stdout, 1032), 4096)

    # -- text

    def test_text(self):
        for options in ({"text": True}, {"encoding": "utf-8"}, {"universal_newlines": True}, {"errors": "strict"}):
            with self.subTest(options), self.Popen(["cat"], stdin=PIPE, stdout=PIPE, stderr=PIPE, **options) as p:
                self.assertEqual(p.communicate("grün\n"), ("grün\n", ""))
                self.assertTrue(p.universal_newlines)

    def test_newlines(self):
        data = b"a\r\nb\rc\nd"
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE) as p:
            self.assertEqual(p.communicate(data)[0], data)
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE, text=True) as p:
            self.assertEqual(p.communicate("a\r\nb\rc\nd")[0], "a\nb\nc\nd")
        with self.Popen(["printf", "a\\r\\nb\\rc"], stdout=PIPE, text=True) as p:
            self.assertEqual(p.stdout.read(), "a\nb\nc")

    def test_encodings(self):
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE, encoding="utf-16-le") as p:
            self.assertEqual(p.communicate("ü\n")[0], "ü\n")
        with self.Popen(["printf", "\\377"], stdout=PIPE, encoding="ascii", errors="replace") as p:
            self.assertEqual(p.communicate()[0], "\ufffd")
        with self.Popen(["printf", "\\377"], stdout=PIPE, encoding="ascii") as p, self.assertRaises(UnicodeDecodeError):
            p.communicate()

    def test_line_buffered(self):
        with self.Popen(["cat"], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as p:
            p.stdin.write("line\n")
            self.assertEqual(p.stdout.readline(), "line\n")

    def test_text_disagrees(self):
        with self.assertRaises(subprocess.SubprocessError):
            self.Popen(["true"], text=True, universal_newlines=False)

    # -- communicate

    def test_communicate_times_out_and_goes_on(self):
        go = self.dir / "go"
        script = f"printf early; printf e >&2; cat; until [ -e {go} ]; do sleep 0.05; done; printf late"
        with self.Popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE, stderr=PIPE) as p:
            with self.assertRaises(subprocess.TimeoutExpired) as e:
                p.communicate(b"<in>", timeout=0.5)
            self.assertEqual(e.exception.timeout, 0.5)
            self.assertIn(e.exception.output, (None, b"early", b"early<in>"))
            with self.assertRaises(ValueError):
                p.communicate(b"more", timeout=0.1)
            with self.assertRaises(subprocess.TimeoutExpired) as again:
                p.communicate(timeout=0.1)
            self.assertTrue((again.exception.output or b"").startswith(e.exception.output or b""))
            go.touch()
            self.assertEqual(p.communicate(timeout=60), (b"early<in>late", b"e"))

    def test_kill_after_timeout_then_communicate(self):
        with self.Popen(["sh", "-c", "echo before; exec sleep 600"], stdout=PIPE, stderr=PIPE) as p:
            with self.assertRaises(subprocess.TimeoutExpired) as e:
                while True:  # until it has said something
                    p.communicate(timeout=0.2)
            p.kill()
            self.assertEqual(p.communicate(), (b"before\n", b""))
            self.assertEqual(p.returncode, -signal.SIGKILL)
            self.assertIn(e.exception.output, (None, b"before\n"))

    def test_communicate_twice(self):
        with self.Popen(["sh", "-c", "echo x; echo y >&2"], stdout=PIPE, stderr=PIPE) as p:
            self.assertEqual(p.communicate(), (b"x\n", b"y\n"))
            self.assertEqual(p.communicate(), (b"x\n", b"y\n"))

    def test_communicate_waits_without_pipes(self):
        p = self.Popen(["sh", "-c", "exit 3"])
        self.assertEqual(p.communicate(), (None, None))
        self.assertEqual(p.returncode, 3)
        p = self.Popen(["sleep", "600"])
        with self.assertRaises(subprocess.TimeoutExpired):
            p.communicate(timeout=0.05)
        p.kill()
        p.wait()

    def test_a_grandchild_holds_stdout(self):
        """The exit is the process's, not the pipe's."""
        with self.Popen(["sh", "-c", "sleep 600 & echo $!; exit 4"], stdout=PIPE) as p:
            grandchild = int(p.stdout.readline())
            self.assertEqual(p.wait(60), 4)
            self.assertTrue(exists(grandchild))
            with self.assertRaises(subprocess.TimeoutExpired):
                p.communicate(timeout=0.2)
            self.assertEqual(p.returncode, 4)
            self.end(p, grandchild)
            self.assertEqual(p.communicate(timeout=60)[0], b"")

    # -- what it gets

    def test_environment_is_exact(self):
        with self.Popen(["/usr/bin/env", "-0"], stdout=PIPE, env={"A": "1", "EMPTY": "", "grün": "ä\n="}) as p:
            self.assertEqual(sorted(p.communicate()[0].decode().split("\0")), ["", "A=1", "EMPTY=", "grün=ä\n="])
        with self.Popen(["/usr/bin/env"], stdout=PIPE, env={}) as p:
            self.assertEqual(p.communicate()[0], b"")
        with self.Popen(["/usr/bin/env"], stdout=PIPE, env={b"B": b"2"}) as p:
            self.assertEqual(p.communicate()[0], b"B=2\n")

    def test_environment_is_ours(self):
        with self.Popen(["/usr/bin/env", "-0"], stdout=PIPE) as p:
            theirs = dict(w.split("=", 1) for w in p.communicate()[0].decode().split("\0") if w)
        self.assertEqual(theirs, dict(os.environ))

    def test_bad_environment(self):
        for env in ({"A=B": "x"}, {"A": "x\0"}):
            with self.subTest(env), self.assertRaises(ValueError):
                self.Popen(["true"], env=env)

    def test_path_is_that_of_the_environment(self):
        tool = self.dir / "pinfold-test-tool"
        tool.write_text("#!/bin/sh\necho found\n")
        tool.chmod(0o755)
        with self.Popen([tool.name], stdout=PIPE, env={"PATH": str(self.dir)}) as p:
            self.assertEqual(p.communicate()[0], b"found\n")
        with self.assertRaises(FileNotFoundError):
            self.Popen([tool.name])

    def test_directory(self):
        with self.Popen(["pwd", "-P"], stdout=PIPE, cwd=self.dir) as p:
            self.assertEqual(p.communicate()[0].decode(), f"{self.dir.resolve()}\n")
        with self.Popen(["pwd", "-P"], stdout=PIPE) as p:
            self.assertEqual(p.communicate()[0].decode(), os.getcwd() + "\n")
        (self.dir / "here").write_text("#!/bin/sh\necho here\n")
        (self.dir / "here").chmod(0o755)
        with self.Popen(["./here"], stdout=PIPE, cwd=self.dir) as p:
            self.assertEqual(p.communicate()[0], b"here\n")

    def test_descriptors_are_closed(self):
        r, w = os.pipe()
        os.set_inheritable(w, True)
        try:
            with self.Popen(py(FDS + "print(fds())"), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as p:
                self.assertEqual(p.communicate()[0], b"[0, 1, 2]\n")
        finally:
            os.close(r)
            os.close(w)

    def test_signals_are_default(self):
        old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            with self.Popen(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"], stdout=PIPE) as p:
                masks = dict(line.split(":\t") for line in p.communicate()[0].decode().splitlines())
        finally:
            signal.signal(signal.SIGUSR2, old)
        self.assertEqual(int(masks["SigBlk"], 16), 0)
        for sig in (signal.SIGPIPE, signal.SIGXFSZ):
            self.assertFalse(int(masks["SigIgn"], 16) >> (sig - 1) & 1)

    def test_session(self):
        code = "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))"
        with self.Popen(py(code), stdout=PIPE, start_new_session=True) as p:
            self.assertEqual(p.communicate()[0], b"True\n")

    def test_pid(self):
        with self.Popen(["sh", "-c", "exec sh -c 'echo $$'"], stdout=PIPE) as p:
            self.assertEqual(int(p.communicate()[0]), p.pid)

    def test_user(self):
        for user in (65534, "nobody"):
            with self.subTest(user), self.Popen(["sh", "-c", "id -u; id -ru"], stdout=PIPE, user=user, cwd="/") as p:
                self.assertEqual(p.communicate()[0], b"65534\n65534\n")
        with self.assertRaises((OSError, KeyError)):
            self.Popen(["true"], user="no-such-user")
        with self.assertRaises(ValueError):
            self.Popen(["true"], user=-2)

    # -- shells and words

    def test_words_that_are_not_utf8(self):
        with self.Popen([b"/usr/bin/printf", b"%s %s", b"\xff\xfe", "\udcfd"], stdout=PIPE) as p:
            self.assertEqual(p.communicate()[0], b"\xff\xfe \xfd")
        with self.Popen(["/usr/bin/env"], stdout=PIPE, env={b"\xff": b"\xfe", "B": "2"}) as p:
            self.assertEqual(sorted(p.communicate()[0].split()), [b"B=2", b"\xff=\xfe"])
        os.environb[b"PINFOLD_TEST_BYTES"] = b"\xff"
        try:
            with self.Popen(["/usr/bin/env"], stdout=PIPE) as p:
                self.assertIn(b"PINFOLD_TEST_BYTES=\xff\n", p.communicate()[0])
        finally:
            del os.environb[b"PINFOLD_TEST_BYTES"]

    def test_shell(self):
        with self.Popen("echo $0 $((1 + 1)) | cat", shell=True, stdout=PIPE) as p:
            self.assertEqual(p.communicate()[0], b"/bin/sh 2\n")
        with self.Popen(["echo $0", "zero"], shell=True, stdout=PIPE) as p:
            self.assertEqual(p.communicate()[0], b"zero\n")
        with self.Popen("echo $BASH_VERSION", shell=True, executable="/bin/bash", stdout=PIPE) as p:
            self.assertRegex(p.communicate()[0], b"^[0-9]")

    def test_words(self):
        words = ["", " ", "a b", "'\"$x`", "\n", "-n", "grün"]
        with self.Popen(py("import sys; print(sys.argv[1:])") + words, stdout=PIPE, text=True) as p:
            self.assertEqual(p.communicate()[0], repr(words) + "\n")
        for args in ("/bin/true", b"/bin/true", Path("/bin/true"), (Path("/bin/true"), b"x"), iter(["true"])):
            self.assertEqual(self.Popen(args).wait(), 0)
        with self.assertRaises(ValueError):
            self.Popen(["true", "a\0b"])

    def test_no_words(self):
        with self.assertRaises((ValueError, IndexError)):
            self.Popen([])

    # -- what cannot start

    def test_missing_program(self):
        for name in ("pinfold-no-such-program", "/no/such/program", "./no-such"):
            with self.subTest(name), self.assertRaises(FileNotFoundError) as e:
                self.Popen([name, "x"])
            self.assertEqual((e.exception.errno, e.exception.filename), (errno.ENOENT, name))
            self.assertEqual(e.exception.strerror, os.strerror(errno.ENOENT))

    def test_not_executable(self):
        plain = self.dir / "plain"
        plain.write_text("echo no\n")
        for name, kind, number in ((str(plain), PermissionError, errno.EACCES), (str(self.dir), PermissionError, errno.EACCES),
                                   (f"{plain}/x", NotADirectoryError, errno.ENOTDIR)):
            with self.subTest(name), self.assertRaises(kind) as e:
                self.Popen([name])
            self.assertEqual((e.exception.errno, e.exception.filename), (number, name))

    def test_no_program_format(self):
        plain = self.dir / "plain"
        plain.write_text("echo no\n")
        plain.chmod(0o755)
        with self.assertRaises(OSError) as e:
            self.Popen([plain])
        self.assertEqual(e.exception.errno, errno.ENOEXEC)

    def test_bad_directory(self):
        (self.dir / "file").write_text("")
        for cwd, kind in (("/no/such/dir", FileNotFoundError), (str(self.dir / "file"), NotADirectoryError)):
            with self.subTest(cwd), self.assertRaises(kind) as e:
                self.Popen(["true"], cwd=cwd)
            self.assertEqual(e.exception.filename, cwd)

    def test_failed_starts_leak_nothing(self):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with self.assertRaises(FileNotFoundError):
                self.Popen(["/no/such/program"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
            with self.assertRaises((TypeError, ValueError, AttributeError)):
                self.Popen(["true"], stdin=PIPE, stdout=PIPE, stderr=object())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 1)

    # -- crowds

    def test_fifty_at_once(self):
        got, errors = {}, []

        def one(i):
            try:
                with self.Popen(["sh", "-c", f"cat; exit {i}"], stdin=PIPE, stdout=PIPE) as p:
                    out, _ = p.communicate(b"%d" % i)
                got[i] = (out, p.returncode)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(50)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(got, {i: (b"%d" % i, i) for i in range(50)})

    def test_ends_of_pipes_do_not_leak_to_siblings(self):
        """A sibling that holds our stdin would keep cat from its end."""
        for _ in range(10):
            with self.Popen(["cat"], stdin=PIPE, stdout=PIPE) as a, self.Popen(["cat"], stdin=PIPE, stdout=PIPE) as b:
                self.assertEqual(a.communicate(b"a", timeout=60), (b"a", None))
                self.assertEqual(b.communicate(b"b", timeout=60), (b"b", None))

    # -- helpers

    def test_run(self):
        done = self.run_(["sh", "-c", "cat; echo e >&2; exit 2"], input="in", capture_output=True, text=True)
        self.assertEqual((done.args[0], done.returncode, done.stdout, done.stderr), ("sh", 2, "in", "e\n"))
        self.assertIsInstance(done, subprocess.CompletedProcess)
        with self.assertRaises(subprocess.CalledProcessError) as e:
            self.run_(["sh", "-c", "echo o; exit 2"], stdout=PIPE, check=True)
        self.assertEqual((e.exception.returncode, e.exception.output), (2, b"o\n"))
        for bad in ({"input": b"", "stdin": PIPE}, {"capture_output": True, "stdout": PIPE}):
            with self.assertRaises(ValueError):
                self.run_(["true"], **bad)

    def test_run_times_out(self):
        with self.assertRaises(subprocess.TimeoutExpired) as e:
            self.run_(["sh", "-c", "echo $$; exec sleep 600"], stdout=PIPE, timeout=1)
        if e.exception.output:  # a busy machine may not have come that far
            self.assertFalse(exists(int(e.exception.output)))

    def test_call_and_check(self):
        self.assertEqual(self.call(["sh", "-c", "exit 3"]), 3)
        self.assertEqual(self.check_call(["true"]), 0)
        with self.assertRaises(subprocess.CalledProcessError):
            self.check_call(["false"])
        self.assertEqual(self.check_output(["echo", "x"], text=True), "x\n")
        self.assertEqual(self.check_output(["cat"], input=b"i"), b"i")
        with self.assertRaises(subprocess.CalledProcessError):
            self.check_output(["false"])
        with self.assertRaises(ValueError):
            self.check_output(["true"], stdout=PIPE)
        with self.assertRaises(subprocess.TimeoutExpired):
            self.call(["sleep", "600"], timeout=0.1)

    # -- masks, groups, descriptors

    def test_umask(self):
        old = os.umask(0o022)
        try:
            for ours, said, want in ((0o022, {}, "0022"), (0o077, {}, "0077"), (0o022, {"umask": 0o027}, "0027"),
                                     (0o077, {"umask": 0o002}, "0002"), (0o022, {"umask": 0}, "0000")):
                os.umask(ours)
                with self.subTest(ours=ours, **said), self.Popen(["sh", "-c", "umask"], stdout=PIPE, text=True, **said) as p:
                    self.assertEqual(p.communicate()[0].strip(), want)
        finally:
            os.umask(old)

    def test_group(self):
        with self.Popen(["grep", "^G", "/proc/self/status"], stdout=PIPE, text=True, user=65534, group=1,
                        extra_groups=[2, "root"], cwd="/") as p:
            self.assertEqual(p.communicate()[0].split(), ["Gid:", "1", "1", "1", "1", "Groups:", "0", "2"])

    def test_pass_fds(self):
        r, w = os.pipe()
        r2, w2 = os.pipe()
        try:
            code = FDS + f"os.write({w}, b'passed'); print(fds())"
            with self.Popen(py(code), stdout=PIPE, stderr=PIPE, stdin=DEVNULL, pass_fds=(w,)) as p:
                out, err = p.communicate()
            self.assertEqual((out.decode(), err), (f"{[0, 1, 2, w]}\n", b""))
            self.assertEqual(os.read(r, 100), b"passed")
            # Numbers that are each other's places on the way.
            with self.Popen(py(f"import os; os.write({w}, b'one'); os.write({w2}, b'two')"), pass_fds=[w2, w]) as p:
                self.assertEqual(p.wait(), 0)
            self.assertEqual((os.read(r, 100), os.read(r2, 100)), (b"one", b"two"))
        finally:
            for fd in (r, w, r2, w2):
                os.close(fd)


class CPython(Cases, unittest.TestCase):
    Popen = staticmethod(subprocess.Popen)
    run_ = staticmethod(subprocess.run)
    call = staticmethod(subprocess.call)
    check_call = staticmethod(subprocess.check_call)
    check_output = staticmethod(subprocess.check_output)
    child = "import sys\nfrom subprocess import Popen\n"
    child_env = None

    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore", ResourceWarning)
        if sys.version_info < (3, 10) and self.id().rpartition(".")[2] in ("test_pipe_size", "test_failed_starts_leak_nothing"):
            self.skipTest("subprocess can do this from Python 3.10")

    def end(self, p, grandchild):
        fd = os.pidfd_open(grandchild)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


class Pinfold(Cases, ServiceCase):
    def setUp(self):
        super().setUp()
        self.t = self.turn()
        self.Popen, self.run_, self.call = self.t.Popen, self.t.run, self.t.call
        self.check_call, self.check_output = self.t.check_call, self.t.check_output
        self.child = (f"import sys\nsys.path.insert(0, {os.path.dirname(pinfold.__file__)!r})\nimport pinfold\n"
                      f"Popen = pinfold.Client().attach({self.t.id!r}).Popen\n")
        self.child_env = dict(os.environ, PINFOLD_SOCKET=self.service.socket)

    def end(self, p, grandchild):
        members = {m["pid"]: m["process"] for m in self.t.tree()}
        self.assertEqual(members, {grandchild: p.process.id})
        self.assertTrue(self.t.abandon(grace=0).complete)

    def test_what_cannot_be_had_is_said(self):
        for options, says in (({"preexec_fn": lambda: None}, "umask"), ({"close_fds": False}, "pass_fds"),
                              ({"executable": "/bin/sh"}, "args"), ({"restore_signals": False}, "default"),
                              ({"process_group": 1}, "0"), ({"creationflags": 1}, "Windows")):
            with self.subTest(options), self.assertRaisesRegex(ValueError, says):
                self.Popen(["true"], **options)
        self.assertEqual(self.t.processes(), [])

    def test_a_directory_that_is_not_utf8(self):
        with self.assertRaisesRegex(ValueError, "UTF-8"):
            self.Popen(["true"], cwd=b"/\xff")

    def test_unknown_options_are_refused(self):
        with self.assertRaisesRegex(pinfold.BadRequest, "no_such_option"):
            self.Popen(["true"], no_such_option=1)

    def test_errors_are_both(self):
        with self.assertRaises(pinfold.ExecFailed) as e:
            self.Popen(["/no/such/program"])
        self.assertIsInstance(e.exception, FileNotFoundError)
        self.assertEqual((e.exception.code, e.exception.status), ("exec_failed", 422))
        self.assertIn("/no/such/program", str(e.exception))
        with self.assertRaises(pinfold.LaunchRefused) as e:
            self.Popen(["true"], cwd="/no/such")
        self.assertIsInstance(e.exception, FileNotFoundError)

    def test_input_goes_on_after_a_timeout(self):
        """CPython 3.11 forgets the rest of it."""
        with self.Popen(["sh", "-c", "kill -STOP $$; cat"], stdin=PIPE, stdout=PIPE) as p:
            with self.assertRaises(subprocess.TimeoutExpired):
                p.communicate(b"x" * BIG, timeout=0.3)
            self.eventually("it has stopped", lambda: self.stopped(p.pid))
            p.send_signal(signal.SIGCONT)
            self.assertEqual(len(p.communicate(timeout=120)[0]), BIG)

    @staticmethod
    def stopped(pid):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def test_drain(self):
        """What a server that was left running holds does not hold us."""
        for script, out in (("sleep 600 & echo here; exit 4", b"here\n"), ("sleep 600 & exit 4", b""),
                            ("sleep 600 & head -c 300000 /dev/zero; exit 4", b"\0" * 300000)):
            with self.subTest(script), self.Popen(["sh", "-c", script], stdout=PIPE, stderr=PIPE) as p:
                self.assertEqual(p.communicate(drain=0.2), (out, b""))
                self.assertEqual(p.returncode, 4)
                self.assertFalse(p.stdout.closed)
        done = self.run_("sleep 600 & cat; exit 5", shell=True, input=b"i", capture_output=True, drain=0, timeout=60)
        self.assertEqual((done.stdout, done.returncode), (b"i", 5))
        self.assertEqual(self.run_(["echo", "x"], stdout=PIPE, drain=60).stdout, b"x\n")
        with self.assertRaises(subprocess.TimeoutExpired), self.Popen(["sleep", "600"], stdout=PIPE) as p:
            try:
                p.communicate(timeout=0.1, drain=60)
            finally:
                p.kill()

    def test_drain_over_a_restart(self):
        go = self.dir / "go"
        with self.Popen(["sh", "-c", f"sleep 600 & until [ -e {go} ]; do sleep 0.05; done; echo out"], stdout=PIPE) as p:
            def restart():
                time.sleep(0.2)
                self.service.process.kill()
                time.sleep(0.2)
                go.touch()
            t = threading.Thread(target=restart)
            t.start()
            with self.assertRaises(subprocess.TimeoutExpired):
                p.communicate(timeout=0.1, drain=0)
            self.addCleanup(t.join)
            again = threading.Thread(target=lambda: got.append(p.communicate(drain=0.2)))
            got = []
            again.start()
            t.join()
            self.service.process.wait()
            self.service.start()
            again.join(60)
            self.assertEqual(got, [(b"out\n", None)])

    def test_the_kill_is_the_process_not_the_number(self):
        """After its end its pid may be anybody's."""
        p = self.Popen(["true"])
        self.assertEqual(p.process.wait().state, "exited")
        self.assertEqual(p.process.signal(signal.SIGKILL), "gone")


if __name__ == "__main__":
    unittest.main()
