package turns

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"

	"pinfold.dev/api"
)

// playSeccomp: ERRNO CALL PROGRAM WORD... It runs the program, for which, and
// for all that it starts, a system call answers with an error: an old kernel,
// or a sandbox. CALL may be CALL/OPTION, for one value of the third argument.
func playSeccomp(words []string) int {
	errno := must(strconv.Atoi(words[0]))
	group := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(errno)}
	if call, option, only := strings.Cut(words[1], "/"); only {
		group.NamesWithCondtions = []seccomp.NameWithConditions{{Name: call, Conditions: []seccomp.Condition{
			{Argument: 2, Operation: seccomp.Equal, Value: uint64(must(strconv.Atoi(option)))}}}}
	} else {
		group.Names = strings.Split(words[1], ",")
	}
	check(seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{group}}}))
	env := []string{"PATH=" + os.Getenv("PATH")}
	check(syscall.Exec(words[2], words[2:], env))
	return 1
}

// without is a service for which a system call is not to be had.
func without(call string, errno syscall.Errno) options {
	return options{wrap: []string{"seccomp", strconv.Itoa(int(errno)), call}}
}

// Without clone3 a launch goes through the gate, and holds as well.
func TestWithoutClone3(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		for _, errno := range []syscall.Errno{syscall.ENOSYS, syscall.EPERM} {
			t.Run(errno.Error(), func(t *testing.T) {
				s := serve(t, g, without("clone3", errno))
				wantGate(t, s)
				for _, c := range strays() {
					t.Run(c.name, func(t *testing.T) { c.end(t, s) })
				}
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "beat")
				x.launch(helper(t, "beat", f[0]))
				for _, b := range badLaunches(t) {
					t.Run(b.name, func(t *testing.T) { x.refuses(t, b) })
				}
				x.abandon(0)
			})
		}
	})
}

// wantGate checks that launches go through the gate, into a leaf.
func wantGate(t *testing.T, s *service) {
	t.Helper()
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "beat")
	p := x.launch(helper(t, "beat", f[0]))
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if p.Placement != "gate" || err != nil || !strings.HasSuffix(strings.TrimSpace(string(b)), "/work/p1") {
		t.Errorf("placement %q, cgroup %q (%v)", p.Placement, b, err)
	}
	x.abandon(0)
}

// Without handles on processes nothing may be signalled by number. What cannot
// be held is refused, with the reason; what can is ended.
func TestWithoutPidfd(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		for _, call := range []string{"pidfd_open", "pidfd_send_signal", "pidfd_open,pidfd_send_signal"} {
			t.Run(call, func(t *testing.T) {
				s := newService(t, g, without(call, syscall.ENOSYS))
				if err := s.tryStart(); err != nil {
					if log := s.log(); !strings.Contains(log, "pidfd") || !strings.Contains(log, "try:") {
						t.Errorf("the service does not start and does not say why and what to do: %v\n%s", err, log)
					}
					t.Logf("the service refuses: %s", s.log())
					s.proc = nil
					return
				}
				h, err := s.Host(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				wantToldOfHandles(t, s, h)
				for _, c := range strays() {
					t.Run(c.name, func(t *testing.T) { endWithoutHandles(t, s, call, c) })
				}
			})
		}
	})
}

// wantToldOfHandles checks that host and turns tell what is missing.
func wantToldOfHandles(t *testing.T, s *service, h api.Host) {
	t.Helper()
	told := func(list ...string) bool {
		return strings.Contains(strings.Join(list, "\n"), "no handle can be opened on a process")
	}
	var notes []string
	for _, c := range h.Checks {
		notes = append(notes, c.Detail)
	}
	x := s.begin(t, api.BeginRequest{})
	if !told(notes...) || !told(x.Degraded...) {
		t.Errorf("nobody tells that there are no handles: %q, %q", notes, x.Degraded)
	}
	x.abandon(0)
}

// endWithoutHandles ends what cgroup.kill reaches. What it does not reach must
// be told as a survivor.
func endWithoutHandles(t *testing.T, s *service, call string, c stray) {
	if strings.HasPrefix(c.name, "TERM-ignorer") {
		c.status = "" // nothing was asked: it was killed
	}
	if c.name != "main thread exited, moved in" {
		c.end(t, s)
		return
	}
	o := without(call, syscall.ENOSYS)
	o.args = []string{"--bound", patience(2 * time.Second).String()} // all of which it takes
	s = serve(t, s.grade, o)
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	f := c.launch(t, x)
	heart(f[1]).beating(t)
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{})
	if err != nil || r.Complete || r.State != api.StateUnkillable {
		t.Errorf("state %s, complete %v, survivors %+v (%v)", r.State, r.Complete, r.Survivors, err)
	}
	eventually(t, "it alone survives", func() bool { // within the bound the other may not have been seen gone
		left := x.look().Survivors
		return len(left) == 1 && left[0].PID != 0
	})
	heart(f[0]).beating(t)
	stopped(t, heart(f[1]))
	// It is a child of this test, which ends it after this.
}
