package crash

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// adopt has a child of the test's own, with a child, taken into the turn. Whatever
// dies meanwhile, it is in the turn once, whole, or where it was.
func (l *life) adopt() {
	l.t.Helper()
	p := l.script("adoptee", -1, "")
	l.procs[p.key], l.order = p, append(l.order, p.key)
	cmd := exec.Command("/bin/sh", "-c", "sleep 100000 & echo start >>"+p.starts+"; wait")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // no token: until it is adopted it is nobody's
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p.cmd, p.joined = cmd, make(chan struct{})
	go func() { _ = cmd.Wait(); close(p.joined) }()
	eventually(l.t, "the process that is to be adopted runs", func() bool { return l.startsOf(p) > 0 })
	l.adoptee(cmd.Process.Pid)
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
	if err != nil {
		l.t.Fatal(err)
	}
	ticks, err := strconv.ParseUint(string(bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[22-3]), 10, 64)
	if err != nil {
		l.t.Fatal(err)
	}
	l.must("adopt", func(ctx context.Context) error {
		v, err := l.Adopt(ctx, l.turn.ID, api.AdoptRequest{IdempotencyKey: "a", Tree: true, Process: api.Identity{PID: cmd.Process.Pid, StartTicks: ticks}}, nil)
		p.id = v.ID
		return err
	})
	if v, err := l.Process(context.Background(), l.turn.ID, p.id); err == nil && (v.PID != cmd.Process.Pid || v.Adopted == nil) {
		l.t.Errorf("adopted as %+v (%s)", v, l.describe())
	}
}

// adoptee holds a process and its child, to see that both end.
func (l *life) adoptee(pid int) {
	l.t.Helper()
	h, err := pidfd.Open(pid)
	if err != nil {
		l.t.Fatal(err)
	}
	l.adoptees = append(l.adoptees, h)
	eventually(l.t, "its child", func() bool { kids, err := h.Children(); return err == nil && len(kids) == 1 })
	kids, err := h.Children()
	if err != nil || len(kids) != 1 {
		l.t.Fatalf("children: %v (%v)", kids, err)
	}
	kid, err := pidfd.Open(kids[0])
	if err != nil {
		l.t.Fatal(err)
	}
	l.adoptees = append(l.adoptees, kid)
}

// adopteesOver checks that they ended with the turn. A cgroup is empty before the last
// that was in it has ended.
func (l *life) adopteesOver() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, h := range l.adoptees {
		if err := h.Wait(ctx); err != nil {
			l.t.Errorf("process %d was adopted and outlives its turn (%v, %s)", h.PID(), err, l.describe())
			_ = h.Signal(syscall.SIGKILL)
		}
		_ = h.Close()
	}
}
