package fallback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// TestRefused tries every way to a signal with every target that must never get
// one, by each thing that a process can be held by. A signal that got through would
// end the test, or who runs it.
func TestRefused(t *testing.T) {
	byDir, byToken := newKernel(), newKernel()
	byDir.opens = false
	byToken.opens, byToken.sends = false, false
	ancestors := []int{os.Getppid()}
	if p, err := newKernel().parentOf(os.Getppid()); err == nil && p > 1 {
		ancestors = append(ancestors, p)
	}
	for how, h := range map[string]*Host{"pidfd": NewHost(), "directory": {byDir}, "token": {byToken}} {
		for _, pid := range slices.Concat([]int{0, 1, -1, -2, -os.Getpid(), -syscall.Getpgrp(), os.Getpid()}, ancestors) {
			if p, err := h.Hold(pid); !errors.Is(err, pidfd.ErrRefused) || p != nil {
				t.Errorf("%s: Hold(%d): %v", how, pid, err)
			}
			rec := api.Identity{PID: pid, Boot: h.k.here().Boot, PIDNS: h.k.here().PIDNS, TimeNS: h.k.here().TimeNS}
			if r, err := h.k.open(pid); err == nil { // as if it had been verified
				seen, _ := r.read()
				rec = seen.Identity
				p := &Process{h.k, r, rec}
				if v, why, err := p.Signal(syscall.SIGTERM); !errors.Is(err, pidfd.ErrRefused) || v == api.VerdictOwned {
					t.Errorf("%s: Signal(%d): %s, %q, %v", how, pid, v, why, err)
				}
				if err := r.signal(syscall.SIGTERM); !errors.Is(err, pidfd.ErrRefused) {
					t.Errorf("%s: signal(%d): %v", how, pid, err)
				}
				_ = r.close()
			}
			if p, v, why := h.Recall(rec); p != nil || v == api.VerdictOwned {
				t.Errorf("%s: Recall(%d): %s, %q", how, pid, v, why)
			}
			if err := killNumber(pid, syscall.SIGTERM); !errors.Is(err, pidfd.ErrRefused) {
				t.Errorf("killNumber(%d): %v", pid, err)
			}
		}
		for _, pgid := range []int{0, 1, -1, -7, syscall.Getpgrp()} {
			rec := GroupRecord{Leader: api.Identity{PID: pgid, Boot: h.k.here().Boot, PIDNS: h.k.here().PIDNS, StartTicks: 1}}
			if res := h.SignalGroup(rec, nil, syscall.SIGTERM); res.Verdict != api.VerdictUnverifiable || len(res.Members) > 0 {
				t.Errorf("%s: SignalGroup(%d): %+v", how, pgid, res)
			}
		}
	}
	if err := killNumber(-syscall.Getpgrp(), 0); !errors.Is(err, pidfd.ErrRefused) {
		t.Errorf("our own group: %v", err)
	}
	if err := killNumber(-123456, syscall.SIGTERM); !errors.Is(err, pidfd.ErrRefused) {
		t.Errorf("a group, to be signalled: %v", err)
	}
}

// inside ends everything below its own parent, who is its own session's leader,
// and says what came of it. Its siblings end; itself and its parent live.
func inside([]string) error {
	fd, err := pidfd.Open(os.Getppid())
	if err != nil {
		return err
	}
	defer fd.Close()
	h := NewHost()
	root, err := h.HoldHandle(fd)
	if err != nil {
		return err
	}
	res := h.End(context.Background(), root, Ending{MaxTime: 500 * time.Millisecond, Root: true})
	for try := 0; len(res.Survivors) > 1 && try < 100; try++ { // on a busy machine ends take their time
		res = h.End(context.Background(), root, Ending{MaxTime: 500 * time.Millisecond, Root: true})
	}
	fmt.Println(os.Getpid(), os.Getppid())
	return json.NewEncoder(os.Stdout).Encode(res)
}

// TestEndingFromInside: whoever is below the root itself is not ended, nor is
// what it descends from; that it is left is said.
func TestEndingFromInside(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	suite.Command(t, "inside") // which the shell starts
	cmd := exec.Command("sh", "-c", `sleep 1000 & echo $!; setsid sleep 1001 & PINFOLD_TEST_HELPER=inside "$0"; echo it lives`, exe)
	cmd.Stderr = os.Stderr
	p := systest.Start(t, cmd)
	sleeper, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	var self, parent int
	if _, err := fmt.Sscan(p.Line(t), &self, &parent); err != nil {
		t.Fatal(err)
	}
	var res Result
	if err := json.Unmarshal([]byte(p.Line(t)), &res); err != nil {
		t.Fatal(err)
	}
	if parent != p.PID() || p.Line(t) != "it lives" {
		t.Errorf("of the parent: %d, want %d", parent, p.PID())
	}
	if res.Outcome != Unconfirmed {
		t.Errorf("%s: %q", res, res.Evidence)
	}
	named := slices.ContainsFunc(res.Survivors, func(s api.Survivor) bool { return s.PID == self })
	if !named || len(res.Survivors) != 1 {
		t.Errorf("survivors %+v, want %d alone", res.Survivors, self)
	}
	for _, f := range res.Processes {
		switch {
		case f.Identity.PID == self && (f.Verdict != api.VerdictUnverifiable || len(f.Signals) > 0 || !strings.Contains(strings.Join(f.Evidence, " "), "ourselves")):
			t.Errorf("itself: %+v", f)
		case f.Identity.PID == sleeper && (!f.Ended || slices.Contains(f.Signals, syscall.SIGSTOP)):
			t.Errorf("a member of its own group was not ended, or stopped: %+v", f)
		case f.Identity.PID != self && !f.Ended:
			t.Errorf("%+v", f)
		}
	}
}
