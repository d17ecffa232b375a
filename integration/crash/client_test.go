package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// A client that dies at any of its own points leaves nothing that is not listed,
// and the service to others.
func TestClientDies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	for _, p := range points(t) {
		if p.in != caller {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			l := newLife(t, plan{})
			l.start()
			l.settleNeighbour()
			l.turn = l.begin("the turn")
			deaths := 0
			for nth := 1; l.runAndDie(p.name, nth); nth++ {
				deaths++
				l.recorded()
			}
			if deaths < 2 {
				t.Errorf("the client died %d times: it has more requests than that", deaths)
			}
			l.recorded()
			l.over(l.end())
			l.stop()
		})
	}
}

// runAndDie runs `pinfold run`, which dies at the nth visit of the point; false:
// it has no nth.
func (l *life) runAndDie(point string, nth int) bool {
	cmd := exec.Command(run.bin+"/pinfold", "--socket", l.dir+"/sock", "run", "--turn", l.turn.ID, "--", "sh", "-c", "setsid sleep 100000 & exit 3")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), l.token, fmt.Sprintf("PINFOLD_FAULT=%s#%d=kill", point, nth)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(l.dir+"/client.log", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600) // no pipe: who survives would hold it open
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	said := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		_ = cmd.Process.Kill()
		l.t.Fatalf("pinfold run does not end: %s", said())
	}
	st := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case st.Signaled() && st.Signal() == syscall.SIGKILL:
		return true
	case st.Exited() && st.ExitStatus() == 3:
		return false
	}
	l.t.Fatalf("pinfold run ended with %v: %s", cmd.ProcessState, said())
	return false
}

// A launch with a key that a service had sent just before it died, and that the
// keeper has not read or not decided yet, is not made again when the client asks
// the next service at once.
func TestKeyInFlight(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	l := newLife(t, plan{point: "launch.sent", in: service, mode: other, stage: atLaunch})
	l.start()
	l.settleNeighbour()
	l.turn = l.begin("the turn")
	for i := range 3 {
		l.keyInFlight(l.script(fmt.Sprint("keyed", i), -1, ""))
	}
	l.recorded()
	for _, p := range l.procs {
		if n := l.startsOf(p); n != 1 {
			t.Errorf("%s started %d times", p.key, n)
		}
	}
	l.end()
	eventually(t, "nothing of the turn runs", func() bool { return len(l.bearers()) == 0 })
	l.stop()
}

// keyInFlight launches a program that is busy (ETXTBSY) until both services have
// asked for it, through a keeper that is stopped until the second one greets it.
func (l *life) keyInFlight(p *payload) {
	t := l.t
	l.procs[p.key], l.order = p, append(l.order, p.key)
	program := l.dir + "/" + p.key + ".sh"
	busy, err := os.OpenFile(program, os.O_WRONLY|os.O_CREATE, 0o700)
	if err == nil {
		_, err = fmt.Fprintf(busy, "#!/bin/sh\necho start >>%s\nexec sleep 100000\n", p.starts)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.req.Argv = []string{program}
	l.signalKeeper(syscall.SIGSTOP)
	touch(t, l.point())
	first := make(chan error, 1)
	go func() {
		_, err := l.Launch(context.Background(), l.turn.ID, p.req)
		first <- err
	}()
	eventually(t, "the launch is sent", l.reached)
	l.kill()
	if err := <-first; !errors.Is(err, api.ErrUnavailable) {
		t.Fatalf("the launch whose service was killed: %v", err)
	}
	_ = os.Remove(l.point())
	_ = os.Remove(l.point() + ".reached")
	l.Close()
	goOn := time.AfterFunc(300*time.Millisecond, func() { l.signalKeeper(syscall.SIGCONT) }) // when it is being greeted
	defer goOn.Stop()
	l.start()
	ready := time.AfterFunc(100*time.Millisecond, func() { busy.Close() })
	defer ready.Stop()
	v, err := l.Launch(t.Context(), l.turn.ID, p.req)
	for errors.Is(err, api.ErrExecFailed) { // it was busy for longer than anybody tries
		v, err = l.Launch(t.Context(), l.turn.ID, p.req)
	}
	if err != nil {
		t.Fatalf("the same launch again: %v", err)
	}
	p.id = v.ID
	eventually(t, "it runs", func() bool { return l.startsOf(p) > 0 })
	time.Sleep(50 * time.Millisecond) // for a second one to come
}

// signalKeeper signals the turn's keeper through a handle.
func (l *life) signalKeeper(sig syscall.Signal) {
	h, err := pidfd.Open(l.turn.KeeperPID)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer h.Close()
	if in, err := h.CgroupPath(); err != nil || !strings.HasSuffix(in, l.turn.ID+"/keeper") {
		l.t.Errorf("pid %d is no keeper: %q %v", l.turn.KeeperPID, in, err)
		return
	}
	if err := h.Signal(sig); err != nil {
		l.t.Error(err)
	}
}
