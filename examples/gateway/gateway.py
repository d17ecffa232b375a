#!/usr/bin/env python3
"""A small chat gateway whose tools all run through Pinfold.

A message to a session is one turn. What stands in for the model is simple: each
line of a message is a tool call.

    run COMMAND     a shell command; its output is streamed back
    job COMMAND     a shell command in the background, which outlives the turn
    shell LINE      a line for the session's own terminal, which stays
    tool NAME JSON  a call of the session's tool server (JSON-RPC on stdio)

Other lines are answered by themselves. A message that is one of these is
answered at once, whatever the session works on:

    /stop           ends the running turn
    /new            ends everything of the session but its jobs
    /background     makes a job of the command that runs
    /jobs, /log JOB, /kill JOB
    /notes          what became of jobs that ended by themselves
    /quiet          whether nothing uses the workspace

The gateway keeps no process table, no pids, no reaper, no timers for turns and
no watchdog: the service ends what is idle, too old, or nobody's. Killed and
started again, it goes on with the messages that it was in the middle of.
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
import threading
import time

from journal import Journal
from session import Busy, Message, Session, pinfold


class Gateway:
    def __init__(self, options, client=None):
        self.name, self.workspace, self.tool_timeout = options.name, options.workspace, options.tool_timeout
        self.options = options
        self.client = client or pinfold.Client()
        self.lock = threading.Lock()
        self.sessions = {}
        self.journal = Journal(options.state, self)
        self.recover()
        for serve in (self.renew, self.consume):
            threading.Thread(target=serve, daemon=True).start()

    # -- turns

    def begin(self, session, label, **options):
        return self.client.begin(label=label.strip().partition("\n")[0][:80], session=session, labels={"gateway": self.name}, grace=2, **options)

    def begin_message(self, session, text, key):
        """The turn of a message, and all that may end it without us. A touch does
        not make it busy: it only says that we are not stopped."""
        o = self.options
        return self.begin(session, text, idempotency_key=key, leftovers="keep", wall=o.wall, idle=o.idle, idle_by=["output", "cpu", "io"],
                          lease=o.lease, bind="connection", window=o.window, on_error="stop")

    def recover(self):
        """Takes the turns that another life of this gateway worked on. If that
        life is only stopped, it is refused from then on."""
        for entry in self.journal.left():
            session = self.session(entry["session"])
            try:
                if entry["turn"]:
                    message = self.taken(session, entry)
                else:  # nobody knows whether it had begun: the key does
                    message = self.journal.begin(session, entry)
            except (pinfold.TurnOver, pinfold.NotFound):
                self.journal.path(entry["id"]).unlink()  # it had its end
                continue
            session.resume(message, entry["done"])

    def taken(self, session, entry):
        return Message(entry["id"], session, entry["text"], self.client.attach(entry["turn"]).take())

    def renew(self):
        """Renews the leases. A gateway that is stopped, or starved, does not."""
        while True:
            time.sleep(self.options.lease / 4)
            with self.lock:
                sessions = list(self.sessions.values())
            for m in [s.message for s in sessions]:
                if m is not None and not m.over:
                    with contextlib.suppress(pinfold.PinfoldError):
                        m.turn.touch()

    # -- jobs

    def consume(self):
        """Notes each job of ours that ended by itself, once, over all restarts: the
        note is named by the event, and what is acknowledged does not come again."""
        consumer = "gateway." + self.name
        while True:
            with contextlib.suppress(pinfold.Unavailable):  # for longer than is waited for: again
                for e in self.client.events(consumer=consumer, kinds=["job"], follow=True):
                    if e.raw.get("message") == "ended" and not e.stopped and not e.raw.get("reason") and self.owns(e.job):
                        self.journal.note(e.raw["session"], e.seq, {"event": "note", "job": e.job, "status": e.status.state, "code": e.status.code})
                    self.client.acknowledge_events(consumer, e.seq)
            time.sleep(1)

    def owns(self, job):
        try:
            info = self.client.job(job).info
        except pinfold.NotFound:
            return False
        return (info.get("labels") or {}).get("gateway") == self.name and bool(info.get("session"))

    # -- sessions

    def session(self, id):
        with self.lock:
            return self.sessions.setdefault(id, Session(self, id))

    def command(self, session, text, tell):
        """What is answered at once; False when it is none of that."""
        word, _, rest = text.partition(" ")
        do = getattr(self, "on_" + word[1:], None) if word.startswith("/") else None
        if do is None:
            return False
        do(session, rest.strip(), tell)
        return True

    def on_stop(self, session, _, tell):
        tell({"event": "stopped", "complete": session.stop("stop")})

    def on_new(self, session, _, tell):
        session.renew()
        tell({"event": "new"})

    def on_background(self, session, _, tell):
        tell({"event": "job", "job": session.background().id})

    def on_jobs(self, session, _, tell):
        jobs = self.client.jobs(session=session.id, all=True)
        for j in jobs:
            tell({"event": "job", "job": j.id, "command": j.name, "state": j.info["state"], "code": j.status.code,
                  "bytes": j.info["output"]["stdout"]["bytes_total"]})
        if not jobs:
            tell({"event": "text", "text": "no jobs"})

    def on_log(self, session, id, tell):
        tell({"event": "output", "text": self.job(session, id).output().tail(4096).data.decode(errors="replace")})

    def on_kill(self, session, id, tell):
        job = self.job(session, id)
        status = job.stop(grace=2)
        tell({"event": "job", "job": id, "state": job.info["state"], "status": status.state})

    def on_notes(self, session, _, tell):
        notes = self.journal.noted(session.id)
        for note in notes or [{"event": "text", "text": "no notes"}]:
            tell(note)

    def on_quiet(self, session, _, tell):
        q = self.client.quiet(self.workspace)
        tell({"event": "quiet", "quiet": bool(q), "uses": [{"pid": u["pid"], "command": u.get("comm", ""), "how": u["how"]} for u in q.uses]})

    def job(self, session, id):
        job = self.client.job(id)
        if job.session != session.id:
            raise pinfold.NotFound(f"this session has no job {id}")
        return job

    def close(self):
        """Ends what we began, all of it in one call. Jobs go on."""
        with contextlib.suppress(pinfold.PinfoldError):
            self.client.abandon(labels={"gateway": self.name}, reason="stop")


class Handler(http.server.BaseHTTPRequestHandler):
    """POST /sessions/ID with a message; the answer is a line of JSON an event. GET
    /sessions/ID tells all of the newest message, and what comes of it."""

    gateway = None

    def do_POST(self):
        self.answer(self.post)

    def do_GET(self):
        self.answer(self.get)

    def post(self, session):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if not self.gateway.command(session, text.strip(), self.tell):
            session.send(text).listen(self.tell, self.gone)

    def get(self, session):
        if session.message is None:
            return self.send_error(404, "no message yet")
        session.message.listen(self.tell, self.gone)

    def answer(self, how):
        id = re.fullmatch(r"/sessions/([A-Za-z0-9-]{1,40})", self.path)
        if id is None:
            return self.send_error(404)
        self.begun = False
        with contextlib.suppress(OSError):  # whoever asked has hung up
            try:
                how(self.gateway.session(id[1]))
            except Busy:
                self.send_error(409, "the session works on another message", "send /stop first")
            except pinfold.PinfoldError as e:
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
    p.add_argument("--state", default=os.path.expanduser("~/.local/state/pinfold-example-gateway"), help="where messages and notes are kept")
    p.add_argument("--tool-timeout", type=float, default=600, help="seconds that one command may take")
    p.add_argument("--idle", type=float, default=1800, help="seconds without output, CPU or I/O after which a turn is ended")
    p.add_argument("--wall", type=float, default=14400, help="seconds after which a turn is ended, whatever it does")
    p.add_argument("--lease", type=float, default=60, help="seconds after which turns are ended when this gateway stands still")
    p.add_argument("--window", type=float, default=30, help="seconds for a client that hung up, or a gateway that was killed, to come back")
    o = p.parse_args()
    Handler.gateway = Gateway(o)
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
