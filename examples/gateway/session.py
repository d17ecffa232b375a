"""Sessions of the example gateway, the messages to them, and the tools."""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "clients" / "python"))
import pinfold  # noqa: E402


class Busy(Exception):
    """The session works on another message."""


class Stopped(Exception):
    """The turn was ended while it was worked on."""


class Message:
    """One message, its turn, and what happened in it so far.

    Who sent it need not stay: any number of listeners may come and go. Each holds
    the turn; when there is none, the service gives it its window."""

    def __init__(self, id, session, text, turn):
        self.id, self.session, self.text, self.turn = id, session, text, turn
        self.epoch = turn.epoch  # in which it is ours
        self.lines = [line for line in map(str.strip, text.splitlines()) if line]
        self.changed = threading.Condition()
        self.events, self.over = [], False
        self.process = None  # that a run line waits for
        self.settled = threading.Event()  # it has ended, or is a job now
        self.job = None

    def tell(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def end(self, event):
        with self.changed:
            self.events.append(event)
            self.over = True
            self.changed.notify_all()

    def listen(self, write, gone):
        """Writes what happened and what comes, until it is over or nobody reads."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(pinfold.PinfoldError):  # it is over, another's, or out of reach: told all the same
                held.enter_context(self.turn.hold())
            n = 0
            while True:
                with self.changed:
                    while n == len(self.events) and not self.over and not gone():
                        self.changed.wait(0.2)
                    new = self.events[n:]
                if gone() or not new:
                    return
                for event in new:
                    write(event)
                n += len(new)


class Session:
    """What one chat has: at most one message that is worked on, and helpers that
    stay."""

    def __init__(self, gateway, id):
        self.gateway, self.id = gateway, id
        self.lock = threading.Lock()  # of what follows, never held for long
        self.message = None  # the newest
        self.helpers = None  # the turn of the terminal and the tool server
        self.shell = self.screen = self.server = None
        self.busy = False  # something runs in the terminal
        self.calls = 0

    # -- messages

    def send(self, text):
        """Begins to work on a message."""
        with self.lock:
            if self.message is not None and not self.message.over:
                raise Busy
            self.message = m = self.gateway.journal.enter(self, text)
        threading.Thread(target=self.work, args=(m, 0), daemon=True).start()
        return m

    def resume(self, message, done):
        """Goes on with one that another life of the gateway worked on."""
        with self.lock:
            self.message = message
        threading.Thread(target=self.work, args=(message, done, True), daemon=True).start()

    def work(self, m, done, resumed=False):
        """Works on a message line by line, the first `done` of which are."""
        threading.Thread(target=self.watch, args=(m,), daemon=True).start()
        m.tell({"event": "resume" if resumed else "begin", "turn": m.turn.id, "grade": m.turn.grade, "line": done})
        try:
            with m.turn:
                for n, line in enumerate(m.lines[done:], done):
                    if resumed and n == done and not line.startswith("run "):
                        m.tell({"event": "error", "text": "the gateway was started again in the middle of this"})
                        continue
                    self.line(m, n, line)
                    self.gateway.journal.done(m, n + 1)
        except (Stopped, pinfold.StaleEpoch):
            pass
        except pinfold.PinfoldError as e:
            m.tell({"event": "error", "text": str(e)})
        finally:
            self.close(m)

    def line(self, m, n, line):
        try:
            self.call(m, n, line)
        except pinfold.TurnOver as e:
            raise Stopped from e
        except pinfold.StaleEpoch:
            raise
        except (pinfold.PinfoldError, ValueError) as e:
            m.tell({"event": "error", "text": str(e)})
        if m.turn.receipt is not None or m.turn.state != "open" or m.turn.epoch != m.epoch:
            raise Stopped

    def close(self, m):
        """Tells how it ended, unless it is another gateway's by now."""
        try:
            if m.turn.refresh()["epoch"] != m.epoch:
                raise pinfold.StaleEpoch("another gateway has taken the turn")
            r = self.gateway.client.receipt(m.turn.id)
            self.gateway.journal.forget(m)
            end = {"state": r.state, "reason": r.reason, "complete": r.complete, "ended": r.counts.ended, "left": [p["process"] for p in r.leftovers]}
        except pinfold.PinfoldError as e:
            end = {"state": "", "reason": "taken" if e.code == "stale_epoch" else "unknown", "text": str(e)}
        m.end({"event": "end", **end})

    def watch(self, m):
        """When the turn is over, whoever ended it, what runs in the terminal for it
        is ended as well."""
        with contextlib.suppress(pinfold.PinfoldError):
            self.gateway.client.attach(m.turn.id).wait()
            self.interrupt(m)

    def interrupt(self, m):
        """Ends what runs in the terminal. The terminal stays, with its directory
        and its variables."""
        with self.lock:
            shell = self.shell if self.busy and self.message is m else None
        if shell is not None:
            shell.end(descendants_only=True, grace=2)

    def stop(self, reason):
        """Ends the running turn; whoever works on it then tells."""
        m = self.message
        return m is not None and not m.over and m.turn.abandon(reason).complete

    def renew(self):
        """Ends the running turn and the helpers, for a new helpers' turn supersedes
        them. Jobs go on."""
        new = self.gateway.begin(self.id, "helpers", leftovers="reap", bind="process", supersede=True)
        with self.lock:
            self.helpers, self.shell, self.server = new, None, None
        for t in self.gateway.client.turns(session=self.id):
            if t["id"] != new.id and t.get("kind") != "job" and t["state"] in ("open", "ending"):
                self.gateway.client.attach(t["id"]).wait(60)

    def background(self):
        """Makes a job of the command that the session waits for."""
        m = self.message
        if m is None or m.over or m.process is None:
            raise pinfold.NotFound("nothing runs that could go on in the background")
        m.job = m.process.promote(name=m.process.info["argv"][-1][:200], labels={"gateway": self.gateway.name})
        m.settled.set()
        return m.job

    # -- tools

    def call(self, m, n, line):
        word, _, rest = line.partition(" ")
        tool = getattr(self, "do_" + word, None)
        if tool is None:
            return m.tell({"event": "text", "text": f"I can only run tools; {line!r} is none."})
        tool(m, n, rest)

    def place(self):
        """Where and with what tools run: nothing of the gateway's own secrets."""
        return {"cwd": self.gateway.workspace, "env": {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}}

    def do_run(self, m, n, command):
        m.settled.clear()
        # Asked again after a restart, the same key answers the same process.
        p = m.turn.launch(["/bin/sh", "-c", command], stdout="spool", stderr="stdout", labels={"kind": "tool"},
                          deadline=self.gateway.tool_timeout, idempotency_key=f"{m.id}-{n}", **self.place())
        m.process, m.job = p, None
        threading.Thread(target=self.relay, args=(m, p), daemon=True).start()
        m.settled.wait()
        m.process = None
        if m.job is not None:
            return m.tell({"event": "job", "job": m.job.id})
        s = p.wait()
        m.tell({"event": "exit", "status": s.state, "code": s.code, "signal": s.signal, "ended_by": s.ended_by})

    def relay(self, m, p):
        """A command's output, until it ends or is a job."""
        try:
            # A server that the command leaves running does not keep us.
            for piece in p.output().follow(drain=1):
                if m.process is not p:  # it is a job
                    return
                if isinstance(piece, pinfold.Gap):
                    m.tell({"event": "gap", "bytes": piece.end - piece.start})
                else:
                    m.tell({"event": "output", "text": piece.decode(errors="replace")})
        except pinfold.PinfoldError as e:
            m.tell({"event": "error", "text": str(e)})
        finally:
            if m.process is p:
                m.settled.set()

    def do_job(self, m, n, command):
        job = self.gateway.client.start_job(
            ["/bin/sh", "-c", command], stderr="stdout", name=command[:200], session=self.id, labels={"gateway": self.gateway.name},
            **self.place())
        m.tell({"event": "job", "job": job.id})

    def do_shell(self, m, n, line):
        """A line for the terminal, and what comes until it is done."""
        with self.lock:
            if self.shell is None:
                self.shell = self.helper().launch(
                    ["/bin/sh", "-c", "stty -echo; echo ready; exec bash --norc --noediting -i"], stdin="pty", stdout="pty", stderr="pty",
                    pty=(24, 80), labels={"kind": "shell"}, **self.terminal())
                self.screen = self.shell.output()
                for piece in self.screen.follow():
                    if b"\n" in piece:  # ready, all of it: it does not echo any more
                        break
            self.calls += 1
            mark = f"--done {self.calls} "
            self.busy = True
            # The mark is written so that the line is not taken for it itself.
            self.shell.write(f"{line}\nprintf '%s%s%s\\n' '{mark[:4]}' '{mark[4:]}' $?\n".encode())
        late = threading.Timer(self.gateway.tool_timeout, self.interrupt, (m,))
        late.start()
        seen, found = "", ""
        for piece in self.screen.follow():
            seen += piece.decode(errors="replace") if isinstance(piece, bytes) else "[...]"
            text, found, code = seen.partition(mark)
            if found and "\n" in code:
                break
        late.cancel()
        with self.lock:
            self.busy = False
            if not found:  # it has ended: the next line gets another
                self.shell = None
        m.tell({"event": "output", "text": text.replace("\r\n", "\n")})
        m.tell({"event": "exit", "status": "exited", "code": int(code.split()[0])} if found else
               {"event": "error", "text": "the terminal has ended"})

    def terminal(self):
        place = self.place()
        place["env"].update(PS1="", PS2="", TERM="dumb")
        return place

    def do_tool(self, m, n, rest):
        """A call of the tool server, which is started with the first one."""
        name, _, arguments = rest.partition(" ")
        call = {"name": name, "arguments": json.loads(arguments or "{}")}
        with self.lock:
            server = self.server
            if fresh := server is None or server.poll() is not None:
                server = self.server = self.helper().Popen(
                    [sys.executable, str(HERE / "tool_server.py")], stdin=pinfold.PIPE, stdout=pinfold.PIPE, text=True,
                    bufsize=1, labels={"kind": "server"}, **self.place())
        if fresh:
            self.rpc(server, "initialize", {"protocolVersion": "2025-06-18"})
        m.tell({"event": "result", "result": self.rpc(server, "tools/call", call)})

    def rpc(self, server, method, params):
        self.calls += 1
        request = {"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params}
        try:
            server.stdin.write(json.dumps(request) + "\n")
            answer = json.loads(server.stdout.readline())
        except (OSError, ValueError):  # broken pipe, end of file
            return {"error": "the tool server has ended"}
        return answer.get("result", answer.get("error"))

    def helper(self):
        """The turn of what stays: it ends with the session, or with the gateway,
        not with a message."""
        if self.helpers is None:
            self.helpers = self.gateway.begin(self.id, "helpers", leftovers="reap", bind="process")
        return self.helpers
