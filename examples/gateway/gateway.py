#!/usr/bin/env python3
"""A small chat gateway whose tools all run through Pinfold.

A message to a session is one turn. What stands in for the model is simple: each
line of a message is a tool call.

    run COMMAND     a shell command; its output is streamed back
    job COMMAND     a shell command in the background, which outlives the turn
    jobs            the session's jobs; log JOB and end JOB (abc.../p1)
    shell LINE      a line for the session's own terminal, which stays
    tool NAME JSON  a call of the session's tool server (JSON-RPC on stdio)

/stop ends the session's running turn, /new everything of the session but its
jobs, and a turn in which nothing happens for too long is ended as well. Other
lines are answered by themselves.

The gateway keeps no process table, no pids, no reaper and no output buffers;
when it is killed and started again it finds its jobs where they were, and ends
what it was in the middle of.
"""

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "clients" / "python"))
import pinfold  # noqa: E402


class Busy(Exception):
    """The session works on another message."""


class Stopped(Exception):
    """The turn was ended while it was worked on."""


class Session:
    """What one chat has: at most one turn, and helpers that stay."""

    def __init__(self, gateway, id):
        self.gateway, self.id = gateway, id
        self.lock = threading.Lock()  # of what follows, never held for long
        self.turn = None
        self.active = 0.0  # when something happened last in the turn
        self.gone = lambda: False  # whether who sent the message has hung up
        self.helpers = None  # the turn of the terminal and the tool server
        self.shell = self.screen = self.server = None
        self.mark = ""  # what the terminal shows when it is done; empty: it is
        self.calls = 0

    # -- turns

    def work(self, text, tell, gone):
        """Works on one message, line by line. tell takes events, and fails when
        the client has hung up, which gone tells as well."""
        turn = self.begin(text, gone)
        try:
            tell({"event": "begin", "turn": turn.id, "grade": turn.grade})
            with turn:
                for line in filter(None, map(str.strip, text.splitlines())):
                    self.active = time.monotonic()
                    try:
                        self.call(turn, line, tell)
                    except pinfold.TurnOver as e:
                        raise Stopped from e
                    except (pinfold.PinfoldError, ValueError) as e:
                        tell({"event": "error", "text": str(e)})
                if turn.receipt is None and turn.state != "open":
                    raise Stopped
        except (Stopped, OSError):  # or hung up: leaving the block has abandoned it
            pass
        finally:
            with self.lock:
                self.turn = None
        r = self.gateway.client.receipt(turn.id)
        with contextlib.suppress(OSError):
            tell({"event": "end", "state": r.state, "reason": r.reason, "complete": r.complete, "ended": r.counts.ended,
                  "jobs": [f"{turn.id}/{p['process']}" for p in r.leftovers]})

    def begin(self, text, gone):
        with self.lock:
            if self.turn is not None:
                raise Busy
            self.gone = gone
            self.turn = self.gateway.begin(self.id, text, leftovers="keep", on_error="client_gone")
            self.active = time.monotonic()
            return self.turn

    def stop(self, reason):
        """Ends the running turn; whoever works on it then tells."""
        with self.lock:
            turn = self.turn
            if turn is not None and self.mark:  # the terminal stays; Ctrl-C is for what runs in it
                self.shell.write(b"\x03" + self.say(self.mark))
        return turn is not None and turn.abandon(reason).complete

    def renew(self, reason):
        """Ends the running turn and the helpers. Jobs go on."""
        self.stop(reason)
        with self.lock:
            helpers, self.helpers, self.shell, self.server = self.helpers, None, None, None
        if helpers is not None:
            helpers.abandon(reason)

    # -- tools

    def call(self, turn, line, tell):
        word, _, rest = line.partition(" ")
        tool = getattr(self, "do_" + word, None)
        if tool is None:
            return tell({"event": "text", "text": f"I can only run tools; {line!r} is none."})
        tool(turn, rest, tell)

    def do_run(self, turn, command, tell):
        p = turn.launch(["/bin/sh", "-c", command], env=self.environment(), cwd=self.gateway.workspace, stdout="spool",
                        stderr="stdout", labels={"kind": "tool"}, deadline=self.gateway.tool_timeout)
        # A server that the command leaves running does not keep us.
        for piece in p.output().follow(drain=1):
            self.active = time.monotonic()
            if isinstance(piece, pinfold.Gap):
                tell({"event": "gap", "bytes": piece.end - piece.start})
            else:
                tell({"event": "output", "text": piece.decode(errors="replace")})
        s = p.wait()
        tell({"event": "exit", "status": s.state, "code": s.code, "signal": s.signal, "ended_by": s.ended_by})

    def do_job(self, turn, command, tell):
        p = turn.launch(["/bin/sh", "-c", command], env=self.environment(), cwd=self.gateway.workspace, stdout="spool",
                        stderr="stdout", labels={"kind": "job"})
        tell({"event": "job", "job": f"{turn.id}/{p.id}"})

    def do_jobs(self, turn, _, tell):
        for t in self.gateway.client.turns(session=self.id, all=True):
            for p in t["processes"]:
                if (p.get("labels") or {}).get("kind") == "job":
                    tell({"event": "job", "job": f"{t['id']}/{p['id']}", "command": p["argv"][-1], "status": p["status"]["state"],
                          "code": p["status"].get("code", 0), "bytes": p["output"]["stdout"]["bytes_total"]})

    def do_log(self, turn, job, tell):
        out = self.job(job).output().tail(4096)
        tell({"event": "output", "text": out.data.decode(errors="replace")})

    def do_end(self, turn, job, tell):
        p = self.job(job)
        if p.turn.id == turn.id:
            p.signal("KILL")
        else:  # its turn is over: all that it left goes
            p.turn.abandon("stop", leftovers=True)
        tell({"event": "job", "job": job, "status": p.wait(60).state})

    def job(self, name):
        turn, _, process = name.partition("/")
        t = self.gateway.client.attach(turn)
        if t.info.get("session") != self.id:
            raise pinfold.NotFound(f"this session has no job {name}")
        return t.process(process)

    def do_shell(self, turn, line, tell):
        """A line for the terminal, and what comes until it is done."""
        with self.lock:
            if self.shell is None:
                self.shell = self.helper().launch(
                    ["/bin/sh", "-c", "stty -echo; echo ready; exec bash --norc --noediting -i"], stdin="pty", stdout="pty", stderr="pty", pty=(24, 80),
                    env=dict(self.environment(), PS1="", PS2="", TERM="dumb"), cwd=self.gateway.workspace,
                    labels={"kind": "shell"})
                self.screen = self.shell.output()
                next(self.screen.follow())  # ready: it does not echo any more
            self.calls += 1
            self.mark = f"--done {self.calls} "
            self.shell.write(line.encode() + b"\n" + self.say(self.mark))
        seen = ""
        for piece in self.screen.follow():
            self.active = time.monotonic()
            seen += piece.decode(errors="replace") if isinstance(piece, bytes) else "[...]"
            text, found, code = seen.partition(self.mark)
            if found and "\n" in code:
                break
        with self.lock:
            self.mark = ""
            if not found:  # it has ended: the next line gets another
                self.shell = None
        tell({"event": "output", "text": text.replace("\r\n", "\n")})
        tell({"event": "exit", "status": "exited", "code": int(code.split()[0])} if found else
             {"event": "error", "text": "the terminal has ended"})

    @staticmethod
    def say(mark):
        """A line that shows a mark with $?, and is not taken for it itself."""
        return f"printf '%s%s%s\\n' '{mark[:4]}' '{mark[4:]}' $?\n".encode()

    def do_tool(self, turn, rest, tell):
        """A call of the tool server, which is started with the first one."""
        name, _, arguments = rest.partition(" ")
        call = {"name": name, "arguments": json.loads(arguments or "{}")}
        with self.lock:
            server = self.server
            if fresh := server is None or server.poll() is not None:
                server = self.server = self.helper().Popen(
                    [sys.executable, str(HERE / "tool_server.py")], stdin=pinfold.PIPE, stdout=pinfold.PIPE, text=True,
                    bufsize=1, env=self.environment(), cwd=self.gateway.workspace, labels={"kind": "server"})
        if fresh:
            self.rpc(server, "initialize", {"protocolVersion": "2025-06-18"})
        tell({"event": "result", "result": self.rpc(server, "tools/call", call)})

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
        """The turn of what stays: it ends with the session, not with a message."""
        if self.helpers is None:
            self.helpers = self.gateway.begin(self.id, "helpers", leftovers="reap")
        return self.helpers

    def environment(self):
        """What tools see: nothing of the gateway's own secrets."""
        return {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER") if k in os.environ}


class Gateway:
    def __init__(self, name, workspace, idle, tool_timeout, client=None):
        self.name, self.workspace, self.idle, self.tool_timeout = name, workspace, idle, tool_timeout
        self.client = client or pinfold.Client()
        self.lock = threading.Lock()
        self.sessions = {}
        self.clean()
        threading.Thread(target=self.watch, daemon=True).start()

    def begin(self, session, label, **options):
        return self.client.begin(label=label.strip().partition("\n")[0][:80], session=session, labels={"gateway": self.name}, grace=2, **options)

    def clean(self):
        """Ends what another life of this gateway was in the middle of. Its
        jobs are in turns that have finished, and stay."""
        for t in self.client.turns(state="open"):
            if (t.get("labels") or {}).get("gateway") == self.name:
                self.client.attach(t["id"]).abandon("client_gone")

    def watch(self):
        """Ends turns in which nothing happens, or for which nobody waits."""
        while True:
            time.sleep(min(1.0, self.idle / 4))
            with self.lock:
                sessions = list(self.sessions.values())
            for s in sessions:
                reason = "client_gone" if s.gone() else "idle" if time.monotonic() - s.active > self.idle else ""
                if s.turn is not None and reason:
                    with contextlib.suppress(pinfold.PinfoldError):
                        s.stop(reason)

    def session(self, id):
        with self.lock:
            return self.sessions.setdefault(id, Session(self, id))

    def close(self):
        for s in list(self.sessions.values()):
            with contextlib.suppress(pinfold.PinfoldError):
                s.renew("stop")


class Handler(http.server.BaseHTTPRequestHandler):
    """POST /sessions/ID with a message; the answer is a line of JSON an event."""

    gateway = None

    def do_POST(self):
        id = re.fullmatch(r"/sessions/([A-Za-z0-9-]{1,40})", self.path)
        if id is None:
            return self.send_error(404)
        session = self.gateway.session(id[1])
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        command = text.strip()
        self.begun = False
        try:
            if command == "/stop":
                self.tell({"event": "stopped", "complete": session.stop("stop")})
            elif command == "/new":
                session.renew("superseded")
                self.tell({"event": "new"})
            else:
                session.work(text, self.tell, self.gone)
        except Busy:
            with contextlib.suppress(OSError):
                self.send_error(409, "the session works on another message", "send /stop first")
        except pinfold.PinfoldError as e:
            with contextlib.suppress(OSError):
                self.tell({"event": "error", "text": str(e)})

    def gone(self):
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def tell(self, event):
        if not self.begun:
            self.begun = True
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.end_headers()
        self.wfile.write(json.dumps(event).encode() + b"\n")
        self.wfile.flush()

    def address_string(self):
        return "client"

    def log_message(self, format, *args):
        pass


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--listen", default="8080", help="a path of a unix socket, or a port of 127.0.0.1")
    p.add_argument("--name", default="example", help="what this gateway's turns are labelled with")
    p.add_argument("--workspace", default=os.getcwd(), help="where tools run")
    p.add_argument("--idle", type=float, default=1800, help="seconds without output after which a turn is ended")
    p.add_argument("--tool-timeout", type=float, default=600, help="seconds that one command may take")
    o = p.parse_args()
    Handler.gateway = Gateway(o.name, o.workspace, o.idle, o.tool_timeout)
    if o.listen.isdigit():
        server = http.server.ThreadingHTTPServer(("127.0.0.1", int(o.listen)), Handler)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(o.listen)
        server = UnixServer(o.listen, Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening at {o.listen}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    Handler.gateway.close()


if __name__ == "__main__":
    main()
