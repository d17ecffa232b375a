"""A real service for the tests of the Python client and of the examples.

It needs root, a cgroup v2 mount, and pinfold and pinfold-init in $PINFOLD_BIN
(default: the repository's bin/). Everything is below one temporary directory
and one cgroup of its own; what an earlier run left, because it was killed, is
removed first.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import pinfold

HERE = Path(__file__).resolve().parent
PREFIX = "pinfold-test.python."


def cgroup_mount() -> Path:
    with open("/proc/self/mountinfo") as f:
        for line in f:
            fields, _, fs = line.partition(" - ")
            if fs.split()[0] == "cgroup2":
                return Path(fields.split()[4])
    raise RuntimeError("no cgroup v2 is mounted")


def remove_cgroup(top: Path) -> None:
    """Ends what is in a cgroup of ours, and removes it."""
    end = time.monotonic() + 60
    while top.exists():
        try:
            (top / "cgroup.kill").write_text("1")
        except OSError:
            pass
        for d in [Path(d) for d, _, _ in os.walk(top, topdown=False)]:
            try:
                d.rmdir()
            except OSError:
                pass
        if time.monotonic() > end:
            raise RuntimeError(f"{top} cannot be emptied")
        time.sleep(0.01)


def sweep(mount: Path) -> None:
    """Removes what runs that are gone have left."""
    for d in [*mount.glob(PREFIX + "*"), *Path(tempfile.gettempdir()).glob(PREFIX + "*")]:
        if os.path.exists("/proc/" + d.name[len(PREFIX):].split(".")[0]):
            continue
        if d.is_relative_to(mount):
            remove_cgroup(d)
        else:
            shutil.rmtree(d, ignore_errors=True)


def tempdir() -> Path:
    """A directory that everybody can read, and that a later run can sweep."""
    d = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}."))
    d.chmod(0o755)
    return d


class Service:
    """pinfold serve, as it is shipped."""

    count = 0

    def __init__(self) -> None:
        self.bin = Path(os.environ.get("PINFOLD_BIN") or HERE.parent.parent / "bin")
        for name in ("pinfold", "pinfold-init"):
            if not os.access(self.bin / name, os.X_OK):
                raise RuntimeError(f"{self.bin} has no {name}: run `make build`, or say with PINFOLD_BIN where it is")
        mount = cgroup_mount()
        sweep(mount)
        Service.count += 1
        self.cgroup = mount / f"{PREFIX}{os.getpid()}.{Service.count}"
        self.cgroup.mkdir()
        self.dir = tempdir()
        self.socket = str(self.dir / "run" / "pinfold.sock")
        self.log = self.dir / "log"
        self.client = pinfold.Client(self.socket)
        self.start()

    def start(self) -> None:
        prctl = ctypes.CDLL(None).prctl
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "pinfold", "serve", "--runtime-dir", self.dir / "run", "--state-dir", self.dir / "state",
                 "--init", self.bin / "pinfold-init", "--grade", "cgroup", "--cgroup-parent", self.cgroup,
                 "--log-level", "debug"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "PINFOLD_SOCKET": self.socket},
                preexec_fn=lambda: prctl(1, signal.SIGKILL))  # PR_SET_PDEATHSIG: it goes when we do
        end = time.monotonic() + 120
        while True:
            try:
                self.client.host()
                return
            except pinfold.Unavailable:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the service does not answer:\n{self.log.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def turn_cgroups(self) -> list:
        """The cgroups of turns; the service's own, above them, may stay."""
        return [Path(d) for d, _, _ in os.walk(self.cgroup) if Path(d).parent not in (self.cgroup, self.cgroup.parent)]

    def close(self) -> None:
        """Ends every turn and job, and the service; fails when a cgroup stays behind."""
        try:
            for job in self.client.jobs():
                job.stop(grace=0)
            for t in self.client.turns(all=True):
                if t["state"] == "open" or t["alive"] > 0:
                    self.client.attach(t["id"]).abandon(grace=0, leftovers=True)
            end = time.monotonic() + 60
            while self.turn_cgroups() and time.monotonic() < end:  # they go after the receipt
                time.sleep(0.02)
            left = self.turn_cgroups()
        finally:
            self.kill()
            remove_cgroup(self.cgroup)
            text = self.log.read_text()
            shutil.rmtree(self.dir)
        if left:
            raise AssertionError(f"cgroups left behind: {left}\n{text}")


class ServiceCase(unittest.TestCase):
    """Tests that share a service, and fail with its log."""

    service: Service

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.client = cls.service.client

    def turn(self, **options) -> pinfold.Turn:
        """A turn that is abandoned with the test."""
        t = self.client.begin(label=self.id(), **options)
        self.addCleanup(lambda: self.client.attach(t.id).abandon(grace=0, leftovers=True))  # another may have taken it
        return t

    def patiently(self, do, *times):
        """Does what has to be done within a time; a busy machine gets a longer one."""
        for seconds in times[:-1]:
            try:
                return do(seconds)
            except (AssertionError, pinfold.PinfoldError) as e:
                print(f"within {seconds} s: {e}", file=sys.stderr)
        return do(times[-1])

    def eventually(self, what, ask, bound=60.0):
        end = time.monotonic() + bound
        while True:
            v = ask()
            if v:
                return v
            self.assertLess(time.monotonic(), end, f"not so in {bound} s: {what}")
            time.sleep(0.01)


def own_dir(case: unittest.TestCase) -> Path:
    """A directory of one test."""
    d = tempdir()
    case.addCleanup(shutil.rmtree, d)
    return d


def exists(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False
