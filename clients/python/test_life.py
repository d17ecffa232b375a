"""Clocks, clients, epochs, and what ends a turn: against the real service."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import pinfold
from testservice import HERE, ServiceCase, exists


class Life(ServiceCase):
    def ended_by(self, turn, bound=60):
        turn.wait(bound)
        return self.client.receipt(turn.id).reason

    def while_away(self, ask):
        """Asks while the service is away. It dies with the thread that starts it."""
        self.service.kill()
        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
        self.service.start()
        thread.join(60)
        self.assertFalse(thread.is_alive())

    def program(self, code, *args):
        """A client of its own, that runs code with `client` and `args`."""
        head = "import sys, time, pinfold\nclient = pinfold.Client(sys.argv[1])\nargs = sys.argv[2:]\n"
        p = subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(code), self.service.socket, *args], cwd=HERE,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.kill(), p.wait(), p.stdin.close(), p.stdout.close()))
        return p

    def test_clocks(self):
        t = self.turn(wall=3600, lease=600, idle=300, idle_by=["cpu", "output"], leftovers_max=60)
        clocks = {c["name"]: c for c in t.touch()}
        self.assertEqual({k: c["limit_ms"] for k, c in clocks.items()}, {"wall": 3600000, "lease": 600000, "idle": 300000, "leftovers": 60000})
        self.assertEqual((t.info["idle_by"], clocks["leftovers"]["running"]), (["cpu", "output"], False))
        self.assertEqual({e["reason"] for e in t.why()["ends"]} & {"wall", "idle", "lease_expired"}, {"wall", "idle", "lease_expired"})

    def test_each_clock_ends_it(self):
        for reason, options in {"wall": {"wall": 0.3}, "lease_expired": {"lease": 0.3}, "idle": {"idle": 0.3, "idle_by": ["touch"]}}.items():
            with self.subTest(reason):
                t = self.turn(**options)
                self.assertEqual(self.ended_by(t), reason)
                with self.assertRaises(pinfold.TurnOver):
                    t.touch()

    def test_touched_it_goes_on(self):
        self.patiently(self.touched, 3, 24)

    def touched(self, lease):
        t = self.turn(lease=lease)
        p = t.launch(["sleep", "600"])
        for _ in range(20):
            time.sleep(lease / 12)
            t.touch()
        self.assertEqual((t.state, exists(p.pid)), ("open", True))

    def test_frozen(self):
        self.patiently(self.frozen, 2, 20)

    def frozen(self, wall):
        t = self.turn(wall=wall)
        p = t.launch(["sh", "-c", "while :; do echo x; sleep 0.01; done"], stdout="spool")
        t.freeze()
        self.assertTrue(t.info["frozen"])
        before, now = -1, p.output().tail(0).total
        while before != now:  # what it had said may be on its way
            time.sleep(0.2)
            before, now = now, p.output().tail(0).total
        time.sleep(wall + 0.5)
        self.assertEqual((t.state, p.output().tail(0).total), ("open", before))
        t.thaw()
        self.assertEqual(self.ended_by(t), "wall")

    def test_bound_to_a_process(self):
        p = self.program("""
            t = client.begin(bind="process", window=0.2, leftovers="reap")
            t.launch(["sleep", "600"])
            print(t.id, flush=True)
            sys.stdin.readline()""")
        t = self.client.attach(p.stdout.readline().strip())
        self.assertEqual(t.info["client"], {"bind": "process", "after_ms": 200})
        self.assertEqual(t.state, "open")
        p.kill()
        self.assertEqual(self.ended_by(t), "client_gone")

    def test_detached_it_goes_on(self):
        p = self.program("""t = client.begin(bind="process", on_client_gone="detach"); print(t.id, flush=True)""")
        t = self.client.attach(p.stdout.readline().strip())
        self.addCleanup(lambda: t.abandon(grace=0))
        p.wait()
        self.eventually("its client has gone", lambda: "client_gone" in [e.kind for e in t.events()])
        self.assertEqual(t.state, "open")

    def test_held(self):
        self.patiently(self.held, 0.5, 10)

    def held(self, window):
        t = self.turn(bind="connection", window=window)
        with t.hold() as hold:
            time.sleep(window + 1)
            self.assertEqual((t.state, hold.over), ("open", False))
        self.assertEqual(self.ended_by(t), "client_gone")
        with self.assertRaises(pinfold.TurnOver):
            t.hold().open()

    def test_a_hold_tells_the_end(self):
        t = self.turn(bind="connection", window=30)
        with t.hold() as hold:
            with self.assertRaises(pinfold.Timeout):
                hold.wait(0.05)
            t.abandon("stop", grace=0)
            self.assertEqual(hold.wait(60), "abandoned")

    def test_closed_it_says_so(self):
        hold = self.turn(bind="connection", window=30).hold().open()
        hold.close()
        with self.assertRaises(pinfold.Unavailable):
            hold.wait(60)

    def test_held_with_asyncio(self):
        self.patiently(self.held_with_asyncio, 0.5, 10)

    def held_with_asyncio(self, window):
        t = self.turn(bind="connection", window=window)

        async def main():
            async with t.hold():
                await asyncio.sleep(window + 0.5)
                return t.state

        self.assertEqual(asyncio.run(main()), "open")
        self.assertEqual(self.ended_by(t), "client_gone")

    def test_held_over_a_restart(self):
        self.patiently(self.held_over_a_restart, 2, 15)

    def held_over_a_restart(self, window):
        t = self.turn(bind="connection", window=window)
        with t.hold() as hold:
            for stop in (self.service.kill, lambda: self.service.process.terminate()):
                stop()
                self.service.process.wait()
                self.service.start()
                time.sleep(window + 1)
                self.assertEqual((t.state, hold.over), ("open", False))
            self.while_away(lambda: t.abandon(grace=0))
            self.assertEqual(hold.wait(60), "abandoned")

    def test_who_holds_it_is_killed(self):
        self.patiently(self.who_holds_it_is_killed, 0.3, 10)

    def who_holds_it_is_killed(self, window):
        p = self.program("""
            t = client.begin(bind="connection", window=float(args[0]))
            hold = t.hold().open()
            t.launch(["sleep", "600"])
            print(t.id, flush=True)
            time.sleep(600)""", str(window))
        t = self.client.attach(p.stdout.readline().strip())
        time.sleep(window + 0.7)
        self.assertEqual(t.state, "open")
        p.kill()
        self.assertEqual(self.ended_by(t), "client_gone")

    def test_taken(self):
        old = self.turn(bind="connection", window=60)
        p = old.launch(["sleep", "600"], stdin="pipe")
        hold = old.hold().open()
        new = self.client.attach(old.id).take(1)
        self.assertEqual((new.epoch, old.epoch), (2, 1))
        with self.assertRaises(pinfold.StaleEpoch):
            hold.wait(60)
        for refused in (lambda: old.launch(["true"]), old.touch, old.freeze, old.thaw, old.abandon, old.finish, old.hold().open,
                        p.promote, p.end, lambda: p.signal("KILL"), lambda: p.write(b"x"), lambda: old.run(["true"]),
                        lambda: self.client.attach(old.id).take(1)):
            with self.assertRaises(pinfold.StaleEpoch):
                refused()
        self.assertEqual((exists(p.pid), [x.id for x in new.processes()]), (True, ["p1"]))
        with self.assertLogs("pinfold", "WARNING") as logs, self.assertRaises(ZeroDivisionError), old:
            1 / 0
        self.assertIn("another's", logs.output[0])
        with new:
            new.launch(["true"]).wait(60)
        self.assertEqual(new.receipt.state, "finished")
        self.client.attach(old.id).abandon(leftovers=True, grace=0)

    def test_superseded(self):
        old, other = self.turn(session="s1"), self.turn(session="s2")
        p = old.launch(["sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600"])
        new = self.turn(session="s1", supersede=True)
        self.assertEqual((self.ended_by(old), other.state, new.state), ("superseded", "open", "open"))
        self.assertFalse(exists(p.pid))
        with self.assertRaises(pinfold.BadRequest):
            self.turn(supersede=True)

    def test_one_key_begins_once(self):
        a = self.turn(session="k", idempotency_key="key")
        b = self.client.begin(label=self.id(), session="k", idempotency_key="key")
        self.assertEqual((a.id, b.info["repeated"]), (b.id, True))
        with self.assertRaises(pinfold.IdempotencyConflict):
            self.client.begin(session="another", idempotency_key="key")

    def test_begun_once_though_the_service_was_away(self):
        self.while_away(lambda: self.turn(session="away"))
        self.assertEqual(len(self.client.turns(session="away")), 1)

    def test_a_policy_of_its_own(self):
        self.assertEqual(self.client.policy()["finished"], {"processes": "keep", "jobs": "keep"})
        t = self.turn(policy={"idle": {"processes": "keep"}}, leftovers_max=1)
        p = t.launch(["sleep", "600"])
        r = t.abandon("idle")
        self.assertEqual((r.state, [x["pid"] for x in r.leftovers]), ("abandoned", [p.pid]))
        self.eventually("the leftover has had its time", lambda: not exists(p.pid))


if __name__ == "__main__":
    unittest.main()
