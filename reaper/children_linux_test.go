package reaper_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/wire"
)

// A keeper without a cgroup ends its children, and whoever becomes one, to the
// last; also where no /proc lists them, and, as init of a PID namespace, all at
// once. What was never its child lives.
func TestEndChildren(t *testing.T) {
	for _, c := range []struct {
		name   string
		adjust func(*exec.Cmd)
		whole  bool
	}{
		{name: "by /proc"},
		{name: "by asking for each number", adjust: func(cmd *exec.Cmd) {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS
			cmd.Args = append([]string{"unproc"}, append([]string{keeperBinary}, cmd.Args[1:]...)...)
			cmd.Path, cmd.Env = must(os.Executable()), []string{"PINFOLD_TEST_HELPER=unproc"}
		}},
		{name: "in a PID namespace", whole: true, adjust: func(cmd *exec.Cmd) {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
			cmd.Args = append(cmd.Args, "--pidns")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			canary := exec.Command("sleep", "1000")
			if err := canary.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { canary.Process.Kill(); canary.Wait() }()
			b := newKeeper(t, c.adjust)
			if m := b.call(wire.Message{Op: wire.OpEnd, End: &wire.End{Number: 9}}); m.Error == nil {
				t.Error("an end before hold is taken")
			}
			if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Bare: true}}); m.Error != nil {
				t.Fatalf("hold: %+v", m.Error)
			}
			// Orphans in sessions of their own, one of them deaf, and one that stays.
			s := b.mustLaunch(request("p1", "sh", "-c", `(setsid sh -c 'trap "" TERM; (setsid sleep 600 &); sleep 601' &); touch `+b.dir+`/up; exec sleep 602`))
			if s.Placement != "child" || s.Leaf != "" || s.CgroupID != 0 {
				t.Errorf("started %+v", s)
			}
			eventually(t, "it is up", func() bool { _, err := os.Stat(filepath.Join(b.dir, "up")); return err == nil })
			if census := b.census(); census.Alone {
				t.Errorf("census %+v", census)
			}
			m := b.call(wire.Message{Op: wire.OpEnd, End: &wire.End{Number: int(syscall.SIGKILL), BoundMS: long.Milliseconds()}})
			if m.Error != nil || !m.Ended.Alone || m.Ended.Seen < 1 || m.Ended.Whole != c.whole || len(m.Ended.Left) > 0 {
				t.Errorf("end: %+v %+v", m.Error, m.Ended)
			}
			if e := b.exitOf("p1"); e.Signal != int(syscall.SIGKILL) {
				t.Errorf("exit %+v", e)
			}
			if census := b.census(); !census.Alone || len(census.Outside) > 0 {
				t.Errorf("census %+v", census)
			}
			if pids := strings.Fields(membersOf(filepath.Join(b.cgroup, "keeper"))); len(pids) != 1 {
				t.Errorf("beside the keeper there are %q", pids)
			}
			if err := canary.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the canary: %v", err)
			}
		})
	}
}

func membersOf(cgroup string) string {
	b, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Another signal is sent once, with CONT after it; what it does not end stays.
func TestAskChildren(t *testing.T) {
	b := newKeeper(t, nil)
	if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Bare: true}}); m.Error != nil {
		t.Fatalf("hold: %+v", m.Error)
	}
	b.mustLaunch(request("p1", "sh", "-c", `trap 'exit 7' TERM; touch `+b.dir+`/up; while :; do sleep 0.01; done`))
	eventually(t, "it is up", func() bool { _, err := os.Stat(filepath.Join(b.dir, "up")); return err == nil })
	m := b.call(wire.Message{Op: wire.OpEnd, End: &wire.End{Number: int(syscall.SIGTERM)}})
	if m.Error != nil || m.Ended.Alone || m.Ended.Seen != 1 {
		t.Errorf("end: %+v %+v", m.Error, m.Ended)
	}
	if e := b.exitOf("p1"); e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	for _, bad := range []int{0, -1, 65} {
		if m := b.call(wire.Message{Op: wire.OpEnd, End: &wire.End{Number: bad}}); m.Error == nil || !strings.Contains(m.Error.Message, strconv.Itoa(bad)) {
			t.Errorf("signal %d: %+v", bad, m.Error)
		}
	}
}

// unproc becomes args where there is no /proc.
func unproc(args []string) int {
	check := func(err error) {
		if err != nil {
			os.Stderr.WriteString("unproc: " + err.Error() + "\n")
			os.Exit(99)
		}
	}
	check(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	check(syscall.Unmount("/proc", syscall.MNT_DETACH))
	return become(args)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
