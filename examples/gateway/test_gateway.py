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

    def __init__(self, path, session, text):
        self.connection = Connection(path)
        self.connection.request("POST", f"/sessions/{session}", text.encode())
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
            [sys.executable, HERE / "gateway.py", "--listen", self.socket, "--name", self.id(), "--workspace", self.dir, *options],
            stdout=subprocess.PIPE, env=dict(os.environ, PINFOLD_SOCKET=self.service.socket, SECRET="s3cret", **env),
            preexec_fn=lambda: prctl(1, signal.SIGKILL))  # PR_SET_PDEATHSIG
        self.addCleanup(lambda: (g.kill(), g.wait(), g.stdout.close()))
        self.assertIn(b"listening", g.stdout.readline())

    def send(self, text, session=""):
        return Answer(self.socket, session or self.chat, text)

    def say(self, text, session=""):
        return list(self.send(text, session))

    def one(self, events, kind):
        found = [e for e in events if e["event"] == kind]
        self.assertEqual(len(found), 1, events)
        return found[0]

    def text(self, events):
        return "".join(e["text"] for e in events if e["event"] == "output")

    def alive(self, session=""):
        """What the session's turns hold now: pid → comm."""
        held = {}
        for t in self.client.turns(session=session or self.chat, all=True):
            if t["alive"]:
                held.update({m["pid"]: m["comm"] for m in self.client.attach(t["id"]).tree()})
        return held

    # -- what a message does

    def test_foreground_tools(self):
        got = self.say("run echo out; echo err >&2; pwd; exit 3\nrun echo again\nhello")
        self.assertEqual(self.text(got), f"out\nerr\n{self.dir}\nagain\n")
        self.assertEqual([e["code"] for e in got if e["event"] == "exit"], [3, 0])
        self.assertIn("hello", self.one(got, "text")["text"])
        end = self.one(got, "end")
        self.assertEqual((end["state"], end["reason"], end["complete"], end["jobs"]), ("finished", "finished", True, []))

    def test_tools_do_not_see_secrets(self):
        text = self.text(self.say("run env"))
        self.assertIn("PATH=", text)
        self.assertNotIn("s3cret", text)
        self.assertNotIn("PINFOLD", text)

    def test_a_tool_that_leaves_a_server_does_not_hang(self):
        got = self.say("run setsid sleep 600 & echo started; exit 4")
        self.assertEqual((self.text(got), self.one(got, "exit")["code"]), ("started\n", 4))
        self.assertEqual(list(self.alive().values()), ["sleep"])  # kept, held, listed
        self.assertEqual(len(self.one(got, "end")["jobs"]), 1)

    def test_much_output(self):
        self.assertEqual(self.text(self.say("run seq 200000")), "".join(f"{i}\n" for i in range(1, 200001)))

    def test_a_tool_takes_too_long(self):
        self.gateway.kill()
        self.gateway.wait()
        self.start("--tool-timeout", "0.5")
        got = self.say("run sleep 600 & sleep 600\nrun echo next")
        first = [e for e in got if e["event"] == "exit"][0]
        self.assertEqual((first["status"], first["ended_by"]), ("signaled", "deadline"))
        self.assertEqual(self.text(got), "next\n")
        self.assertEqual(self.alive(), {})

    def test_mistakes_are_told(self):
        got = self.say("log nosuch/p1\ntool add {bad json\nend x")
        self.assertEqual(len([e for e in got if e["event"] == "error"]), 3, got)
        self.assertEqual(self.one(got, "end")["state"], "finished")

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

    def test_inactivity(self):
        self.gateway.kill()
        self.gateway.wait()
        self.start("--idle", "1.5")
        got = self.say("run for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done\nrun echo busy; sleep 600")
        self.assertEqual(self.text(got), "1\n2\n3\n4\n5\n6\nbusy\n")  # longer than the limit, and not idle
        self.assertEqual((self.one(got, "end")["reason"], self.one(got, "end")["complete"]), ("idle", True))

    def test_the_client_hangs_up(self):
        a = self.send("run echo ready; sleep 600")
        a.until("output")
        turn = a.events[0]["turn"]
        a.hang_up()
        self.assertEqual(self.client.attach(turn).wait(60), "abandoned")
        self.assertEqual(self.client.receipt(turn).reason, "client_gone")
        self.eventually("the session is free", lambda: self.send("hello").until_free())

    # -- jobs

    def test_jobs(self):
        job = self.one(self.say("job echo working; sleep 600"), "job")["job"]
        self.eventually("it works", lambda: self.text(self.say(f"log {job}")) == "working\n")
        a = self.send("run echo ready; sleep 600")
        a.until("output")
        self.say("/stop")  # is not about jobs of earlier turns
        a.until("end")
        self.say("/new")
        listed = self.one(self.say("jobs"), "job")
        self.assertEqual((listed["job"], listed["status"], listed["command"]), (job, "running", "echo working; sleep 600"))
        self.assertIn("error", [e["event"] for e in self.say(f"log {job}", session="stranger")])
        self.assertNotEqual(self.one(self.say(f"end {job}"), "job")["status"], "running")
        self.assertEqual(self.alive(), {})
        short = self.one(self.say("job exit 7"), "job")["job"]
        self.eventually("its code is known", lambda: [e for e in self.say("jobs") if e.get("job") == short and e["code"] == 7])

    def test_the_gateway_is_killed(self):
        job = self.one(self.say("job echo working; sleep 600"), "job")["job"]
        self.say("shell true\ntool whoami")
        a = self.send(self.mess())
        a.until("output")
        turn = a.events[0]["turn"]
        self.eventually("all of it runs", lambda: len(self.alive()) >= 6)
        self.gateway.kill()
        self.gateway.wait()
        a.hang_up()
        self.start()
        self.assertEqual(self.client.receipt(turn).reason, "client_gone")
        self.assertTrue(self.client.receipt(turn).complete)
        self.assertEqual(self.one(self.say("jobs"), "job")["status"], "running")
        self.assertEqual(self.text(self.say(f"log {job}")), "working\n")
        self.assertEqual(sorted(self.alive().values()), ["sh", "sleep"])  # the job, and nothing else

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
        held = self.alive()
        self.assertEqual(sorted(held.values()).count("sleep"), 2, held)
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
