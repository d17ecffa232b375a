//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// TestKillWithoutDescriptors: they may all be in use, by clients say, when a kill
// begins or in its midst, and come back.
func TestKillWithoutDescriptors(t *testing.T) {
	newCanary(t)
	for _, when := range []string{"begin", "midst", "wait"} {
		d := testDir(t)
		p := born(t, d)
		if _, err := os.Stat(d.Path() + "/cgroup.kill"); err != nil {
			systest.Feature(t, "cgroup.kill", "5.14", err)
		}
		out := runHelperKill(t, suite.Command(t, "no-descriptors", d.Path(), when), []int{p.PID()})
		if !strings.HasPrefix(out, byKill) {
			t.Errorf("%s: %s", when, out)
		}
	}
}

func noDescriptors(args []string) error {
	d, err := Open(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	give, err := takeDescriptors()
	if err != nil {
		return err
	}
	ctx, when := context.Background(), args[1]
	k := &killing{dir: d, end: time.Now().Add(bound)}
	k.Mechanism = byKill
	if when == "midst" {
		k.killAll()
		if give(); k.refuse != nil {
			return fmt.Errorf("not to be tried again: %w", k.refuse)
		}
		err = k.run(ctx)
	} else {
		time.AfterFunc(150*time.Millisecond, func() {
			give()
			if when == "wait" { // for one that goes only when there are descriptors again
				time.Sleep(150 * time.Millisecond)
				_ = d.write("cgroup.kill", "1")
			}
		})
		if when == "wait" {
			if err = d.Empty(ctx); err == nil {
				k.EmptyAt = time.Now()
			}
		} else {
			k.Killed, err = d.Kill(ctx, bound)
		}
	}
	if err != nil || k.EmptyAt.IsZero() {
		return fmt.Errorf("not seen empty: %+v, %w", k.Killed, err)
	}
	fmt.Println(k.Mechanism, k.Rounds, k.Seen, k.Notes)
	return nil
}

// takeDescriptors leaves none, until it is called what it returns.
func takeDescriptors() (give func(), err error) {
	time.Sleep(time.Millisecond) // Go's poller takes its own with the first timer
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return nil, err
	}
	var all []int
	for {
		fd, err := syscall.Dup(0)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, fd)
	}
	return func() {
		for _, fd := range all {
			_ = syscall.Close(fd)
		}
	}, nil
}

// TestStillWithoutDescriptors: what was frozen is thawed, though there is no
// descriptor left by then.
func TestStillWithoutDescriptors(t *testing.T) {
	d := testDir(t)
	born(t, d)
	p := systest.Start(t, suite.Command(t, "still-no-descriptors", d.Path()))
	out := p.Rest(t)
	if st := p.Reap(); !st.Success() {
		t.Fatalf("%v: %s", st, out)
	}
	if asked, err := d.FreezeAsked(); asked || err != nil {
		t.Errorf("to be frozen still: %v, %v", asked, err)
	}
}

func stillNoDescriptors(args []string) error {
	d, err := Open(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	thaw := d.Still(context.Background())
	if asked, err := d.FreezeAsked(); err != nil || !asked {
		return fmt.Errorf("not frozen: %v, %w", asked, err)
	}
	give, err := takeDescriptors()
	if err != nil {
		return err
	}
	thaw()
	give()
	return nil
}
