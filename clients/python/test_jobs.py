"""Jobs, and what is ended with what: against the real service."""

import asyncio
import os
import socket
import sys
import unittest

import pinfold
from testservice import ServiceCase, exists, own_dir

BEAT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"


class Jobs(ServiceCase):
    def job(self, *args, **options):
        j = self.client.start_job(*args, **options)
        self.addCleanup(lambda: j.stop(grace=0))
        return j

    def promoted(self, job):
        self.addCleanup(lambda: job.stop(grace=0))
        return job

    def test_started(self):
        where = own_dir(self)
        j = self.job(["sh", "-c", "echo $A; read x; echo got $x; exit 3"], name="a name", session="s", labels={"k": "v"}, max=600,
                     env={"A": "1"}, cwd=where, stdin="pipe")
        self.assertEqual((j.name, j.session, j.info["labels"], j.info["origin"], j.state), ("a name", "s", {"k": "v"}, "started", "running"))
        self.assertEqual([x.id for x in self.client.jobs(session="s")], [j.id])
        self.assertEqual(([x.id for x in self.client.jobs(cwd=where)], self.client.jobs(cwd="/nonesuch")), ([j.id], []))
        j.write(b"it\n", close=True)
        self.assertEqual(b"".join(j.output()), b"1\ngot it\n")
        self.assertEqual((j.wait(60).returncode, j.state), (3, "ended"))
        self.assertEqual(self.client.jobs(session="s"), [])
        self.assertEqual([x.status.code for x in self.client.jobs(session="s", all=True)], [3])
        self.assertEqual(j.output().tail(3).data, b"it\n")

    def test_what_cannot_be_started(self):
        with self.assertRaises(FileNotFoundError):
            self.client.start_job(["/no/such/program"])
        with self.assertRaisesRegex(ValueError, "descriptors"):
            self.client.start_job(["true"], stdout=sys.stdout)
        with self.assertRaises(pinfold.NotFound):
            self.client.job("nosuch-p1")
        with self.assertRaises(pinfold.BadRequest):
            self.client.job("../turns")

    def test_its_maximum(self):
        j = self.job(["sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600"], max=0.5, grace=0)
        self.assertEqual(j.wait(60).signal, "SIGKILL")
        self.assertEqual((j.info["reason"], j.info["alive"]), ("wall", 0))

    def test_lingering(self):
        j = self.job(["sh", "-c", "setsid sleep 600 & exit 4"])
        self.eventually("it lingers", lambda: j.state == "lingering")
        self.assertEqual(j.status.code, 4)
        with self.assertRaises(pinfold.Timeout):
            j.wait(0.1)
        j.stop()
        self.assertEqual((j.state, j.info["alive"], j.status.code), ("ended", 0, 4))

    def test_promoted_it_loses_nothing(self):
        t = self.turn(session="first")
        stays = t.launch(["sleep", "600"])
        p = t.launch(["sh", "-c", BEAT], stdout="spool")
        self.eventually("it beats", lambda: p.output().tail(0).total > 10)
        j = self.promoted(p.promote(name="beats", labels={"a": "b"}))
        self.assertEqual((j.info["origin"], j.session, [x.id for x in t.jobs()]), ("promoted", "first", [j.id]))
        self.assertEqual(p.promote().id, j.id)  # once
        r = t.abandon(grace=0)
        self.assertEqual((r.complete, exists(stays.pid), exists(p.pid)), (True, False, True))
        self.assertEqual([x["id"] for x in r.raw["jobs"]], [j.id])
        at = j.output().tail(0).total
        self.eventually("it beats on", lambda: j.output().tail(0).total > at + 10)
        j.stop(grace=0)
        out = b"".join(x for x in j.output() if isinstance(x, bytes)).split()
        self.assertEqual([int(x) for x in out], list(range(1, len(out) + 1)))
        self.assertEqual((j.state, j.info["reason"], exists(p.pid)), ("ended", "stop", False))

    def test_promoted_from_popen(self):
        with self.turn() as t:
            with t.Popen(["sh", "-c", "read x; sleep 600"], stdin=pinfold.PIPE) as p:
                j = self.promoted(p.promote(name="n", session=""))
        self.assertEqual((t.receipt.state, j.session, j.state), ("finished", "", "running"))

    def test_promoted_with_asyncio(self):
        t = self.turn()

        async def main():
            p = await t.create_subprocess_exec("sleep", "600")
            j = await p.promote(name="async")
            p._end.cancel()
            return j

        j = self.promoted(asyncio.run(main()))
        t.abandon(grace=0)
        self.assertEqual((j.name, j.state), ("async", "running"))

    def test_a_daemon_is_ejected(self):
        t = self.turn()
        path = str(own_dir(self) / "sock")
        server = ("import os, socket, sys, time\nif os.fork(): time.sleep(600)\nos.setsid()\ns = socket.socket(socket.AF_UNIX)\n"
                  "s.bind(sys.argv[1]); s.listen()\nkept = []\nwhile 1: kept.append(s.accept())")
        p = t.launch([sys.executable, "-c", server, path])
        self.eventually("it listens", lambda: os.path.exists(path))
        with socket.socket(socket.AF_UNIX) as c:
            self.eventually("it takes us", lambda: c.connect_ex(path) in (0, 106))
            found = self.eventually("it is told to be used", lambda: t.why()["servers"])
            self.assertEqual([(s["socket"], os.getpid() in [m["pid"] for m in s["clients"]]) for s in found], [("unix:" + path, True)])
            self.assertEqual([s["pid"] for s in t.plan()["servers"]], [found[0]["pid"]])
        self.assertNotEqual(found[0]["pid"], p.pid)
        j = self.promoted(p.promote(pid=found[0]["pid"], name="a daemon"))
        t.abandon(grace=0)
        self.assertEqual((j.info["origin"], j.state, exists(found[0]["pid"]), exists(p.pid)), ("ejected", "running", True, False))

    def test_given(self):
        j = self.job(["sleep", "600"], session="one")
        t = self.turn(session="two")
        j.give(turn=t.id)
        self.assertEqual((j.session, [x.id for x in t.jobs()], self.client.jobs(session="one")), ("two", [j.id], []))
        t.abandon(grace=0)
        self.assertEqual(j.state, "running")
        j.give(session="")
        self.assertEqual((j.session, j.state), ("", "running"))

    def test_its_end_is_told(self):
        j = self.client.start_job(["sh", "-c", "exit 5"])
        j.wait(60)
        told = [e for e in self.client.events(turn=j.info["turn"], kinds=["job"])]
        self.assertEqual([(e.job, e.raw["message"], e.stopped) for e in told], [(j.id, "started", False), (j.id, "ended", False)])
        self.assertEqual(told[1].status.returncode, 5)


class Targets(ServiceCase):
    def test_end_a_process(self):
        t = self.turn()
        p = t.launch(["sh", "-c", "setsid sleep 600 & sleep 600"])
        q = t.launch(["sleep", "600"])
        self.eventually("three sleep", lambda: len(t.tree()) == 4)
        dry = p.end(dry_run=True)
        self.assertEqual((len(dry.targets), {x["would"] for x in dry.targets}, exists(p.pid)), (3, {"signalled"}, True))
        done = p.end(grace=20)
        self.assertEqual((done.complete, done.ended, done.survivors), (True, 3, []))
        self.assertEqual([m["pid"] for m in t.tree()], [q.pid])

    def test_spare_the_shell(self):
        t = self.turn()
        p = t.launch(["sh", "-c", "cd /tmp; sleep 600; echo $?; pwd"], stdout="spool")
        self.eventually("it sleeps", lambda: len(t.tree()) == 2)
        self.assertTrue(p.end(grace=0, descendants_only=True).complete)
        self.assertEqual((b"".join(p.output()), p.wait(60).code), (b"137\n/tmp\n", 0))

    def test_abandon_many(self):
        canary = self.turn(session="other", labels={"x": "y"})
        a, b, c = self.turn(session="s"), self.turn(session="s"), self.turn(labels={"x": "z", "w": "1"})
        j = self.client.start_job(["sleep", "600"], session="s")
        plan = self.client.abandon(session="s", dry_run=True)
        self.assertEqual(({p["turn"] for p in plan.plans}, a.state), ({a.id, b.id}, "open"))
        done = self.client.abandon(session="s", reason="operator", grace=0)
        self.assertEqual(({r.turn for r in done.receipts}, {r.reason for r in done.receipts}, done.complete), ({a.id, b.id}, {"operator"}, True))
        self.assertEqual(j.state, "running")
        self.assertEqual([x["id"] for x in self.client.abandon(session="s", jobs=True, grace=0).jobs], [j.id])
        self.assertEqual([r.turn for r in self.client.abandon(labels={"x": "z"}, grace=0).receipts], [c.id])
        again = self.client.abandon([a.id, "nosuch"])
        self.assertEqual(([r.turn for r in again.receipts], list(again.refused), again.complete), ([a.id], ["nosuch"], False))
        self.assertEqual(again.refused["nosuch"].code, "not_found")
        self.assertEqual(canary.state, "open")

    def test_nothing_means_none(self):
        t = self.turn()
        for options in ({}, {"turns": []}, {"session": ""}, {"labels": {}}, {"session": "s", "owner": 0}, {"session": "*"}, {"turns": ["*"]}, {"turns": [""]}):
            with self.assertRaises(pinfold.BadRequest, msg=str(options)):
                self.client.abandon(**options)
        self.assertEqual(t.state, "open")

    def test_quiet(self):
        where = own_dir(self)
        self.assertTrue(self.client.quiet(where))
        t = self.turn()
        p = t.launch(["sleep", "600"], cwd=where)
        q = self.client.quiet(where)
        self.assertFalse(q)
        self.assertEqual([(u["turn"], u["process"], u["pid"], u["how"]) for u in q.uses], [(t.id, p.id, p.pid, "cwd")])
        p.end(grace=0)
        self.assertTrue(self.client.quiet(where))

    def test_a_blank_path_is_none(self):
        for ask in (lambda: self.client.quiet(""), lambda: self.client.jobs(cwd=""), lambda: self.turn().launch(["true"], cwd="")):
            with self.assertRaisesRegex(ValueError, "blank"):
                ask()


if __name__ == "__main__":
    unittest.main()
