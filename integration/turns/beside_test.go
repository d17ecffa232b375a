package turns

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Two turns and a process outside run the very same program. Ending one turn
// touches neither the other nor what is outside: names authorise nothing.
func TestBeside(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		f := files(t, "a", "b", "outside", "child of a", "child of b", "child outside")
		outside := startBeside(t, f[2], f[5])
		a, b := s.begin(t, api.BeginRequest{Label: "same"}), s.begin(t, api.BeginRequest{Label: "same"})
		if a.ID == b.ID || a.Cgroup == b.Cgroup {
			t.Fatalf("two turns are one: %s %s", a.ID, a.Cgroup)
		}
		a.launch(helper(t, "setsid", f[0], f[3]))
		pb := b.launch(helper(t, "setsid", f[1], f[4]))
		heart(f[0]).beating(t)
		heart(f[1]).beating(t)
		heart(f[3]).beating(t)
		heart(f[4]).beating(t)
		ino, err := sys.InoAt(sys.AtFDCWD, b.Cgroup)
		if err != nil {
			t.Fatal(err)
		}
		if r := a.abandon(0); r.Counts.Ended != 2 || len(r.Processes) != 1 {
			t.Errorf("the receipt counts %+v, processes %+v", r.Counts, r.Processes)
		}
		stopped(t, heart(f[0]), heart(f[3]))

		outside.lives()
		heart(f[5]).beating(t)
		heart(f[1]).beating(t)
		heart(f[4]).beating(t)
		v := b.look()
		if v.State != api.StateOpen || v.Alive != 2 || v.Processes[0].Status.State != api.ProcessRunning || v.Processes[0].PID != pb.PID {
			t.Errorf("the turn beside is %s, alive %d, %+v", v.State, v.Alive, v.Processes)
		}
		if now, err := sys.InoAt(sys.AtFDCWD, b.Cgroup); err != nil || now != ino {
			t.Errorf("its cgroup was %d and is %d: %v", ino, now, err)
		}
		b.abandon(0)
		stopped(t, heart(f[1]), heart(f[4]))
		outside.lives()
		heart(f[5]).beating(t)
	})
}

// startBeside runs the same program outside of every turn, in a cgroup by which
// both its processes end with the test.
func startBeside(t *testing.T, own, child string) *canary {
	t.Helper()
	dir := filepath.Join(run.cgroup, "beside")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	h := helper(t, "setsid", own, child)
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env, cmd.Dir = h.Env, h.Cwd
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd()), Pdeathsig: syscall.SIGKILL}
	p, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{t: t, name: "the same program outside", heart: heart(own)}
	t.Cleanup(func() {
		removeTree(dir)
		<-p.gone
	})
	c.beating(t)
	return c
}
