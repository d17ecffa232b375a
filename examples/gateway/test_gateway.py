"""The example gateway, end to end: a real service, a real gateway, real tools."""

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "clients" / "python"))
from testservice import ServiceCase, exists, own_dir  # noqa: E402


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("gateway", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Answer:
    """The events that a message brings, as they come."""

    def __init__(self, path, session, text=None):
        self.connection = Connection(path)
        self.connection.request("GET" if text is None else "POST", f"/sessions/{session}", None if text is None else text.encode())
        self.events = []
        self.response = None

    def __iter__(self):
        self.response = self.response or self.connection.getresponse()
        if self.response.status != 200:
            raise AssertionError(f"{self.response.status} {self.response.reason}")
        for line in self.response:
            self.events.append(json.loads(line))
            yield self.events[-1]
        self.connection.close()

    def until(self, event):
        for e in self:
            if e["event"] == event:
                return e
        raise AssertionError(f"no {event} in {self.events}")

    def until_free(self):
        """Whether the session took the message; reads the answer."""
        self.response = self.connection.getresponse()
        busy = self.response.status == 409
        if not busy:
            list(self)
        self.hang_up()
        return not busy

    def hang_up(self):
        self.response.close()
        self.connection.close()


class GatewayTest(ServiceCase):
    def setUp(self):
        self.dir = own_dir(self)
        self.chat = self.id().rpartition(".")[2].replace("_", "-")[:40]
        self.socket = str(self.dir / "gateway.sock")
        self.canary = subprocess.Popen(["sleep", "600"])
        self.addCleanup(lambda: (self.canary.kill(), self.canary.wait()))
        self.start()

    def tearDown(self):
        self.assertIsNone(self.canary.poll(), "somebody ended what is none of the gateway's")

    def start(self, *options, **env):
        prctl = ctypes.CDLL(None).prctl
        self.gateway = g = subprocess.Popen(
            [sys.executable, HERE / "gateway.py", "--listen", self.socket, "--name", self.chat, "--workspace", self.dir,
             "--state", self.dir / "state", *options],
            stdout=subprocess.PIPE, env=dict(os.environ, PINFOLD_SOCKET=self.service.socket, SECRET="s3cret", **env),
            preexec_fn=lambda: prctl(1, signal.SIGKILL))  # PR_SET_PDEATHSIG
        self.addCleanup(lambda: (g.kill(), g.wait(), g.stdout.close()))
        self.assertIn(b"listening", g.stdout.readline())

    def send(self, text, session=""):
        return Answer(self.socket, session or self.chat, text)

    def again(self):
        """Listens to what the session works on."""
        return Answer(self.socket, self.chat)

    def say(self, text, session=""):
        return list(self.send(text, session))

    def one(self, events, kind):
        found = [e for e in events if e["event"] == kind]
        self.assertEqual(len(found), 1, events)
        return found[0]

    def text(self, events):
        return "".join(e["text"] for e in events if e["event"] == "output")

    def alive(self, session=""):
        """What the session's turns and jobs hold now: pid → comm."""
        turns = [t["id"] for t in self.client.turns(session=session or self.chat, all=True) if t["alive"]]
        jobs = [j.info["turn"] for j in self.client.jobs(session=session or self.chat)]
        return {m["pid"]: m["comm"] for t in {*turns, *jobs} for m in self.client.attach(t).tree()}

    # -- what a message does

    def test_foreground_tools(self):
        got = self.say("run echo out; echo err >&2; pwd; exit 3\nrun echo again\nhello")
        self.assertEqual(self.text(got), f"out\nerr\n{self.dir}\nagain\n")
        self.assertEqual([e["code"] for e in got if e["event"] == "exit"], [3, 0])
        self.assertIn("hello", self.one(got, "text")["text"])
        end = self.one(got, "end")
        self.assertEqual((end["state"], end["reason"], end["complete"], end["left"]), ("finished", "finished", True, []))

    def test_tools_do_not_see_secrets(self):
        text = self.text(self.say("run env"))
        self.assertIn("PATH=", text)
        self.assertNotIn("s3cret", text)
        self.assertNotIn("PINFOLD", text)

    def test_a_tool_that_leaves_a_server_does_not_hang(self):
        got = self.say("run setsid sleep 600 & echo started; exit 4")
        self.assertEqual((self.text(got), self.one(got, "exit")["code"]), ("started\n", 4))
        self.eventually("it is kept, held, listed", lambda: list(self.alive().values()) == ["sleep"])
        self.assertEqual(len(self.one(got, "end")["left"]), 1)

    def test_much_output(self):
        self.assertEqual(self.text(self.say("run seq 200000")), "".join(f"{i}\n" for i in range(1, 200001)))

    def test_a_tool_takes_too_long(self):
        self.patiently(self.tool_takes_too_long, 0.5, 10)

    def tool_takes_too_long(self, timeout):
        self.restarted("--tool-timeout", str(timeout))
        self.eventually("nothing is left", lambda: not self.alive())
        got = self.say("run sleep 600 & sleep 600\nshell X=kept; cd /tmp; sleep 600; pwd; echo $X\nrun echo next")
        first = [e for e in got if e["event"] == "exit"][0]
        self.assertEqual((first["status"], first["ended_by"]), ("signaled", "deadline"))
        self.assertIn("/tmp\nkept\nnext\n", self.text(got))  # the terminal has outlived its command
        self.assertEqual(list(self.alive().values()), ["bash"])

    def test_mistakes_are_told(self):
        got = self.say("tool add {bad json\nrun echo on")
        self.assertEqual((len([e for e in got if e["event"] == "error"]), self.text(got)), (1, "on\n"))
        self.assertEqual(self.one(got, "end")["state"], "finished")
        for text in ("/log nosuch-p1", "/kill x", "/background"):
            self.one(self.say(text), "error")

    # -- how a turn ends

    def mess(self):
        return "run setsid sleep 601 & (sleep 602 &) ; trap '' TERM; echo ready; while :; do sleep 1; done"

    def test_stop(self):
        a = self.send(self.mess())
        a.until("output")
        self.eventually("all of it runs", lambda: len(self.alive()) >= 3)
        held = self.alive()
        other = self.send("run echo ready; sleep 603", session="other")
        other.until("output")
        self.assertTrue(self.one(self.say("/stop"), "stopped")["complete"])
        end = a.until("end")
        self.assertEqual((end["state"], end["reason"], end["complete"]), ("abandoned", "stop", True))
        self.assertEqual([p for p in held if exists(p)], [])
        self.assertTrue(self.alive("other"))
        self.assertEqual(self.text(self.say("run echo next")), "next\n")
        self.assertFalse(self.one(self.say("/stop"), "stopped")["complete"])
        self.say("/stop", "other")
        other.until("end")

    def test_busy(self):
        a = self.send("run echo ready; sleep 600")
        a.until("output")
        with self.assertRaisesRegex(AssertionError, "409"):
            self.say("run echo second")
        self.say("/stop")
        self.assertEqual(a.until("end")["reason"], "stop")

    def restarted(self, *options):
        self.gateway.kill()
        self.gateway.wait()
        self.start(*options)

    def test_inactivity(self):
        self.patiently(self.inactivity, 3, 20)

    def inactivity(self, idle):
        self.restarted("--idle", str(idle))
        got = self.say(f"run for i in 1 2 3 4 5 6; do echo $i; sleep {idle / 4}; done\nrun echo busy; trap '' TERM; sleep 600 & wait; wait")
        self.assertEqual(self.text(got), "1\n2\n3\n4\n5\n6\nbusy\n")  # longer than the limit, and not idle
        self.assertEqual((self.one(got, "end")["reason"], self.one(got, "end")["complete"]), ("idle", True))
        self.assertEqual(self.alive(), {})

    def test_a_slow_silent_tool_is_not_idle(self):
        self.patiently(self.slow_silent_tool_is_not_idle, 3, 20)

    def slow_silent_tool_is_not_idle(self, idle):
        self.restarted("--idle", str(idle))
        got = self.say(f"run timeout {2 * idle + 2} sh -c 'while :; do :; done'; echo built")
        self.assertEqual((self.text(got), self.one(got, "end")["reason"]), ("built\n", "finished"))

    def test_a_chatty_endless_tool(self):
        self.patiently(self.chatty_endless_tool, 3, 20)

    def chatty_endless_tool(self, idle):
        self.restarted("--idle", str(idle), "--wall", str(idle + 2))
        got = self.say("run while :; do echo x; sleep 0.05; done")
        self.assertGreater(len(self.text(got)), 20)
        self.assertEqual((self.one(got, "end")["reason"], self.one(got, "end")["complete"]), ("wall", True))

    def test_a_tool_that_ignores_term(self):
        self.patiently(self.tool_that_ignores_term, 1, 20)

    def tool_that_ignores_term(self, wall):
        self.restarted("--wall", str(wall))
        a = self.send(self.mess())
        a.until("output")
        held = self.alive()
        self.assertEqual(a.until("end")["reason"], "wall")
        self.assertEqual([p for p in held if exists(p)], [])

    # -- clients that hang up, gateways that go

    def test_the_client_hangs_up(self):
        self.patiently(self.client_hangs_up, 0.5, 20)

    def client_hangs_up(self, window):
        self.restarted("--window", str(window))
        a = self.send("run echo ready; sleep 600")
        a.until("output")
        turn = a.events[0]["turn"]
        a.hang_up()
        self.assertEqual(self.client.attach(turn).wait(60), "abandoned")
        self.assertEqual(self.client.receipt(turn).reason, "client_gone")
        self.eventually("the session is free", lambda: self.send("hello").until_free())

    def test_the_client_comes_back(self):
        self.restarted("--window", "20")
        a = self.send("run echo one; read x </dev/null; until [ -e go ]; do sleep 0.05; done; echo two")
        a.until("output")
        turn = self.client.attach(a.events[0]["turn"])
        a.hang_up()
        clock = lambda: [c for c in turn.refresh()["clocks"] if c["name"] == "client"][0]["running"]
        self.eventually("its window runs", clock)
        b = self.again()
        b.until("output")
        self.eventually("its window stands still", lambda: not clock())
        (self.dir / "go").touch()
        self.assertEqual((b.until("end")["reason"], self.text(b.events)), ("finished", "one\ntwo\n"))

    def test_the_gateway_is_killed(self):
        job = self.one(self.say("job echo working; sleep 600"), "job")["job"]
        self.say("shell true\ntool whoami")
        a = self.send("run echo done >>count; echo first\nrun echo ready >>count; echo ready; until [ -e go ]; do sleep 0.05; done; echo over\nrun echo last")
        a.until("output")
        a.until("output")
        turn = a.events[0]["turn"]
        self.gateway.kill()
        self.gateway.wait()
        a.hang_up()
        self.eventually("the helpers go with the gateway", lambda: not {"bash", "python3"} & set(self.alive().values()))
        self.start()
        b = self.again()  # whoever listens finds it resumed
        self.eventually("it is heard", lambda: b.until("output"))
        self.assertEqual((b.events[0]["event"], b.events[0]["turn"], b.events[0]["line"]), ("resume", turn, 1))
        (self.dir / "go").touch()
        end = b.until("end")
        self.assertEqual((end["state"], end["reason"], self.text(b.events)), ("finished", "finished", "ready\nover\nlast\n"))
        self.assertEqual((self.dir / "count").read_text(), "done\nready\n")  # each ran once
        self.assertEqual(self.client.attach(turn).epoch, 2)
        self.assertEqual(self.one(self.say("/jobs"), "job")["state"], "running")
        self.assertEqual(self.text(self.say(f"/log {job}")), "working\n")
        self.assertEqual(sorted(self.alive().values()), ["sh", "sleep"])  # the job, and nothing else
        self.assertEqual(list((self.dir / "state" / "messages").iterdir()), [])

    def test_the_gateway_is_killed_for_good(self):
        self.patiently(self.gateway_is_killed_for_good, 0.5, 20)

    def gateway_is_killed_for_good(self, window):
        self.restarted("--window", str(window))
        self.say("shell true\ntool whoami")
        a = self.send(self.mess())
        a.until("output")
        turn = a.events[0]["turn"]
        self.eventually("all of it runs", lambda: len(self.alive()) >= 4)
        self.gateway.kill()
        self.gateway.wait()
        self.assertEqual(self.client.attach(turn).wait(60), "abandoned")  # there is no gateway to do that
        self.assertEqual((self.client.receipt(turn).reason, self.client.receipt(turn).complete), ("client_gone", True))
        self.eventually("nothing is left", lambda: not self.alive())
        a.hang_up()
        self.start()
        self.assertEqual(self.text(self.say("run echo next")), "next\n")  # and what was ended is not begun again

    def test_the_gateway_is_stopped(self):
        self.patiently(self.gateway_is_stopped, 2, 20)

    def gateway_is_stopped(self, lease):
        self.restarted("--lease", str(lease))
        a = self.send("run echo ready; trap '' TERM; while :; do sleep 0.1; done")
        a.until("output")
        turn = self.client.attach(a.events[0]["turn"])
        time.sleep(2 * lease)
        self.assertEqual(turn.state, "open")  # renewed
        self.gateway.send_signal(signal.SIGSTOP)
        self.assertEqual(turn.wait(60), "abandoned")
        self.assertEqual((self.client.receipt(turn.id).reason, self.alive()), ("lease_expired", {}))
        self.gateway.send_signal(signal.SIGCONT)
        self.assertEqual(a.until("end")["reason"], "lease_expired")
        self.assertEqual(self.text(self.say("run echo next")), "next\n")

    def test_a_stopped_gateway_is_replaced(self):
        a = self.send("run echo ready; until [ -e go ]; do sleep 0.05; done; echo over\nrun echo >>twice; echo last")
        a.until("output")
        old = self.gateway
        old.send_signal(signal.SIGSTOP)
        self.socket = str(self.dir / "other.sock")
        self.start()
        b = self.again()
        b.until("output")
        old.send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        self.assertEqual((a.until("end")["reason"], b.until("end")["reason"]), ("taken", "finished"))
        self.assertEqual((self.text(b.events), (self.dir / "twice").read_text()), ("ready\nover\nlast\n", "\n"))

    # -- jobs

    def test_jobs(self):
        a = self.send("job echo working; sleep 600\nrun echo ready; sleep 600")
        job = a.until("job")["job"]
        a.until("output")
        self.eventually("it works", lambda: self.text(self.say(f"/log {job}")) == "working\n")
        self.say("/stop")  # is not about jobs, not of this turn either
        a.until("end")
        self.say("/new")
        listed = self.one(self.say("/jobs"), "job")
        self.assertEqual((listed["job"], listed["state"], listed["command"]), (job, "running", "echo working; sleep 600"))
        self.assertFalse(self.one(self.say("/quiet"), "quiet")["quiet"])
        for command in ("log", "kill"):
            self.assertEqual([e["event"] for e in self.say(f"/{command} {job}", session="stranger")], ["error"])
        self.assertEqual(self.one(self.say(f"/kill {job}"), "job")["state"], "ended")
        self.assertEqual(self.alive(), {})
        self.assertTrue(self.one(self.say("/quiet"), "quiet")["quiet"])

    def test_a_command_goes_on_in_the_background(self):
        a = self.send("run i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done\nrun echo next")
        a.until("output")
        job = self.one(self.say("/background"), "job")["job"]
        self.assertEqual(a.until("end")["reason"], "finished")
        self.assertTrue(self.text(a.events).endswith("next\n"))
        self.say("/new")
        at = self.one(self.say("/jobs"), "job")["bytes"]
        self.eventually("it goes on", lambda: self.one(self.say("/jobs"), "job")["bytes"] > at + 20)
        self.say(f"/kill {job}")
        out = b"".join(p for p in self.client.job(job).output() if isinstance(p, bytes)).split()
        self.assertEqual([int(x) for x in out], list(range(1, len(out) + 1)))  # all of it
        self.assertEqual([e["event"] for e in self.say("/background")], ["error"])

    def test_what_became_of_jobs_is_told_once(self):
        started = [e["job"] for e in self.say("job exit 7\njob until [ -e go ]; do sleep 0.05; done; exit 8\njob sleep 600") if e["event"] == "job"]
        notes = lambda: [(e["job"], e["code"]) for e in self.say("/notes") if e["event"] == "note"]
        self.eventually("the first has ended", lambda: notes() == [(started[0], 7)])
        self.say(f"/kill {started[2]}")  # whoever stopped it needs no note
        self.gateway.kill()
        self.gateway.wait()
        (self.dir / "go").touch()
        self.assertEqual(self.client.job(started[1]).wait(60).code, 8)  # while there is no gateway
        for _ in range(2):
            self.start()
            self.eventually("the second has ended", lambda: len(notes()) == 2)
            self.assertEqual(notes(), [(started[0], 7), (started[1], 8)])
            self.gateway.kill()
            self.gateway.wait()

    def test_the_service_is_killed(self):
        a = self.send("run echo before; for i in $(seq 100); do sleep 0.02; echo $i; done; exit 9\nshell echo $$")
        a.until("output")
        self.service.kill()
        time.sleep(0.2)
        self.service.start()
        end = a.until("end")
        self.assertEqual(self.text(a.events[:-3]), "before\n" + "".join(f"{i}\n" for i in range(1, 101)))
        self.assertEqual([e["code"] for e in a.events if e["event"] == "exit"], [9, 0])
        self.assertEqual(end["state"], "finished")

    # -- helpers that stay

    def test_the_terminal_stays(self):
        got = self.say("shell cd /tmp; X=here\nshell tty; stty size; false")
        self.assertRegex(self.text(got), r"^/dev/pts/\d+\n24 80\n$")
        self.assertEqual([e["code"] for e in got if e["event"] == "exit"], [0, 1])
        self.assertEqual(self.text(self.say("shell pwd; echo $X")), "/tmp\nhere\n")

    def test_stop_in_the_terminal(self):
        self.say("shell X=kept")
        a = self.send("shell sleep 604\nrun echo never")
        self.eventually("sleep runs", lambda: "sleep" in self.alive().values())
        self.say("/stop")
        self.assertEqual(a.until("end")["reason"], "stop")
        self.assertNotIn("never", self.text(a.events))
        self.eventually("sleep is over", lambda: "sleep" not in self.alive().values())
        self.assertEqual(self.text(self.say("shell echo $X")).strip(), "kept")

    def test_a_terminal_that_ends(self):
        self.assertIn("error", [e["event"] for e in self.say("shell exit")])
        self.assertEqual(self.text(self.say("shell echo again")), "again\n")

    def test_the_tool_server(self):
        got = self.say('tool add {"a": 2, "b": 3}\ntool whoami\ntool nosuch')
        results = [e["result"] for e in got if e["event"] == "result"]
        self.assertEqual(results[0]["content"][0]["text"], "5")
        first = json.loads(results[1]["content"][0]["text"])
        self.assertEqual(first["calls"], 2)
        self.assertIn("KeyError", results[2]["message"])
        again = json.loads(self.one(self.say("tool whoami"), "result")["result"]["content"][0]["text"])
        self.assertEqual(again["pid"], first["pid"])

    def test_new_ends_the_helpers_and_what_they_forgot(self):
        got = self.say("shell sleep 605 & disown\ntool forget\ntool whoami")
        held = {}

        def both():
            held.clear()
            held.update(self.alive())
            return list(held.values()).count("sleep") == 2
        self.eventually("both of them sleep", both)
        self.say("/new")
        self.assertEqual(self.alive(), {})
        self.assertEqual([p for p in held if exists(p)], [])
        self.assertEqual(self.one(got, "end")["state"], "finished")
        self.assertEqual(self.text(self.say("shell echo $(jobs)")).strip(), "")

    def test_it_goes_in_peace(self):
        self.say("shell true\ntool whoami\njob sleep 600")
        a = self.send("run echo ready; sleep 600")
        a.until("output")
        self.gateway.terminate()
        self.assertEqual(self.gateway.wait(60), 0)
        a.hang_up()
        self.eventually("only the job is left", lambda: list(self.alive().values()) in (["sleep"], ["sh", "sleep"]))


if __name__ == "__main__":
    unittest.main()
