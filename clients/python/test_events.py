"""What happens: against the real service."""

import threading
import unittest

import pinfold
from testservice import ServiceCase


class Events(ServiceCase):
    def test_a_turn(self):
        with self.client.turn(session="s") as t:
            p = t.launch(["sh", "-c", "exit 3"])
            p.wait(60)
        told = list(t.events(kinds=["begun", "launch", "exit", "ending", "ended"]))
        self.assertEqual([(e.kind, e.process, e.stopped) for e in told],
                         [("begun", "", False), ("launch", p.id, False), ("exit", p.id, False), ("ending", "", True), ("ended", "", True)])
        self.assertEqual([e.seq for e in told], sorted({e.seq for e in told}))
        self.assertEqual((told[2].status.returncode, told[0].turn), (3, t.id))
        self.assertEqual([e.kind for e in t.events(after=told[2].seq, kinds=["exit", "ended"])], ["ended"])
        self.assertEqual(list(self.client.events(after=-1)), [])
        self.assertIn(t.id, {e.turn for e in self.client.events(session="s")})

    def test_follow_over_a_restart(self):
        t = self.turn()
        events = t.events(after=-1, kinds=["exit"], follow=True)
        got = []
        ready = threading.Event()

        def follow():
            for e in events:
                got.append(e)
                ready.set()
                if len(got) == 2:
                    return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        self.eventually("the reader has begun", lambda: events.after != -1)
        t.launch(["true"]).wait(60)
        self.assertTrue(ready.wait(60))
        self.service.kill()
        self.service.start()
        second = t.launch(["false"])  # asked again until the keeper has answered, which may cost numbers
        second.wait(60)
        thread.join(60)
        self.assertEqual([(e.process, e.status.returncode) for e in got], [("p1", 0), (second.id, 1)])

    def test_one_is_first(self):
        t = self.turn()
        t.launch(["true"]).wait(60)
        first = next(iter(t.events(kinds=["exit"])))
        self.assertTrue(self.client.acknowledge_events("c", first.seq))
        self.assertFalse(self.client.acknowledge_events("c", first.seq))
        self.assertGreater(next(iter(self.client.events(consumer="c")), pinfold.Event(1 << 60, "", "", "", False, {})).seq, first.seq)
        with self.assertRaises(pinfold.BadRequest):
            self.client.acknowledge_events("not a name", 1)
        with self.assertRaises(pinfold.BadRequest):
            list(self.client.events(kinds=["nonsense"]))


if __name__ == "__main__":
    unittest.main()
