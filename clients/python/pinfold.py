"""A client of Pinfold: run processes in turns that end with all of their processes.

One file, the standard library only, Python 3.9 or newer, Linux. Copy it into a
project or put it on the path::

    import pinfold

    with pinfold.Client().turn(label="chat 7, message 3") as turn:
        done = turn.run(["git", "status"], capture_output=True, text=True, timeout=60)
        with turn.Popen(["npm", "run", "build"], stdout=pinfold.PIPE) as build:
            for line in build.stdout:
                ...
    print(turn.receipt.complete)

Leaving the block finishes the turn; leaving it by an exception abandons it, and
every process of it is ended, whatever it forked, and nothing else.

Three levels, each made of the one below:

- `Client`, `Turn`, `Process`, `Job`: the service's API as objects.
- `Turn.Popen`, `Turn.run`, `Turn.call`, `Turn.check_call`, `Turn.check_output`:
  the shape and the behaviour of `subprocess`. Pipes are the kernel's: they are
  sent along with the request (SCM_RIGHTS), so `fileno()` works with select and
  asyncio, and nobody stands between the two ends.
- `Turn.create_subprocess_exec`, `Turn.create_subprocess_shell`: that of
  `asyncio.subprocess`, without threads.

What differs from `subprocess`, because somebody else is the parent:

- A process has a session of its own. Ctrl-C at our terminal does not reach it.
- It inherits nothing that is not in the request: environment, directory and
  umask are ours by default; limits, niceness and namespaces are the service's.
- An exit status that nobody saw is `ProcessLost`, raised by `wait` and `poll`,
  never a number.
- With `user`, group and groups are that user's unless they are named.

Errors are `PinfoldError`, with a class for each of the service's codes. Where
`subprocess` raises FileNotFoundError or PermissionError, so does this: those
errors are both.
"""

from __future__ import annotations

import array
import asyncio
import base64
import contextlib
import http.client
import io
import json
import locale
import logging
import os
import re
import select
import selectors
import signal as _signal
import socket as _socket
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, CompletedProcess, SubprocessError, TimeoutExpired
from typing import (IO, Any, Callable, Dict, Generator, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Type, TypeVar, Union)

__version__ = "0.1"
__all__ = [
    "Client", "Turn", "Hold", "Process", "Job", "Output", "Popen", "AsyncProcess", "Receipt", "Counts", "Status", "Gap", "Slice", "Event",
    "Events", "Ended", "Abandoned", "Quiet", "run",
    "PIPE", "STDOUT", "DEVNULL", "CalledProcessError", "CompletedProcess", "SubprocessError", "TimeoutExpired",
    "PinfoldError", "BadRequest", "Forbidden", "PeerUnverifiable", "NotFound", "Timeout", "TurnOver", "StaleEpoch",
    "IdempotencyConflict", "StdinClosed", "Unsupported", "TooLarge", "ExecFailed", "LaunchRefused", "GradeUnavailable", "LimitUnavailable",
    "AdoptRefused", "KeeperLost", "Unavailable", "Internal", "ProcessLost",
]

_log = logging.getLogger("pinfold")
_T = TypeVar("_T")

Json = Dict[str, Any]
Word = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Args = Union[Word, Sequence[Word]]
Env = Optional[Mapping[Any, Any]]
File = Union[None, int, IO[Any]]
Stream = Union[None, int, str, bytes, Mapping[str, Any], IO[Any]]


# ---------------------------------------------------------------- errors


class PinfoldError(Exception):
    """What the service refused, or why it could not be asked.

    `code` is stable; `message` says what happened and `remedy` what to do;
    `status` is that of HTTP, 0 when there was no answer.
    """

    code = "internal"

    def __init__(self, message: str, *, code: str = "", remedy: str = "", details: Optional[Mapping[str, str]] = None,
                 status: int = 0) -> None:
        self.code = code or type(self).code
        self.message = message
        self.remedy = remedy
        self.details: Dict[str, str] = dict(details or {})
        self.status = status
        number = self.details.get("errno", "")
        if isinstance(self, OSError) and number.isdigit():
            # OSError's own arguments, which it has room for only as positions.
            super().__init__(int(number), os.strerror(int(number)), self.details.get("path"))
        else:
            super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class BadRequest(PinfoldError):
    """The request is not one: a field is wrong, or unknown to this service."""
    code = "bad_request"


class Forbidden(PinfoldError):
    """Not yours to do."""
    code = "forbidden"


class PeerUnverifiable(PinfoldError):
    """The service cannot tell whether we are inside a turn."""
    code = "peer_unverifiable"


class NotFound(PinfoldError):
    """No such turn, process or receipt (or not yours)."""
    code = "not_found"


class Timeout(PinfoldError, TimeoutError):
    """The wait was over first. What was waited for goes on."""
    code = "timeout"


class TurnOver(PinfoldError):
    """The turn is ending or has ended: nothing can be launched in it."""
    code = "turn_over"


class StaleEpoch(PinfoldError):
    """The request named another epoch than the turn's; nothing was touched."""
    code = "stale_epoch"


class IdempotencyConflict(PinfoldError):
    """The key was used before, with another request."""
    code = "idempotency_conflict"


class StdinClosed(PinfoldError):
    """Nobody reads the process's stdin any more."""
    code = "stdin_closed"


class Unsupported(PinfoldError):
    """The turn's keeper, or the kernel, is too old for that."""
    code = "unsupported"


class TooLarge(PinfoldError):
    """The request has more of something than the service takes."""
    code = "too_large"


class ExecFailed(PinfoldError, OSError):
    """The program could not be executed. It is FileNotFoundError,
    PermissionError or another OSError as well, with errno and filename."""
    code = "exec_failed"


class LaunchRefused(PinfoldError, OSError):
    """Directory, user or cgroup are not fit for the launch. It is the OSError
    of its errno as well."""
    code = "launch_refused"


class GradeUnavailable(PinfoldError):
    """The host cannot hold a turn as well as was demanded."""
    code = "grade_unavailable"


class LimitUnavailable(PinfoldError):
    """The host has no controller for a limit that was demanded."""
    code = "limit_unavailable"


class AdoptRefused(PinfoldError):
    """A process that runs is not adopted: details["reason"] says why, and
    details["pid"] which one it is that stands in the way."""
    code = "adopt_refused"


class KeeperLost(PinfoldError):
    """The turn's keeper is gone: abandon the turn and begin another."""
    code = "keeper_lost"


class Unavailable(PinfoldError, ConnectionError):
    """The service cannot be reached, or has not answered. After a request that
    changes something, nobody knows whether it was done."""
    code = "unavailable"
    _there = False  # the service had the request, and went, or said that it goes


class Internal(PinfoldError):
    """The service failed."""
    code = "internal"


class ProcessLost(PinfoldError):
    """The process is over, and nobody saw its exit status."""
    code = "process_lost"


_ERRORS: Mapping[str, Type[PinfoldError]] = {c.code: c for c in (
    BadRequest, Forbidden, PeerUnverifiable, NotFound, Timeout, TurnOver, StaleEpoch, IdempotencyConflict, StdinClosed,
    Unsupported, TooLarge, ExecFailed, LaunchRefused, GradeUnavailable, LimitUnavailable, AdoptRefused,
    KeeperLost, Unavailable, Internal)}


_BOTH: Dict[Tuple[type, type], Type[PinfoldError]] = {}


def _with_errno(kind: Type[PinfoldError], number: int) -> Type[PinfoldError]:
    """kind, that is also the OSError which Python has for an errno."""
    own = type(OSError(number, ""))
    if issubclass(kind, own):
        return kind
    if (kind, own) not in _BOTH:
        _BOTH[kind, own] = type(kind.__name__, (kind, own), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return _BOTH[kind, own]


def _error(status: int, body: bytes) -> PinfoldError:
    """The error that an answer tells."""
    try:
        e = json.loads(body)
        code, message = str(e["code"]), str(e["message"])
    except (ValueError, TypeError, KeyError):
        return PinfoldError(f"the service answered {status}: {body[:200]!r}", status=status)
    details = e.get("details") or {}
    kind = _ERRORS.get(code, PinfoldError)
    if issubclass(kind, OSError) and str(details.get("errno", "")).isdigit():
        kind = _with_errno(kind, int(details["errno"]))
    error = kind(message, code=code, remedy=e.get("remedy", ""), details=details, status=status)
    if isinstance(error, Unavailable):
        error._there = True
    return error


# ---------------------------------------------------------------- what the service tells


@dataclass(frozen=True)
class Status:
    """How a process is or how it ended: state is running, exited, signaled,
    oom or lost."""

    state: str
    code: int = 0
    signal: str = ""
    signal_number: int = 0
    core: bool = False
    why: str = ""
    ended_by: str = ""  # deadline or stop, when it was ended for that

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Status:
        return cls(**{k: v for k, v in raw.items() if k in cls.__dataclass_fields__})

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def returncode(self) -> Optional[int]:
        """As `subprocess` has it: the exit code, minus the signal's number, or
        None while it runs. Raises ProcessLost where nobody knows."""
        if self.state == "exited":
            return self.code
        if self.state in ("signaled", "oom"):
            return -self.signal_number
        if self.state == "running":
            return None
        raise ProcessLost(f"the exit status is lost: {self.why or 'nobody saw it'}")


@dataclass(frozen=True)
class Counts:
    """What an ending came to."""

    ended: int = 0
    already_gone: int = 0
    foreign: int = 0
    unverifiable: int = 0
    survivors: int = 0


@dataclass(frozen=True)
class Receipt:
    """The account of a turn's ending. `complete` tells that everything which
    had to go was seen gone; `raw` is all that the service says."""

    turn: str
    state: str
    reason: str
    complete: bool
    counts: Counts
    raw: Json = field(repr=False)

    @classmethod
    def of(cls, raw: Json) -> Receipt:
        counts = {k: v for k, v in raw.get("counts", {}).items() if k in Counts.__dataclass_fields__}
        return cls(raw["turn"], raw["state"], raw["reason"], raw["complete"], Counts(**counts), raw)

    @property
    def processes(self) -> List[Json]:
        """What became of each launched process."""
        return self.raw.get("processes") or []

    @property
    def leftovers(self) -> List[Json]:
        """What was kept running when the turn finished."""
        return self.raw.get("leftovers") or []

    @property
    def survivors(self) -> List[Json]:
        """What could not be ended."""
        return self.raw.get("survivors") or []

    @property
    def outside(self) -> List[Json]:
        """What belongs to the turn's story and was not in its cgroup."""
        return self.raw.get("outside") or []


@dataclass(frozen=True)
class Ended:
    """What became of a process, and what it had forked, that were to end.
    `complete`: all of them were seen gone. `targets` are those of a dry run."""

    status: Status
    ended: int
    complete: bool
    raw: Json = field(repr=False)

    @classmethod
    def of(cls, raw: Json) -> Ended:
        return cls(Status.of(raw["status"]), raw["ended"], raw["complete"], raw)

    @property
    def targets(self) -> List[Json]:
        return self.raw.get("targets") or []

    @property
    def survivors(self) -> List[Json]:
        """What could not be ended."""
        return self.raw.get("survivors") or []


@dataclass(frozen=True)
class Abandoned:
    """What became of turns that were to end: `receipts` of those that did, `plans`
    of a dry run, `jobs` that were ended with them, and `refused`: who was not
    ended, with the error."""

    receipts: List[Receipt]
    plans: List[Json]
    jobs: List[Json]
    refused: Dict[str, PinfoldError]

    @classmethod
    def of(cls, raw: Json) -> Abandoned:
        refused = {r["id"]: _error(0, json.dumps(r["error"]).encode()) for r in raw.get("refused") or []}
        return cls([Receipt.of(r) for r in raw.get("receipts") or []], raw.get("plans") or [], raw.get("jobs") or [], refused)

    @property
    def complete(self) -> bool:
        """Whether everything that had to go was seen gone."""
        return not self.refused and all(r.complete for r in self.receipts) and not any(j.get("survivors") for j in self.jobs)


@dataclass(frozen=True)
class Quiet:
    """Whether a directory can be taken away without pulling it from under a
    process of a turn or job; it is true, as a condition, when it can. `uses` says
    who uses it, `unseen` what could not be looked at, and so may."""

    path: str
    quiet: bool
    uses: List[Json]
    unseen: List[str]

    def __bool__(self) -> bool:
        return self.quiet


class Gap(NamedTuple):
    """Bytes of a stream that were not kept: offsets start up to, not with, end.
    reason is overwritten (by newer ones), lost (the disk was full), refused (the
    turn's output_max) or unknown."""

    start: int
    end: int
    reason: str = "unknown"


class Slice(NamedTuple):
    """A part of a stream: data begins at offset, the next part at next_offset.
    gaps lie between them; total is what the process has written so far."""

    data: bytes
    offset: int
    next_offset: int
    gaps: List[Gap]
    total: int
    dropped: int


# ---------------------------------------------------------------- HTTP over a unix socket


def default_socket() -> str:
    """$PINFOLD_SOCKET, else the user's own service if it has a socket, else the
    system's."""
    named = os.environ.get("PINFOLD_SOCKET")
    if named:
        return named
    run = os.environ.get("XDG_RUNTIME_DIR")
    own = os.path.join(run, "pinfold", "pinfold.sock") if run else ""
    return own if own and os.path.exists(own) else "/run/pinfold/pinfold.sock"


def _rights(fds: Sequence[int]) -> List[Tuple[int, int, bytes]]:
    return [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []


class _Connection(http.client.HTTPConnection):
    """A connection whose next request takes the descriptors in `fds` along."""

    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("pinfold", timeout=timeout)
        self.path = path
        self.fds: Sequence[int] = ()

    def connect(self) -> None:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        end = time.monotonic() + (30.0 if self.timeout is None else self.timeout)
        try:
            sock.settimeout(self.timeout)
            while True:
                try:
                    sock.connect(self.path)
                    break
                except BlockingIOError:  # the service's queue is full, unix(7)
                    if time.monotonic() >= end:
                        raise
                    time.sleep(0.005)
        except BaseException:
            sock.close()
            raise
        self.sock = sock

    def send(self, data: Any) -> None:
        if self.fds:
            sock: _socket.socket = self.sock
            sent = sock.sendmsg([data], _rights(self.fds))
            self.fds = ()
            data = memoryview(data)[sent:]
        super().send(data)

    @property
    def stale(self) -> bool:
        """Whether an idle connection has something to read: its end."""
        p = select.poll()
        p.register(self.sock, select.POLLIN)
        return bool(p.poll(0))


def _unreachable(path: str, e: BaseException, asked: bool) -> Unavailable:
    if asked:
        lost = Unavailable(f"the service at {path} has not answered: {e!r}",
                           remedy="it may have done what was asked: look before asking again")
        lost._there = not isinstance(e, _socket.timeout)
        return lost
    why = getattr(e, "strerror", None) or repr(e)
    return Unavailable(f"connect to {path}: {why}", details={"socket": path},
                       remedy="start it with `systemctl start pinfold` or `pinfold serve`, or name its socket with PINFOLD_SOCKET")


class _Away:
    """How long the service has been away. It was there again when a request was
    held for a while and then lost, or answered that it is not available; one that
    nobody answered in time says nothing of the kind."""

    def __init__(self, patience: float) -> None:
        self.patience, self._wait = patience, 0.02
        self._began = 0.0
        self._end: Optional[float] = None

    def asked(self) -> None:
        self._began = time.monotonic()

    def pause(self, e: Unavailable) -> Optional[float]:
        """How long to wait before asking again; None: no longer."""
        now = time.monotonic()
        if self._end is None or (e._there and now - self._began > 1):
            self._end, self._wait = now + self.patience, 0.02
        if now + self._wait > self._end:
            return None
        pause, self._wait = self._wait, min(2 * self._wait, 1.0)
        return pause


_UNSET: Any = object()
_IDLE = 8  # connections kept


class Client:
    """The service behind a unix socket. Threads may share one.

    `timeout` bounds ordinary requests, in seconds. Requests that can be asked
    again safely (looking, waiting, ending a turn) are, for up to `patience`
    seconds, while the service restarts: turns and processes go on meanwhile.
    """

    def __init__(self, socket: Optional[str] = None, *, timeout: float = 60.0, patience: float = 30.0) -> None:
        self.socket = socket or default_socket()
        self.timeout = timeout
        self.patience = patience
        self._lock = threading.Lock()
        self._idle: List[_Connection] = []
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<pinfold.Client {self.socket}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pid"):
            self.close()

    def close(self) -> None:
        """Closes idle connections. The client can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for c in idle:
            c.close()

    # -- requests

    def _take(self, timeout: Optional[float]) -> _Connection:
        with self._lock:
            if self._pid != os.getpid():  # forked: those are our parent's
                self._pid, self._idle = os.getpid(), []
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            if not idle.stale:
                idle.timeout = timeout
                idle.sock.settimeout(timeout)
                return idle
            idle.close()
        return _Connection(self.socket, timeout)

    def _give(self, c: _Connection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE and self._pid == os.getpid():
                self._idle.append(c)
                return
        c.close()

    def _open(self, method: str, path: str, body: Optional[bytes], headers: Mapping[str, str], fds: Sequence[int],
              timeout: Optional[float]) -> Tuple[_Connection, http.client.HTTPResponse]:
        c = self._take(timeout)
        asked = False
        try:
            if c.sock is None:
                c.connect()
            asked, c.fds = True, fds
            with contextlib.suppress(BrokenPipeError):  # it has answered without reading all
                c.request(method, path, body=body, headers=dict(headers))
            return c, c.getresponse()
        except _socket.timeout as e:
            c.close()
            raise Unavailable(f"the service at {self.socket} has not answered in {timeout} s",
                              remedy="it may have done what was asked: look before asking again") from e
        except (OSError, http.client.HTTPException) as e:
            c.close()
            raise _unreachable(self.socket, e, asked) from e
        except BaseException:
            c.close()
            raise

    def _raw(self, method: str, path: str, body: Optional[bytes] = None, headers: Mapping[str, str] = {},
             fds: Sequence[int] = (), timeout: Optional[float] = _UNSET) -> Tuple[bytes, http.client.HTTPResponse]:
        c, answer = self._open(method, path, body, headers, fds, self.timeout if timeout is _UNSET else timeout)
        try:
            data = answer.read()
        except (OSError, http.client.HTTPException) as e:
            c.close()
            raise _unreachable(self.socket, e, True) from e
        except BaseException:
            c.close()
            raise
        if answer.will_close:
            c.close()
        else:
            self._give(c)
        if answer.status >= 400:
            raise _error(answer.status, data)
        return data, answer

    def _call(self, method: str, where: str, body: Optional[Mapping[str, Any]] = None, *, fds: Sequence[int] = (),
              timeout: Optional[float] = _UNSET, **query: Any) -> Json:
        """One request and its JSON answer."""
        b = None if body is None else _json(body)
        data, _ = self._raw(method, where + _query(query), b, _json_headers(b), fds, timeout)
        answer: Json = json.loads(data)
        return answer

    def _lines(self, path: str, **query: Any) -> Tuple[Generator[Json, None, None], http.client.HTTPMessage]:
        """Opens an answer of lines of JSON: a generator whose request is made."""
        timeout = None if query.get("follow") else self.timeout
        c, answer = self._open("GET", path + _query(query), None, {"Accept": "application/x-ndjson"}, (), timeout)

        def lines() -> Generator[Json, None, None]:
            done = False
            try:
                for line in answer:
                    yield json.loads(line)
                done = not answer.will_close
            finally:
                if done:
                    self._give(c)
                else:
                    c.close()

        if answer.status >= 400:
            with contextlib.closing(c):
                raise _error(answer.status, answer.read())
        return lines(), answer.headers

    def _again(self, ask: Callable[[], _T]) -> _T:
        """Asks, and asks again while the service is away."""
        away = _Away(self.patience)
        while True:
            away.asked()
            try:
                return ask()
            except Unavailable as e:
                pause = away.pause(e)
                if pause is None:
                    raise
                _log.debug("asking again: %s", e)
            time.sleep(pause)

    # -- what the service offers

    def host(self) -> Json:
        """What this host can do: `pinfold doctor`."""
        return self._again(lambda: self._call("GET", "/v1/host"))

    def turn(self, *, label: str = "", session: str = "", labels: Optional[Mapping[str, str]] = None,
             leftovers: str = "", grace: Optional[float] = None, min_grade: str = "",
             limits: Optional[Mapping[str, int]] = None, on_error: str = "stop", wall: Optional[float] = None,
             lease: Optional[float] = None, idle: Optional[float] = None, idle_by: Optional[Iterable[str]] = None,
             bind: str = "", window: Optional[float] = None, on_client_gone: str = "",
             policy: Optional[Mapping[str, Mapping[str, str]]] = None, leftovers_max: Optional[float] = None,
             supersede: bool = False, idempotency_key: str = "", **more: Any) -> Turn:
        """A turn that begins when its block is entered, or with `begin`.

        leftovers: what to do with what still runs when the turn finishes, keep
        (the service's default) or reap, and leftovers_max how long to keep it.
        grace: seconds between TERM and KILL. limits: memory_bytes, swap_bytes,
        pids, cpu_percent. on_error: the reason to abandon it with when its block
        is left by an exception.

        Clocks, in seconds, end it by themselves: wall, when it is older; lease,
        when `Turn.touch` has not renewed it for so long; idle, when nothing of
        idle_by (touch, output, cpu, io; default all) was seen for so long. bind
        makes us its client: "process" while this process lives, "connection"
        while `Turn.hold` holds it. window is how long the client may be gone,
        on_client_gone what then happens, abandon or detach. policy has what
        differs from `Client.policy`: {"stop": {"jobs": "end"}}.

        supersede ends the open turns of the same session. The same request with
        the same idempotency_key begins one turn while that is open; without one
        each call has its own, so that it can be asked again when an answer was
        lost. more: any other field of the API's BeginRequest.
        """
        return Turn(self, _said(
            label=label, session=session, labels=labels, leftovers=leftovers, min_grade=min_grade, grace_ms=_ms(grace), limits=limits,
            wall_ms=_ms(wall), lease_ms=_ms(lease), idle_ms=_ms(idle), idle_by=None if idle_by is None else list(idle_by),
            client=_said(bind=bind, after_ms=_ms(window), on_gone=on_client_gone) or None, policy=policy,
            leftovers_max_ms=_ms(leftovers_max), supersede=supersede or None, idempotency_key=idempotency_key, **more), on_error=on_error)

    def begin(self, **options: Any) -> Turn:
        """A turn that has begun; options are those of `turn`."""
        return self.turn(**options).begin()

    def attach(self, turn: str) -> Turn:
        """A turn that somebody began before, by its id. To be its client from now
        on, see `Turn.take`."""
        t = Turn(self, {})
        t._seen(self._again(lambda: self._call("GET", f"/v1/turns/{_id(turn)}")))
        return t

    def turns(self, *, all: bool = False, session: str = "", state: str = "") -> List[Json]:
        """The turns that are not over, or all of which something is known."""
        answer = self._again(lambda: self._call("GET", "/v1/turns", all="true" if all else "", session=session, state=state))
        found: List[Json] = answer["turns"]
        return found

    def events(self, *, after: Optional[int] = None, consumer: str = "", turn: str = "", session: str = "",
               kinds: Iterable[str] = (), follow: bool = False) -> Events:
        """What happened, in order, to the turns that we may see; see `Events`.

        It begins after a number, -1 for what happens from now on, or after what
        a consumer has acknowledged; else with the oldest that is kept.
        """
        return Events(self, after, _said(consumer=consumer, turn=turn, session=session, kinds=",".join(kinds)), follow)

    def acknowledge_events(self, consumer: str, seq: int) -> bool:
        """Says that a consumer has dealt with every event up to a number; durably.
        True for the one who says so first: whoever gets False is not to act.
        Unavailable leaves open who was first."""
        return not self._call("POST", "/v1/events/ack", {"consumer": consumer, "seq": seq}).get("repeated", False)

    def policy(self) -> Json:
        """What happens to processes and jobs of a turn that says nothing, for each
        reason that it is ended for."""
        table: Json = self._again(lambda: self._call("GET", "/v1/policy"))["policy"]
        return table

    def abandon(self, turns: Optional[Iterable[str]] = None, *, session: Optional[str] = None, labels: Optional[Mapping[str, str]] = None,
                owner: Optional[int] = None, reason: str = "", grace: Optional[float] = None, jobs: bool = False,
                dry_run: bool = False) -> Abandoned:
        """Ends turns: those with these ids, or of this session, with all of these
        labels, or of this owner. Exactly one is to be given, and a blank one is
        refused: it never means all. jobs ends their jobs, too. dry_run tells what
        it would do, and touches nothing."""
        body = {k: v for k, v in (("turns", None if turns is None else list(turns)), ("session", session), ("labels", labels), ("owner", owner))
                if v is not None}
        if len(body) != 1 or not (owner is not None or any(body.values())):
            raise BadRequest("say which turns to end: exactly one of turns, session, labels and owner, and not a blank one")
        body.update(_said(reason=reason, grace_ms=_ms(grace), jobs=jobs or None, dry_run=dry_run or None))
        return Abandoned.of(self._again(lambda: self._call("POST", "/v1/abandon", body, timeout=(grace or 0) + 2 * self.timeout)))

    def quiet(self, path: Word) -> Quiet:
        """Whether no process of any turn or job has its directory, root, program,
        or an open or mapped file at or below a path::

            if client.quiet(workspace):
                shutil.rmtree(workspace)
        """
        at = _absolute(path, "path")
        q = self._again(lambda: self._call("GET", "/v1/quiet", path=at))
        return Quiet(q["path"], q["quiet"], q["uses"], q["unseen"])

    # -- jobs

    def start_job(self, argv: Args, *, name: str = "", session: str = "", labels: Optional[Mapping[str, str]] = None,
                  limits: Optional[Mapping[str, int]] = None, max: Optional[float] = None, grace: Optional[float] = None,
                  min_grade: str = "", **launch: Any) -> Job:
        """Starts a job beside the turns. launch are the options of `Turn.launch`,
        whose streams cannot be descriptors here; output is kept unless they say
        otherwise. max ends it when it is older, in seconds. It is not asked again
        when its answer was lost: see then what `jobs` tells."""
        fds = _Fds()
        for stream in ("stdout", "stderr"):
            launch.setdefault(stream, "spool")
        request = _launch_request(fds, argv, **launch)
        if fds.numbers:
            raise ValueError("a job cannot be given descriptors, for it outlives who passes them: use spool, pty, pipe, bytes or null")
        return Job(self, self._call("POST", "/v1/jobs", _said(
            launch=request, name=name, session=session, labels=labels, limits=limits, max_ms=_ms(max), grace_ms=_ms(grace),
            min_grade=min_grade)))

    def job(self, id: str) -> Job:
        """One job, by its id."""
        return Job(self, self._again(lambda: self._call("GET", f"/v1/jobs/{_id(id)}")))

    def jobs(self, *, session: str = "", turn: str = "", cwd: Optional[Word] = None, all: bool = False) -> List[Job]:
        """The jobs that have not ended, or all that are known, oldest first: of a
        session, made in a turn or given to it, or in a directory or below."""
        where = None if cwd is None else _absolute(cwd, "cwd")
        answer = self._again(lambda: self._call("GET", "/v1/jobs", all="true" if all else "", session=session, turn=turn, cwd=where))
        return [Job(self, j) for j in answer["jobs"]]

    # -- what has ended

    def receipt(self, turn: str) -> Receipt:
        """The receipt of a turn that was ended."""
        return Receipt.of(self._again(lambda: self._call("GET", f"/v1/turns/{_id(turn)}/receipt")))

    def receipts(self, limit: int = 100) -> List[Receipt]:
        """Receipts, newest first."""
        return [Receipt.of(r) for r in self._again(lambda: self._call("GET", "/v1/receipts", limit=limit))["receipts"]]


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _json_headers(body: Optional[bytes]) -> Dict[str, str]:
    return {} if body is None else {"Content-Type": "application/json"}


def _query(said: Mapping[str, Any]) -> str:
    kept = {k: v for k, v in said.items() if v is not None and v != ""}
    return "?" + urllib.parse.urlencode(kept) if kept else ""


def _id(s: str) -> str:
    """An id, as a segment of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", s):
        raise BadRequest(f"{s!r} is not an id")
    return s


def _ms(seconds: Optional[float]) -> Optional[int]:
    """Whole milliseconds, never fewer than was said."""
    return None if seconds is None else max(0, -int(-seconds * 1000 // 1))


def _said(**fields: Any) -> Json:
    """The fields that say something. 0 and [] do; None and "" do not."""
    return {k: v for k, v in fields.items() if v is not None and v != ""}


def _text(s: str, what: str) -> str:
    """A string of the API, which is UTF-8."""
    if not _is_text(s):
        raise ValueError(f"{what} is not UTF-8, as it has to be here: {s!r}")
    if "\0" in s:
        raise ValueError(f"{what} holds a null byte: {s!r}")
    return s


def _absolute(path: Word, what: str) -> str:
    """A path of the API. A blank one is none, and not the current directory."""
    said = os.fsdecode(path)
    if not said:
        raise ValueError(f"{what} is blank")
    return _text(os.path.abspath(said), what)


def _is_text(s: str) -> bool:
    try:
        s.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _start_ticks(pid: int) -> int:
    """Field 22 of /proc/pid/stat, which with the number means one process."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read().rpartition(b")")[2].split()[22 - 3])


def _words(name: str, words: Optional[List[str]]) -> Json:
    """Words of a launch, as text or, where they are not, as bytes."""
    if words is None:
        return {}
    if all(map(_is_text, words)):
        return {name: words}
    return {name + "_b64": [base64.b64encode(os.fsencode(w)).decode() for w in words]}


# ---------------------------------------------------------------- turns


class Turn:
    """One unit of work, and everything that runs for it.

    As a context manager it begins on entering, is finished on leaving, and is
    abandoned on leaving by an exception. `async with` does the same without
    blocking the loop. A turn that was ended meanwhile stays as it is; its
    `receipt` is that of its ending.

    What changes a turn that we began, or took, carries the epoch that it had then:
    once another has taken it, that is StaleEpoch and touches nothing.
    """

    def __init__(self, client: Client, request: Mapping[str, Any], *, on_error: str = "stop") -> None:
        self.client = client
        self.on_error = on_error
        self.id = ""
        self.epoch = 0
        self.grade = ""
        self.info: Json = {}
        self.receipt: Optional[Receipt] = None
        self._request = request
        self._ours = 0  # the epoch in which we are its client

    def __repr__(self) -> str:
        return f"<pinfold.Turn {self.id or 'not begun'} {self.info.get('state', '')}>"

    def _seen(self, info: Json) -> None:
        self.info, self.id, self.epoch, self.grade = info, info["id"], info["epoch"], info["grade"]

    @property
    def _path(self) -> str:
        if not self.id:
            raise ValueError("the turn has not begun: use it as a context manager, or call begin()")
        return f"/v1/turns/{self.id}"

    def begin(self) -> Turn:
        """Opens the turn; once."""
        if self.id:
            raise ValueError(f"turn {self.id} has begun already")
        request = {"idempotency_key": uuid.uuid4().hex, **self._request}
        self._seen(self.client._again(lambda: self.client._call("POST", "/v1/turns", request)))
        self._ours = self.epoch
        return self

    def __enter__(self) -> Turn:
        return self if self.id else self.begin()

    def __exit__(self, kind: Optional[Type[BaseException]], e: Optional[BaseException], tb: object) -> None:
        if self.receipt is not None:
            return
        if kind is None:
            self.finish()
            return
        try:
            self.abandon(self.on_error)
        except StaleEpoch as stale:  # the exception says more to who gets it
            _log.warning("turn %s is another's now, and was not abandoned: %s", self.id, stale)

    async def __aenter__(self) -> Turn:
        return await asyncio.get_running_loop().run_in_executor(None, self.__enter__)

    async def __aexit__(self, kind: Optional[Type[BaseException]], e: Optional[BaseException], tb: object) -> None:
        # Also when the task is cancelled while it waits: an ending goes on.
        end = asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, e, None)
        await asyncio.shield(end)

    def refresh(self) -> Json:
        """Looks at the turn again: state, processes, alive and all."""
        self._seen(self.client._again(lambda: self.client._call("GET", self._path)))
        return self.info

    @property
    def state(self) -> str:
        """open, finishing, ending, finished, abandoned, unkillable or lost, now."""
        state: str = self.refresh()["state"]
        return state

    def tree(self) -> List[Json]:
        """The processes that the turn holds now, descendants included."""
        members: List[Json] = self.client._again(lambda: self.client._call("GET", self._path + "/tree"))["members"]
        return members

    def events(self, *, after: Optional[int] = None, kinds: Iterable[str] = (), follow: bool = False) -> Events:
        """What happened to the turn, in order; see `Client.events`."""
        return self.client.events(after=after, turn=self._path.rpartition("/")[2], kinds=kinds, follow=follow)

    def processes(self) -> List[Process]:
        """What was launched in the turn, oldest first."""
        answer = self.client._again(lambda: self.client._call("GET", self._path + "/processes"))
        return [Process(self, p) for p in answer["processes"]]

    def process(self, id: str) -> Process:
        """One process of the turn, by its id (p1)."""
        return Process(self, self.client._again(lambda: self.client._call("GET", f"{self._path}/processes/{_id(id)}")))

    def wait(self, timeout: Optional[float] = None) -> str:
        """Returns the turn's state once it is over. Raises Timeout."""
        self._seen(_wait(self.client, self._path + "/wait", timeout))
        state: str = self.info["state"]
        return state

    def _change(self, how: str, **body: Any) -> Json:
        """Asks for a change that can be asked for twice."""
        said = _said(epoch=self._ours or None, **body)
        return self.client._again(lambda: self.client._call("POST", f"{self._path}/{how}", said))

    def touch(self) -> List[Json]:
        """Says that the turn is wanted: its lease is renewed, and it is not idle.
        Returns its clocks as they stand."""
        clocks: List[Json] = self._change("touch")["clocks"]
        return clocks

    def freeze(self) -> None:
        """Stops every process of the turn, and its clocks and deadlines."""
        self._seen(self._change("freeze"))

    def thaw(self) -> None:
        """Lets them go on."""
        self._seen(self._change("thaw"))

    def take(self, epoch: int = 0) -> Turn:
        """Makes us the turn's client, under a new epoch: what its client was until
        now is refused from then on. Of several that take it from the same epoch
        one succeeds, and the others get StaleEpoch."""
        self._seen(self.client._call("POST", self._path + "/take", _said(epoch=epoch or None)))
        self._ours = self.epoch
        return self

    def hold(self) -> Hold:
        """Holds a turn that is bound to a connection: we are there while the block,
        of `with` or `async with`, is not left. See `Hold`."""
        return Hold(self)

    def why(self) -> Json:
        """Why the turn is as it is, and what would end it."""
        return self.client._again(lambda: self.client._call("GET", self._path + "/why"))

    def plan(self, reason: str = "stop", *, grace: Optional[float] = None, leftovers: bool = False, jobs: bool = False) -> Json:
        """What `abandon` would do now: which processes, on what evidence, and which
        of them others use. Nothing is touched."""
        body = _said(reason=reason, grace_ms=_ms(grace), leftovers=leftovers or None, jobs=jobs or None)
        return self.client._again(lambda: self.client._call("POST", self._path + "/plan", body))

    def jobs(self, *, all: bool = False) -> List[Job]:
        """The jobs that were made of its processes, or given to it."""
        return self.client.jobs(turn=self._path.rpartition("/")[2], all=all)

    def finish(self, *, leftovers: str = "", grace: Optional[float] = None) -> Receipt:
        """The work is done. What still runs is kept, held and listed, or ended,
        by the turn's policy or as `leftovers` (keep, reap) says. Of several
        endings the first stands, and all get its receipt."""
        return self._end("finish", _said(leftovers=leftovers, grace_ms=_ms(grace)))

    def abandon(self, reason: str = "stop", *, grace: Optional[float] = None, leftovers: bool = False, jobs: bool = False) -> Receipt:
        """Ends every process of the turn, and nothing else. grace: seconds
        between TERM and KILL, 0 for none. leftovers: also end what a finished
        turn left running. jobs: also its jobs. Reasons: stop, superseded, idle, wall, client_gone,
        lease_expired, limit, operator."""
        return self._end("abandon", _said(reason=reason, grace_ms=_ms(grace), leftovers=leftovers or None, jobs=jobs or None))

    def _end(self, how: str, body: Json) -> Receipt:
        # The service bounds an ending: a grace, and then a few seconds.
        asked = max(body.get("grace_ms") or 0, self._request.get("grace_ms") or 0) / 1000
        body.update(_said(epoch=self._ours or None))
        answer = self.client._again(lambda: self.client._call("POST", f"{self._path}/{how}", body, timeout=asked + 120))
        self.receipt = Receipt.of(answer)
        if not self.receipt.complete:
            _log.warning("turn %s is %s and its receipt is not complete: %s", self.id, self.receipt.state,
                         self.receipt.counts)
        return self.receipt

    # -- launching

    def launch(self, argv: Args, *, env: Env = None, env_add: Env = None, cwd: Optional[Word] = None, cwd_policy: str = "",
               stdin: Stream = "null", stdout: Stream = "null", stderr: Stream = "null",
               pty: Optional[Tuple[int, int]] = None, user: Union[None, str, int] = None,
               group: Union[None, str, int] = None, groups: Optional[Iterable[Union[str, int]]] = None,
               umask: Optional[int] = None, rlimits: Optional[Mapping[str, Tuple[int, int]]] = None,
               nice: Optional[int] = None, oom_score_adj: Optional[int] = None, no_new_privs: bool = False,
               pass_fds: Union[Iterable[int], Mapping[int, int]] = (), stop_signal: str = "",
               deadline: Optional[float] = None, labels: Optional[Mapping[str, str]] = None,
               idempotency_key: str = "", **more: Any) -> Process:
        """Starts a process in the turn. Every option is the API's.

        env is exact; without it the process gets the service's base (PATH,
        HOME, USER, …), and env_add lays variables over either (None as a value
        removes one). A stream is a mode (null, spool, pty, pipe for stdin,
        stdout for stderr), a mapping with a mode and its options
        ({"mode": "spool", "max_bytes": 1 << 20}), a file or descriptor to pass
        on, or, for stdin, bytes. pty is (rows, columns). rlimits are
        {"nofile": (soft, hard)}, -1 for unlimited. pass_fds keep their numbers,
        or are {number in the child: descriptor}. deadline is in seconds. With
        the same idempotency_key the same request launches once only. Without one
        each call has its own, so that it can be asked again when an answer was
        lost. more: any other field of the LaunchRequest.
        """
        fds = _Fds()
        body = _launch_request(
            fds, argv, env=env, env_add=env_add, cwd=cwd, cwd_policy=cwd_policy, stdin=stdin, stdout=stdout, stderr=stderr, pty=pty, user=user,
            group=group, groups=groups, umask=umask, rlimits=rlimits, nice=nice, oom_score_adj=oom_score_adj, no_new_privs=no_new_privs,
            pass_fds=pass_fds, stop_signal=stop_signal, deadline=deadline, labels=labels, idempotency_key=idempotency_key, **more)
        return self._launch(body, fds)

    def adopt(self, pid: int, *, tree: bool = False, ancestor: bool = False, min_grade: str = "", stop_signal: str = "",
              labels: Optional[Mapping[str, str]] = None, idempotency_key: str = "") -> Process:
        """Takes a process that runs already into the turn; it stays its parent's
        child, keeps its streams, and ends with the turn.

        tree: with its descendants, as far as their parents live. ancestor: even if
        it is an ancestor of ours, or we. min_grade: "token" holds what cannot be
        moved by its identity alone; then what it forks is not held. Raises
        AdoptRefused. The process is opened once, here: whoever gets its number
        later is not meant.
        """
        body = _said(tree=tree or None, ancestor=ancestor or None, min_grade=min_grade, stop_signal=stop_signal,
                     labels=dict(labels) if labels else None, idempotency_key=idempotency_key)
        self._fence(body)
        fds: List[int] = []
        try:
            if hasattr(os, "pidfd_open"):
                fds.append(os.pidfd_open(pid))  # Python 3.9
            else:
                body["process"] = {"pid": pid, "start_ticks": _start_ticks(pid)}
            return Process(self, self.client._again(lambda: self.client._call("POST", self._path + "/adopt", body, fds=fds)))
        finally:
            for fd in fds:
                os.close(fd)

    def _launch(self, body: Json, fds: _Fds) -> Process:
        self._fence(body)
        return Process(self, self.client._again(
            lambda: self.client._call("POST", self._path + "/processes", body, fds=fds.numbers)))

    def _fence(self, body: Json) -> None:
        """What every launch says: its own key, and the epoch."""
        body.setdefault("idempotency_key", uuid.uuid4().hex)
        if self._ours:
            body.setdefault("epoch", self._ours)

    def Popen(self, args: Args, bufsize: int = -1, executable: Optional[Word] = None, **options: Any) -> Popen:
        """subprocess.Popen, in the turn. See `Popen`."""
        return Popen(args, bufsize, executable, turn=self, **options)

    def run(self, args: Args, *, input: Any = None, capture_output: bool = False, timeout: Optional[float] = None,
            check: bool = False, drain: Optional[float] = None, **options: Any) -> CompletedProcess[Any]:
        """subprocess.run, in the turn. drain is `Popen.communicate`'s."""
        if input is not None:
            if options.get("stdin") is not None:
                raise ValueError("stdin and input arguments may not both be used.")
            options["stdin"] = PIPE
        if capture_output:
            if options.get("stdout") is not None or options.get("stderr") is not None:
                raise ValueError("stdout and stderr arguments may not be used with capture_output.")
            options["stdout"] = options["stderr"] = PIPE
        with self.Popen(args, **options) as p:
            try:
                out, err = p.communicate(input, timeout=timeout, drain=drain)
            except BaseException:
                p.kill()
                raise  # leaving the block waits for it
            code = p.wait()
        if check and code:
            raise CalledProcessError(code, p.args, output=out, stderr=err)
        return CompletedProcess(p.args, code, out, err)

    def call(self, args: Args, *, timeout: Optional[float] = None, **options: Any) -> int:
        """subprocess.call, in the turn."""
        with self.Popen(args, **options) as p:
            try:
                return p.wait(timeout=timeout)
            except BaseException:
                p.kill()
                raise

    def check_call(self, args: Args, *, timeout: Optional[float] = None, **options: Any) -> int:
        """subprocess.check_call, in the turn."""
        code = self.call(args, timeout=timeout, **options)
        if code:
            raise CalledProcessError(code, args)
        return 0

    def check_output(self, args: Args, *, timeout: Optional[float] = None, **options: Any) -> Any:
        """subprocess.check_output, in the turn."""
        if "stdout" in options or "check" in options:
            raise ValueError("stdout and check arguments not allowed, they will be overridden.")
        return self.run(args, stdout=PIPE, timeout=timeout, check=True, **options).stdout

    async def create_subprocess_exec(self, program: Word, *args: Word, stdin: Stream = None, stdout: Stream = None,
                                     stderr: Stream = None, limit: int = 1 << 16, **options: Any) -> AsyncProcess:
        """asyncio.create_subprocess_exec, in the turn."""
        return await AsyncProcess._start(self, [program, *args], stdin, stdout, stderr, limit, options)

    async def create_subprocess_shell(self, cmd: Word, stdin: Stream = None, stdout: Stream = None,
                                      stderr: Stream = None, limit: int = 1 << 16, **options: Any) -> AsyncProcess:
        """asyncio.create_subprocess_shell, in the turn."""
        return await AsyncProcess._start(self, cmd, stdin, stdout, stderr, limit, dict(options, shell=True))


def run(args: Args, *, client: Optional[Client] = None, leftovers: str = "reap", label: str = "",
        **options: Any) -> CompletedProcess[Any]:
    """subprocess.run, in a turn of its own: what the command leaves running is
    ended too. options are those of `Turn.run`."""
    with (client or Client()).turn(leftovers=leftovers, label=label) as turn:
        return turn.run(args, **options)


def _wait(client: Client, path: str, timeout: Optional[float]) -> Json:
    """A wait that outlasts a restart of the service; raises Timeout."""
    end = None if timeout is None else time.monotonic() + timeout

    def ask() -> Json:
        left = None if end is None else max(0.0, end - time.monotonic())
        return client._call("GET", path, timeout=None if left is None else left + client.timeout, timeout_ms=_ms(left))

    return client._again(ask)


# ---------------------------------------------------------------- processes


class Process:
    """A process that was launched in a turn, by its id. `pid` is for people:
    signals go through the service, which knows a process from a number."""

    def __init__(self, turn: Turn, info: Json) -> None:
        self.turn = turn
        self.info = info
        self.id: str = info["id"]
        self.pid: int = info["pid"]

    def __repr__(self) -> str:
        return f"<pinfold.Process {self.id} of turn {self.turn.id}: {self.status.state}>"

    @property
    def _path(self) -> str:
        return f"{self.turn._path}/processes/{self.id}"

    @property
    def status(self) -> Status:
        """Its status when it was last looked at."""
        return Status.of(self.info["status"])

    def refresh(self) -> Status:
        """Its status now."""
        if self.status.running:
            self.info = self.turn.client._again(lambda: self.turn.client._call("GET", self._path))
        return self.status

    def wait(self, timeout: Optional[float] = None) -> Status:
        """Its status once it has ended, whoever still holds its pipes. Raises
        Timeout."""
        if self.status.running:
            self.info = _wait(self.turn.client, self._path + "/wait", timeout)
        return self.status

    def _watch(self) -> _Connection:
        """A connection that gets something to read when the process has ended,
        or the service goes away."""
        client = self.turn.client

        def ask() -> _Connection:
            c = client._take(None)
            try:
                c.request("GET", self._path + "/wait")
            except OSError as e:
                c.close()
                raise _unreachable(client.socket, e, False) from e
            return c

        return client._again(ask)

    def signal(self, sig: Union[int, str]) -> str:
        """Sends a signal. Returns the verdict: owned (sent), gone (it had
        ended), foreign or unverifiable (not sent)."""
        sig = str(int(sig)) if isinstance(sig, int) else sig
        body = _said(signal=sig, epoch=self.turn._ours or None)
        verdict: str = self.turn.client._call("POST", self._path + "/signal", body)["verdict"]
        return verdict

    def end(self, *, grace: Optional[float] = None, descendants_only: bool = False, dry_run: bool = False) -> Ended:
        """Ends it with all that it has forked, or with descendants_only all but
        itself: a shell that keeps its directory and environment while its command
        goes. The turn goes on. dry_run tells what it would do."""
        body = _said(grace_ms=_ms(grace), descendants_only=descendants_only or None, dry_run=dry_run or None, epoch=self.turn._ours or None)
        return Ended.of(self.turn.client._again(
            lambda: self.turn.client._call("POST", self._path + "/end", body, timeout=(grace or 0) + 2 * self.turn.client.timeout)))

    def promote(self, *, pid: int = 0, name: str = "", session: Optional[str] = None, labels: Optional[Mapping[str, str]] = None,
                max: Optional[float] = None) -> Job:
        """Makes a job of it, with all that it has forked, or, with pid, of one of
        its descendants with its own. It keeps its output, its terminal and its exit
        status, and outlives the turn. session: the turn's own, unless it says
        another. max: seconds after which the job is ended."""
        return Job(self.turn.client, self.turn.client._again(lambda: self.turn.client._call(
            "POST", self._path + "/promote", _promotion(self.turn, pid, name, session, labels, max))))

    def write(self, data: bytes, *, close: bool = False) -> None:
        """Writes to its stdin, of mode pipe or pty. Returns when all is taken,
        which can be as long as the process does not read. close: no more will
        follow."""
        query = _query({"close": "true" if close else "", "epoch": self.turn._ours or None})
        self.turn.client._raw("POST", self._path + "/stdin" + query, data,
                              {"Content-Type": "application/octet-stream"}, timeout=None)

    def close_stdin(self) -> None:
        """Says that no more input will follow."""
        self.write(b"", close=True)

    def resize(self, rows: int, cols: int) -> Tuple[int, int]:
        """Gives its terminal another size. Returns the one that it has now."""
        size: Dict[str, int] = self.turn.client._call("POST", self._path + "/resize", {"rows": rows, "cols": cols})
        return size["rows"], size["cols"]

    def ack(self) -> None:
        """Says that its exit was taken note of; until then the service keeps
        status and output, for a while."""
        self.info = self.turn.client._again(lambda: self.turn.client._call("POST", self._path + "/ack", {}))

    def output(self, stream: str = "stdout", offset: int = 0) -> Output:
        """What it wrote, where that is kept (modes spool and pty)."""
        return Output(self, stream, offset)


def _promotion(turn: Turn, pid: int, name: str, session: Optional[str], labels: Optional[Mapping[str, str]], max: Optional[float]) -> Json:
    body = _said(pid=pid or None, name=name, labels=labels, max_ms=_ms(max), epoch=turn._ours or None)
    if session is not None:  # "" is none
        body["session"] = session
    return body


class Job:
    """A process, with all that it has forked, that outlives turns, by its id.
    `process` is the launch: its output, stdin, signals and exit status are there,
    also when its turn is over. Closing this program does not end a job."""

    def __init__(self, client: Client, info: Json) -> None:
        self.client = client
        self.id: str = info["id"]
        self._seen(info)

    def __repr__(self) -> str:
        return f"<pinfold.Job {self.id} {self.name or self.info['argv']}: {self.info['state']}>"

    def _seen(self, info: Json) -> None:
        self.info = info
        self.name: str = info.get("name", "")
        self.session: str = info.get("session", "")

    @property
    def process(self) -> Process:
        """The launched process."""
        turn = Turn(self.client, {})
        turn.id = self.info["turn"]
        return Process(turn, {"id": self.info["process"], "pid": self.info["pid"], "status": self.info["status"]})

    @property
    def status(self) -> Status:
        """The process's status when the job was last looked at."""
        return Status.of(self.info["status"])

    def refresh(self) -> Json:
        """Looks at it again: state, status, alive, clocks and all."""
        self._seen(self.client._again(lambda: self.client._call("GET", f"/v1/jobs/{self.id}")))
        return self.info

    @property
    def state(self) -> str:
        """running, lingering (the process has ended, and something that it forked
        runs on) or ended, now."""
        state: str = self.refresh()["state"]
        return state

    def wait(self, timeout: Optional[float] = None) -> Status:
        """The process's status once nothing of the job runs any more. Raises
        Timeout."""
        self._seen(_wait(self.client, f"/v1/jobs/{self.id}/wait", timeout))
        return self.status

    def stop(self, *, grace: Optional[float] = None, reason: str = "") -> Status:
        """Ends every process of the job, and nothing else."""
        body = _said(grace_ms=_ms(grace), reason=reason)
        self._seen(self.client._again(lambda: self.client._call(
            "POST", f"/v1/jobs/{self.id}/stop", body, timeout=(grace or 0) + 2 * self.client.timeout)))
        if self.info.get("survivors"):
            _log.warning("job %s was to end and something of it survives: %s", self.id, self.info["survivors"])
        return self.status

    def give(self, *, session: Optional[str] = None, turn: str = "") -> None:
        """Gives it to another session, or to that of another turn, with which it is
        listed then. Nothing of it is touched."""
        body = _said(turn=turn)
        if session is not None:
            body["session"] = session
        self._seen(self.client._again(lambda: self.client._call("POST", f"/v1/jobs/{self.id}/transfer", body)))

    def output(self, stream: str = "stdout", offset: int = 0) -> Output:
        """What it wrote, where that is kept."""
        return self.process.output(stream, offset)

    def signal(self, sig: Union[int, str]) -> str:
        """Sends a signal to the process; see `Process.signal`."""
        return self.process.signal(sig)

    def write(self, data: bytes, *, close: bool = False) -> None:
        """Writes to its stdin; see `Process.write`."""
        self.process.write(data, close=close)


class Hold:
    """A turn that is held: its client is there from entering the block until it is
    left, or this process is gone. A thread holds it again when the service was
    away. `wait` returns the turn's state once it is over; when another has taken
    it, it raises StaleEpoch. Use it with `with`, `async with`, or open and close."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.state = ""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._connection: Optional[_Connection] = None
        self._error: Optional[BaseException] = None

    def open(self) -> Hold:
        """Returns once the turn is held."""
        lines = self.turn.client._again(self._ask)
        threading.Thread(target=self._follow, args=(lines,), name=f"pinfold hold {self.turn.id}", daemon=True).start()
        return self

    def close(self) -> None:
        """Lets the turn go."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.sock.shutdown(_socket.SHUT_RDWR)  # the thread that reads it closes it

    def wait(self, timeout: Optional[float] = None) -> str:
        """The turn's state once it is over. Raises Timeout, StaleEpoch, and
        Unavailable when the service stays away, or the hold was closed."""
        if not self._over.wait(timeout):
            raise Timeout(f"no end of turn {self.turn.id} was seen within {timeout} s")
        if self._error is not None:
            raise self._error
        return self.state

    @property
    def over(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._over.is_set()

    def __enter__(self) -> Hold:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Hold:
        return await asyncio.get_running_loop().run_in_executor(None, self.open)

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> http.client.HTTPResponse:
        client, query = self.turn.client, _query({"epoch": self.turn._ours or None})
        c, answer = client._open("GET", f"{self.turn._path}/hold{query}", None, {"Accept": "application/x-ndjson"}, (), client.timeout)
        try:
            if answer.status >= 400:
                raise _error(answer.status, answer.read())
            first = answer.readline()
        except BaseException as e:
            c.close()
            if isinstance(e, (OSError, http.client.HTTPException)) and not isinstance(e, PinfoldError):
                raise _unreachable(client.socket, e, True) from e
            raise
        with self._lock:
            if first and not self._closed:
                c.sock.settimeout(None)
                self._connection = c
                return answer
        c.close()
        raise Unavailable("the connection that holds the turn was lost" if not self._closed else "it is not held any more")

    def _follow(self, answer: http.client.HTTPResponse) -> None:
        try:
            while True:
                last = self._last(answer)
                if last is not None:
                    self.state = last.get("state", "")
                    if "error" not in last:
                        return
                    e = _error(0, json.dumps(last["error"]).encode())
                    if not isinstance(e, Unavailable):
                        raise e
                if self._closed:
                    raise Unavailable("it is not held any more")
                try:
                    answer = self.turn.client._again(self._ask)
                except TurnOver:  # its ending began while the service was away
                    self.state = _wait(self.turn.client, self.turn._path + "/wait", None)["state"]
                    return
        except BaseException as e:
            self._error = e
        finally:
            self._over.set()

    def _last(self, answer: http.client.HTTPResponse) -> Optional[Json]:
        """The last line; None when the connection was lost."""
        try:
            for line in answer:
                said: Json = json.loads(line)
                if said:
                    return said
        except (OSError, http.client.HTTPException, ValueError) as e:
            _log.debug("turn %s: the connection that holds it was lost: %r", self.turn.id, e)
        finally:
            answer.close()
            with self._lock:
                c, self._connection = self._connection, None
            if c is not None:
                c.close()
        return None


class Output:
    """A reader of a process's output. Bytes have numbers, from 0, which never
    change; several readers do not disturb each other.

    Iterating follows: it yields bytes and, where some were not kept, a Gap. It
    goes on where it was after a restart of the service. `offset` is where the
    next byte comes from; `status` is the process's, once it has been seen ended.
    """

    def __init__(self, process: Process, stream: str, offset: int) -> None:
        self.process = process
        self.stream = stream
        self.offset = offset
        self.status: Optional[Status] = None
        self._total = self._dropped = 0

    def read(self, offset: Optional[int] = None, limit: Optional[int] = None) -> Slice:
        """What is there from offset on (default: where this reader is), at most
        limit bytes. Does not wait."""
        at = self.offset if offset is None else offset
        s = self._read(offset=at, limit=limit)
        self.offset = s.next_offset
        return s

    def tail(self, n: int) -> Slice:
        """The last n bytes. Leaves the reader behind them."""
        s = self._read(tail=n)
        self.offset = s.next_offset
        return s

    def follow(self, offset: Optional[int] = None, *, drain: Optional[float] = None) -> Iterator[Union[bytes, Gap]]:
        """Yields what is there and what comes, until the stream's end: that is,
        until nobody holds it any more. With drain, no longer than that many
        seconds after the process's end."""
        if offset is not None:
            self.offset = offset
        query: Dict[str, Any] = {"follow": "true", "drain_ms": _ms(drain)}
        empty = 0
        while True:
            at = self.offset
            lines = self.process.turn.client._again(lambda: self._lines(offset=self.offset, **query))
            asked = time.monotonic()
            last: Json = {}
            try:
                for last in lines:
                    piece = self._piece(last)
                    if piece is not None:
                        yield piece
            except (OSError, http.client.HTTPException, ValueError) as e:
                _log.debug("following again from %d: %r", self.offset, e)
            finally:
                lines.close()
            # Without a last line that says next, the answer was cut off.
            if "next" in last and (last.get("eof") or drain is not None and "exit" in last):
                return
            # Nor is there an end when nobody keeps the stream any more: of a process
            # that is over, nothing, at once and twice, is the last. Once can be the service's end.
            nothing = self.offset == at and time.monotonic() - asked < 1
            empty = empty + 1 if nothing and "next" in last and "exit" in last else 0
            if empty > 1:
                return
            if self.offset == at:
                time.sleep(0.05)

    def __iter__(self) -> Iterator[Union[bytes, Gap]]:
        return self.follow()

    def _lines(self, **query: Any) -> Generator[Json, None, None]:
        """Opens an answer of lines of JSON; a generator whose request is made."""
        lines, headers = self.process.turn.client._lines(f"{self.process._path}/output", stream=self.stream, **query)
        self._total, self._dropped = (int(headers.get("Pinfold-" + h) or 0) for h in ("Total", "Dropped"))
        return lines

    def _piece(self, line: Json) -> Union[bytes, Gap, None]:
        if "exit" in line:
            self.status = Status.of(line["exit"])
        if "error" in line:
            raise _error(0, json.dumps(line["error"]).encode())
        if "gap" in line:
            gap = Gap(line["gap"]["from"], line["gap"]["to"], line["gap"].get("reason", "unknown"))
            self.offset = gap.end
            return gap
        if "next" in line:
            self.offset = line["next"]
        if "data" not in line:
            return None
        data = base64.b64decode(line["data"])
        self.offset = line["offset"] + len(data)
        return data

    def _read(self, **query: Any) -> Slice:
        def ask() -> Slice:
            reader = Output(self.process, self.stream, query.get("offset") or 0)
            data: List[bytes] = []
            gaps: List[Gap] = []
            line: Json = {}
            start: Optional[int] = None
            for line in reader._lines(**query):
                piece = reader._piece(line)
                if isinstance(piece, Gap):
                    gaps.append(piece)
                elif piece:
                    data.append(piece)
                    start = line["offset"] if start is None else start
            if "next" not in line:
                raise Unavailable(f"the service at {self.process.turn.client.socket} stopped in the middle of an answer")
            self.status = reader.status or self.status
            return Slice(b"".join(data), reader.offset if start is None else start, reader.offset, gaps, reader._total,
                         reader._dropped)

        return self.process.turn.client._again(ask)


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Event:
    """One thing that happened. `seq` is its number; `raw` is all that the service
    says. `stopped`: the turn was being ended, or had ended: nothing that waits for
    it is to be woken. Of kind gap: what was up to seq is not kept."""

    seq: int
    kind: str
    turn: str
    process: str
    stopped: bool
    raw: Json = field(repr=False)
    job: str = ""

    @classmethod
    def of(cls, raw: Json) -> Event:
        return cls(raw["seq"], raw["kind"], raw.get("turn", ""), raw.get("process", ""), raw.get("stopped", False), raw, raw.get("job", ""))

    @property
    def status(self) -> Optional[Status]:
        """How the process ended, of an exit."""
        return Status.of(self.raw["status"]) if "status" in self.raw else None


class Events:
    """Iterating yields events, in order; with follow also those to come, across
    restarts of the service. `after` is the number of the last that was yielded, or
    passed over: whoever keeps it can go on there. What is not kept any more is an
    event of kind gap, whatever was asked for."""

    def __init__(self, client: Client, after: Optional[int], query: Json, follow: bool) -> None:
        self.client = client
        self.after = after
        self.follow = follow
        self._query = query

    def __iter__(self) -> Iterator[Event]:
        if self.after == -1:  # so that it can be gone on with, even when nothing comes
            for line in self._open(False):
                self.after = line.get("next", self.after)
            if not self.follow:
                return
        while True:
            lines = self.client._again(lambda: self._open(self.follow))
            whole = False
            try:
                for line in lines:
                    if "error" in line:
                        raise _error(0, json.dumps(line["error"]).encode())
                    whole = "next" in line
                    event = Event.of(line["event"]) if "event" in line else None
                    at = event.seq if event else line.get("next")
                    if at is not None:
                        self.after = at
                        self._query.pop("consumer", None)
                    if event:
                        yield event
            except (OSError, http.client.HTTPException, ValueError) as e:
                _log.debug("reading events again after %s: %r", self.after, e)
            finally:
                lines.close()
            if whole and not self.follow:
                return

    def _open(self, follow: bool) -> Generator[Json, None, None]:
        return self.client._lines("/v1/events", after=self.after, follow="true" if follow else "", **self._query)[0]


# ---------------------------------------------------------------- what a launch needs


def _launch_request(fds: _Fds, argv: Args, *, env: Env = None, env_add: Env = None, cwd: Optional[Word] = None, cwd_policy: str = "",
                    stdin: Stream = "null", stdout: Stream = "null", stderr: Stream = "null", pty: Optional[Tuple[int, int]] = None,
                    user: Union[None, str, int] = None, group: Union[None, str, int] = None,
                    groups: Optional[Iterable[Union[str, int]]] = None, umask: Optional[int] = None,
                    rlimits: Optional[Mapping[str, Tuple[int, int]]] = None, nice: Optional[int] = None,
                    oom_score_adj: Optional[int] = None, no_new_privs: bool = False,
                    pass_fds: Union[Iterable[int], Mapping[int, int]] = (), stop_signal: str = "", deadline: Optional[float] = None,
                    labels: Optional[Mapping[str, str]] = None, idempotency_key: str = "", **more: Any) -> Json:
    """The request of `Turn.launch`, and the descriptors that go along with it."""
    streams = {"stdin": fds.stream(stdin), "stdout": fds.stream(stdout), "stderr": fds.stream(stderr)}
    if pty is not None:
        streams["pty"] = {"rows": pty[0], "cols": pty[1]}
    return _said(
        **_words("argv", _argv(argv)), **_words("env", None if env is None else _environ(env)),
        env_add=None if env_add is None else _overlay(env_add), stdio=streams,
        cwd=None if cwd is None else _absolute(cwd, "cwd"), cwd_policy=cwd_policy,
        user=_name(user), group=_name(group), groups=None if groups is None else [_name(g) for g in groups],
        umask=None if umask is None else f"{umask:04o}", nice=nice, oom_score_adj=oom_score_adj,
        rlimits={k: {"soft": v[0], "hard": v[1]} for k, v in rlimits.items()} if rlimits else None,
        no_new_privs=no_new_privs or None, pass_fds=fds.extra(pass_fds), stop_signal=stop_signal,
        deadline_ms=_ms(deadline), labels=labels, idempotency_key=idempotency_key, **more)


class _Fds:
    """The descriptors that go along with a launch."""

    def __init__(self) -> None:
        self.numbers: List[int] = []

    def add(self, fd: int) -> Json:
        if fd not in self.numbers:
            self.numbers.append(fd)
        return {"mode": "pass", "fd": self.numbers.index(fd)}

    def stream(self, s: Stream) -> Json:
        """A stream of `Turn.launch`, as the API has it."""
        if s is None or s == DEVNULL:
            return {"mode": "null"}
        if isinstance(s, str):
            return {"mode": s}
        if isinstance(s, (bytes, bytearray)):
            return {"mode": "data", "data": base64.b64encode(s).decode()}
        if isinstance(s, Mapping):
            return dict(s)
        if s in (PIPE, STDOUT):
            raise ValueError("PIPE and STDOUT are for Popen; here use a mode, such as 'spool', or a descriptor")
        return self.add(s if isinstance(s, int) else s.fileno())

    def extra(self, pass_fds: Union[Iterable[int], Mapping[int, int]]) -> Optional[List[Json]]:
        wanted = dict(pass_fds) if isinstance(pass_fds, Mapping) else {fd: fd for fd in pass_fds}
        return [{"fd": self.add(fd)["fd"], "number": number} for number, fd in sorted(wanted.items())] or None


def _argv(args: Args) -> List[str]:
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    if not words:
        raise ValueError("args is empty: give the program and its arguments")
    return [_word(os.fsdecode(w), "an argument") for w in words]


def _word(s: str, what: str) -> str:
    if "\0" in s:
        raise ValueError(f"embedded null byte in {what}: {s!r}")
    return s


def _environ(env: Mapping[Any, Any]) -> List[str]:
    """A mapping as NAME=value."""
    words = []
    for k, v in env.items():
        name, value = os.fsdecode(k), os.fsdecode(v)
        if not name or "=" in name:
            raise ValueError(f"illegal environment variable name: {name!r}")
        words.append(f"{_word(name, 'a variable name')}={_word(value, f'the variable {name}')}")
    return words


def _overlay(env: Mapping[Any, Any]) -> List[str]:
    words = _environ({k: v for k, v in env.items() if v is not None}) + [os.fsdecode(k) for k, v in env.items() if v is None]
    return [_text(w, "a variable of env_add") for w in words]


def _name(who: Union[None, str, int]) -> Optional[str]:
    """A user or group: its name, or its number."""
    if who is None:
        return None
    if isinstance(who, bool) or not isinstance(who, (str, int)):
        raise TypeError(f"a user or group is a string or an integer, not {type(who)}")
    if isinstance(who, int) and who < 0:
        raise ValueError(f"a user or group id cannot be negative, got {who}")
    return str(who)


def _own_umask() -> Optional[int]:
    """Our umask, read without changing it (proc(5), Linux 4.7)."""
    try:
        with open("/proc/self/status", "rb") as f:
            for line in f:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return None


_REFUSED = {
    "preexec_fn": "nothing of ours runs in the child; say what it did with umask, rlimits, nice, user, or a wrapper program",
    "startupinfo": "it is for Windows",
    "creationflags": "it is for Windows",
}


class _Plan:
    """A launch with subprocess's options: request, descriptors, and our ends of
    its pipes."""

    def __init__(self, args: Args, executable: Optional[Word], stdin: Stream, stdout: Stream, stderr: Stream, *,
                 shell: bool = False, cwd: Optional[Word] = None, env: Env = None, close_fds: bool = True,
                 restore_signals: bool = True, start_new_session: bool = True, pass_fds: Iterable[int] = (),
                 user: Union[None, str, int] = None, group: Union[None, str, int] = None,
                 extra_groups: Optional[Iterable[Union[str, int]]] = None, umask: int = -1, pipesize: int = -1,
                 process_group: Optional[int] = None, **more: Any) -> None:
        for name, why in _REFUSED.items():
            if more.pop(name, None):
                raise ValueError(f"{name} cannot be had: {why}")
        if not close_fds:
            raise ValueError("close_fds=False cannot be had: the process is not our child; name descriptors with pass_fds")
        if not restore_signals:
            raise ValueError("restore_signals=False cannot be had: a process starts with default signal dispositions")
        if process_group not in (None, -1, 0):
            raise ValueError("process_group can only be 0: a process leads a session and a group of its own")
        del start_new_session  # it always has one
        self.ours: Dict[str, int] = {}  # stream → our end of its pipe
        self._theirs: List[int] = []
        self._cwd, self._pipesize = cwd, pipesize
        self.fds = _Fds()
        self.argv = _popen_argv(args, executable, shell)
        where = os.getcwd() if cwd is None else os.path.abspath(os.fsdecode(cwd))
        mask = _own_umask() if umask < 0 else umask
        try:
            out = self._stream("stdout", stdout)
            streams = {"stdin": self._stream("stdin", stdin), "stdout": out,
                       "stderr": out if stderr == STDOUT else self._stream("stderr", stderr)}
            self.body = _said(
                **_words("argv", self.argv), **_words("env", _environ(os.environ if env is None else env)),
                cwd=_text(where, "cwd"), stdio=streams,
                user=_name(user), group=_name(group), groups=None if extra_groups is None else [_name(g) for g in extra_groups],
                umask=None if mask in (None, 0o022) else f"{mask:04o}", pass_fds=self.fds.extra(pass_fds),
                deadline_ms=_ms(more.pop("deadline", None)), **more)
        except BaseException:
            self.close()
            raise

    def _stream(self, name: str, s: Stream) -> Json:
        if s is None:
            fd = ("stdin", "stdout", "stderr").index(name)
            try:
                os.fstat(fd)
            except OSError:  # we have none to pass on
                return {"mode": "null"}
            return self.fds.add(fd)
        if s == PIPE and not isinstance(s, (bytes, bytearray)):
            r, w = os.pipe()
            ours, theirs = (w, r) if name == "stdin" else (r, w)
            self.ours[name] = ours
            self._theirs.append(theirs)
            if self._pipesize > 0:
                import fcntl
                fcntl.fcntl(w, getattr(fcntl, "F_SETPIPE_SZ", 1031), self._pipesize)
            return self.fds.add(theirs)
        if s == STDOUT:
            raise ValueError("STDOUT can only be used for stderr")
        return self.fds.stream(s)

    def close_theirs(self) -> None:
        """Closes the child's ends: they are its own now, or nobody's."""
        theirs, self._theirs = self._theirs, []
        for fd in theirs:
            os.close(fd)

    def close(self) -> None:
        self.close_theirs()
        ours, self.ours = self.ours, {}
        for fd in ours.values():
            os.close(fd)

    def settle(self, e: PinfoldError) -> None:
        """Gives an error the file name that subprocess would."""
        if isinstance(e, ExecFailed):
            e.filename = self.argv[0]
        elif isinstance(e, LaunchRefused) and e.details.get("step") == "cwd":
            e.filename = None if self._cwd is None else os.fspath(self._cwd)


def _popen_argv(args: Args, executable: Optional[Word], shell: bool) -> List[str]:
    argv = _argv(args)
    if shell:
        return ["/bin/sh" if executable is None else os.fsdecode(executable), "-c", *argv]
    if executable is not None and os.fsdecode(executable) != argv[0]:
        raise ValueError("executable cannot differ from args[0]: name the program there (with shell=True it names the shell)")
    return argv


# ---------------------------------------------------------------- subprocess


class Popen:
    """subprocess.Popen, for a process in a turn.

    The arguments are those of subprocess, and beside them every field of the
    API's LaunchRequest (labels, deadline, stop_signal, nice, …). A stream may
    also be "spool": then the service keeps it, and `process.output()` reads it.
    What cannot be had (preexec_fn, close_fds=False, …) is a ValueError that
    says what to do instead.
    """

    def __init__(self, args: Args, bufsize: int = -1, executable: Optional[Word] = None, stdin: Stream = None,
                 stdout: Stream = None, stderr: Stream = None, *, turn: Turn, universal_newlines: Optional[bool] = None,
                 text: Optional[bool] = None, encoding: Optional[str] = None, errors: Optional[str] = None,
                 **options: Any) -> None:
        if bufsize is None:
            bufsize = -1
        if not isinstance(bufsize, int):
            raise TypeError("bufsize must be an integer")
        if text is not None and universal_newlines is not None and bool(text) != bool(universal_newlines):
            raise SubprocessError("Cannot disambiguate when both text and universal_newlines are supplied but different. "
                                  "Pass one or the other.")
        self.args = args
        self.stdin: Optional[IO[Any]] = None
        self.stdout: Optional[IO[Any]] = None
        self.stderr: Optional[IO[Any]] = None
        self.returncode: Optional[int] = None
        self.text_mode = bool(encoding or errors or text or universal_newlines)
        self.encoding = encoding or (locale.getpreferredencoding(False) if self.text_mode else None)
        self.errors = errors
        self._input: Optional[memoryview] = None
        self._chunks: Dict[str, List[bytes]] = {}
        self._communicating = False
        self._promoted = False
        plan = _Plan(args, executable, stdin, stdout, stderr, **options)
        try:
            self._wrap(plan, bufsize)
            self.process = turn._launch(plan.body, plan.fds)
        except BaseException as e:
            for f in (self.stdin, self.stdout, self.stderr):
                if f is not None:
                    f.close()
            plan.close()
            if isinstance(e, PinfoldError):
                plan.settle(e)
            raise
        plan.close_theirs()
        self.pid = self.process.pid

    def _wrap(self, plan: _Plan, bufsize: int) -> None:
        """Makes files of our ends of the pipes."""
        line = self.text_mode and bufsize == 1
        size = -1 if line else bufsize
        for name in list(plan.ours):
            fd = plan.ours[name]
            f: Any = io.open(fd, "wb" if name == "stdin" else "rb", size)
            del plan.ours[name]  # the file's, now
            if self.text_mode:
                writes: Dict[str, bool] = {"write_through": True, "line_buffering": line} if name == "stdin" else {}
                f = io.TextIOWrapper(f, encoding=self.encoding, errors=self.errors, **writes)  # type: ignore[arg-type]
            setattr(self, name, f)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: returncode: {self.returncode} args: {self.args!r}>"

    @property
    def universal_newlines(self) -> bool:
        return self.text_mode

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *_: object) -> None:
        for f in (self.stdout, self.stderr):
            if f is not None:
                f.close()
        try:
            if self.stdin is not None:
                self.stdin.close()
        finally:
            if not self._promoted:
                self.wait()

    def poll(self) -> Optional[int]:
        """The return code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self.process.refresh().returncode
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """The return code once it has ended, whoever still holds its pipes.
        Raises TimeoutExpired."""
        if self.returncode is None:
            try:
                self.returncode = self.process.wait(timeout).returncode
            except Timeout:
                raise TimeoutExpired(self.args, timeout or 0.0) from None
        assert self.returncode is not None
        return self.returncode

    def promote(self, **options: Any) -> Job:
        """Makes a job of it, with all that it has forked: it outlives the turn, and
        leaving the block does not wait for it. options are `Process.promote`'s.
        Its pipes stay ours, and a job that writes into one that was closed gets a
        SIGPIPE: what is to run on writes to "spool"."""
        job = self.process.promote(**options)
        self._promoted = True
        return job

    def send_signal(self, sig: int) -> None:
        """Sends a signal, through the service; nothing when it has ended."""
        if self.returncode is None:
            self.process.signal(sig)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(_signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(_signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: Optional[float] = None, *,
                    drain: Optional[float] = None) -> Tuple[Any, Any]:
        """Sends input to stdin, reads stdout and stderr to their ends, and waits.
        After TimeoutExpired it can be called again, and nothing is lost.

        As with subprocess, somebody else who holds stdout or stderr, such as a
        server that was left running, keeps it from returning. With drain it
        returns at most that many seconds after the process has ended."""
        if self._communicating and input:
            raise ValueError("Cannot send input after starting communication")
        end = None if timeout is None else time.monotonic() + timeout
        if not self._communicating:
            self._begin_input(input)
            self._communicating = True
        self._exchange(end, timeout, drain)
        try:
            self.wait(None if end is None else max(0.0, end - time.monotonic()))
        except TimeoutExpired:
            raise self._expired(timeout) from None
        return self._collected("stdout"), self._collected("stderr")

    def _begin_input(self, input: Any) -> None:
        if self.stdin is None or self.stdin.closed:
            return
        try:
            self.stdin.flush()
        except BrokenPipeError:
            pass
        if not input:
            _close_pipe(self.stdin)
            return
        if self.text_mode:
            input = input.encode(getattr(self.stdin, "encoding"), getattr(self.stdin, "errors"))
        self._input = memoryview(input).cast("b") if len(input) else None

    def _exchange(self, end: Optional[float], timeout: Optional[float], drain: Optional[float]) -> None:
        """Moves bytes until all pipes are at their end."""
        with contextlib.ExitStack() as stack:
            sel = stack.enter_context(selectors.DefaultSelector())
            self._register(sel)
            pipes = len(sel.get_map())
            drained: Optional[float] = None
            if drain is not None and pipes:
                self._watch(sel, stack)
            while pipes:
                bound = min((t for t in (end, drained) if t is not None), default=None)
                left = None if bound is None else bound - time.monotonic()
                if left is not None and left <= 0:
                    if bound != drained:
                        raise self._expired(timeout)
                    self._sweep(sel)
                    return
                for key, _ in sel.select(left):
                    if key.data == "exit":
                        sel.unregister(key.fileobj)
                        if self.poll() is None:  # the service went away, and came back
                            self._watch(sel, stack)
                        else:
                            drained = time.monotonic() + (drain or 0.0)
                    elif self._read(key) if key.data else self._write():
                        sel.unregister(key.fileobj)
                        _close_pipe(key.fileobj)
                        pipes -= 1

    def _sweep(self, sel: selectors.BaseSelector) -> None:
        """Reads what is in the pipes, and no more than a pipe can hold: who
        still writes does not keep us."""
        for _ in range(64):
            ready = [key for key, _ in sel.select(0) if key.data in ("stdout", "stderr")]
            for key in ready:
                if self._read(key):
                    sel.unregister(key.fileobj)
                    _close_pipe(key.fileobj)
            if not ready:
                return

    def _register(self, sel: selectors.BaseSelector) -> None:
        if self.stdin is not None and not self.stdin.closed:
            sel.register(self.stdin, selectors.EVENT_WRITE)
        for name in ("stdout", "stderr"):
            f = getattr(self, name)
            if f is not None:
                self._chunks.setdefault(name, [])
                if not f.closed:
                    sel.register(f, selectors.EVENT_READ, name)

    def _watch(self, sel: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
        """Makes sel tell of the process's end."""
        c = self.process._watch()
        stack.callback(c.close)
        sel.register(c.sock, selectors.EVENT_READ, "exit")

    def _read(self, key: selectors.SelectorKey) -> bool:
        data = os.read(key.fd, 1 << 16)
        self._chunks[key.data].append(data)
        return not data

    def _write(self) -> bool:
        assert self.stdin is not None
        if not self._input:
            return True
        try:
            # A pipe that polls writable takes this many without blocking.
            self._input = self._input[os.write(self.stdin.fileno(), self._input[:select.PIPE_BUF]):]
        except BrokenPipeError:
            return True
        return not self._input

    def _expired(self, timeout: Optional[float]) -> TimeoutExpired:
        out, err = (b"".join(self._chunks.get(name, ())) or None for name in ("stdout", "stderr"))
        return TimeoutExpired(self.args, timeout or 0.0, output=out, stderr=err)

    def _collected(self, name: str) -> Any:
        f = getattr(self, name)
        if f is None:
            return None
        data = b"".join(self._chunks[name])
        if not self.text_mode:
            return data
        return data.decode(f.encoding, f.errors).replace("\r\n", "\n").replace("\r", "\n")


def _close_pipe(f: Any) -> None:
    try:
        f.close()
    except BrokenPipeError:  # what was buffered has no reader left
        pass


# ---------------------------------------------------------------- asyncio


async def _ask(client: Client, method: str, path: str, body: Optional[Json] = None, fds: Sequence[int] = ()) -> Json:
    """One request on a connection of its own, without blocking the loop."""
    data = b"" if body is None else _json(body)
    # HTTP/1.0: the answer ends where the connection does.
    head = f"{method} {path} HTTP/1.0\r\nHost: pinfold\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    asked = False
    loop = asyncio.get_running_loop()
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await _connect(sock, client.socket)
        message = head.encode() + b"\r\n" + data
        asked = True
        sent = sock.sendmsg([message], _rights(fds))  # a new socket's buffer takes at least the first byte
        if sent < len(message):
            await loop.sock_sendall(sock, memoryview(message)[sent:])
        answer = bytearray()
        while True:
            piece = await loop.sock_recv(sock, 1 << 16)
            if not piece:
                break
            answer += piece
        top, _, rest = bytes(answer).partition(b"\r\n\r\n")
        status = int(top.split(None, 2)[1])
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", top)
        if length is not None and len(rest) != int(length[1]):
            raise ValueError("the answer is cut short")
    except (OSError, ValueError, IndexError) as e:
        raise _unreachable(client.socket, e, asked) from e
    finally:
        sock.close()
    if status >= 400:
        raise _error(status, rest)
    parsed: Json = json.loads(rest)
    return parsed


async def _connect(sock: _socket.socket, path: str) -> None:
    for _ in range(6000):
        try:
            return sock.connect(path)
        except BlockingIOError:  # the service's queue is full, unix(7)
            await asyncio.sleep(0.005)
    raise TimeoutError("the service does not accept connections")


async def _ask_again(client: Client, method: str, path: str, body: Optional[Json] = None,
                     fds: Sequence[int] = ()) -> Json:
    """Client._again, for asyncio."""
    away = _Away(client.patience)
    while True:
        away.asked()
        try:
            return await _ask(client, method, path, body, fds)
        except Unavailable as e:
            pause = away.pause(e)
            if pause is None:
                raise
        await asyncio.sleep(pause)


class AsyncProcess:
    """asyncio.subprocess.Process, for a process in a turn: stdin is a
    StreamWriter, stdout and stderr are StreamReaders. `returncode` is set by
    itself when it has ended; one connection to the service waits for that."""

    stdin: Optional[asyncio.StreamWriter] = None
    stdout: Optional[asyncio.StreamReader] = None
    stderr: Optional[asyncio.StreamReader] = None

    def __init__(self, process: Process) -> None:
        self.process = process
        self.pid = process.pid
        self.returncode: Optional[int] = None
        self._signals = asyncio.Lock()
        self._sending: List[asyncio.Task[str]] = []
        self._transports: List[asyncio.BaseTransport] = []
        self._end = asyncio.get_running_loop().create_task(self._ended())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pid}>"

    @classmethod
    async def _start(cls, turn: Turn, args: Args, stdin: Stream, stdout: Stream, stderr: Stream, limit: int,
                     options: Mapping[str, Any]) -> AsyncProcess:
        for name in ("text", "universal_newlines", "encoding", "errors"):
            if options.get(name):
                raise ValueError(f"{name} must be None: streams of asyncio are bytes")
        if options.get("bufsize", 0):
            raise ValueError("bufsize must be 0")
        more = {k: v for k, v in options.items() if k not in
                ("text", "universal_newlines", "encoding", "errors", "bufsize", "executable")}
        plan = _Plan(args, options.get("executable"), stdin, stdout, stderr, **more)
        try:
            turn._fence(plan.body)
            info = await _ask_again(turn.client, "POST", turn._path + "/processes", plan.body, plan.fds.numbers)
            plan.close_theirs()
            self = cls(Process(turn, info))
            await self._connect_pipes(plan, limit)
            return self
        except BaseException as e:
            plan.close()
            if isinstance(e, PinfoldError):
                plan.settle(e)
            raise

    async def _connect_pipes(self, plan: _Plan, limit: int) -> None:
        loop = asyncio.get_running_loop()
        for name in list(plan.ours):
            f = io.open(plan.ours.pop(name), "wb" if name == "stdin" else "rb", 0)
            reader = asyncio.StreamReader(limit=limit, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            if name == "stdin":
                w, _ = await loop.connect_write_pipe(lambda: protocol, f)
                self.stdin = asyncio.StreamWriter(w, protocol, None, loop)
                self._transports.append(w)
            else:
                r, _ = await loop.connect_read_pipe(lambda: protocol, f)
                setattr(self, name, reader)
                self._transports.append(r)

    async def _ended(self) -> int:
        self.process.info = await _ask_again(self.process.turn.client, "GET", self.process._path + "/wait")
        code = self.process.status.returncode
        assert code is not None
        self.returncode = code
        return code

    async def wait(self) -> int:
        """The return code once it has ended."""
        return await asyncio.shield(self._end)

    async def promote(self, *, pid: int = 0, name: str = "", session: Optional[str] = None, labels: Optional[Mapping[str, str]] = None,
                      max: Optional[float] = None) -> Job:
        """Makes a job of it; see `Popen.promote`."""
        turn = self.process.turn
        return Job(turn.client, await _ask_again(
            turn.client, "POST", self.process._path + "/promote", _promotion(turn, pid, name, session, labels, max)))

    async def signal(self, sig: int) -> str:
        """Sends a signal, and returns the verdict as `Process.signal` does."""
        async with self._signals:  # in the order in which they were sent
            body = _said(signal=str(int(sig)), epoch=self.process.turn._ours or None)
            answer = await _ask(self.process.turn.client, "POST", self.process._path + "/signal", body)
        verdict: str = answer["verdict"]
        return verdict

    def send_signal(self, sig: int) -> None:
        """Sends a signal soon, as asyncio's does: it does not wait. Raises
        ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError()
        task = asyncio.get_running_loop().create_task(self.signal(sig))
        self._sending.append(task)
        task.add_done_callback(self._sending.remove)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(_signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(_signal.SIGKILL)

    async def communicate(self, input: Optional[bytes] = None, *,
                          drain: Optional[float] = None) -> Tuple[Optional[bytes], Optional[bytes]]:
        """Sends input to stdin, reads stdout and stderr to their ends, and waits;
        with drain, at most that many seconds after the process has ended, and
        then the pipes are closed."""
        got: Tuple[List[bytes], List[bytes]] = ([], [])
        tasks = [asyncio.ensure_future(c) for c in
                 (self._feed(input), self._drain(self.stdout, got[0]), self._drain(self.stderr, got[1]))]
        work = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            if drain is not None:
                await asyncio.wait((work, self._end), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait((work,), timeout=max(drain, 0.01))  # 0 would not even look
                if not work.done():
                    for t in self._transports:
                        t.close()
            else:
                await work
        finally:
            for task in (work, *tasks):
                task.cancel()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        await self.wait()
        out, err = (None if s is None else b"".join(g) for s, g in zip((self.stdout, self.stderr), got))
        return out, err

    async def _feed(self, input: Optional[bytes]) -> None:
        if self.stdin is None:
            return
        try:
            if input is not None:
                self.stdin.write(input)
                await self.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.stdin.close()

    @staticmethod
    async def _drain(stream: Optional[asyncio.StreamReader], got: List[bytes]) -> None:
        while stream is not None:
            piece = await stream.read(1 << 16)
            if not piece:
                return
            got.append(piece)
