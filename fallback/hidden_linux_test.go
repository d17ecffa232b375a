package fallback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// hidden recalls the recorded processes (JSON in args[2:]) where inspection is
// denied as args[0] says, without pidfds if args[1] says so. For each it prints the
// verdict and the evidence.
func hidden(args []string) error {
	err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, "")
	drop := func() error { return errors.Join(syscall.Setgroups(nil), syscall.Setgid(54321), syscall.Setuid(54321)) }
	switch args[0] {
	case "user":
		err = errors.Join(err, drop())
	case "hidepid":
		err = errors.Join(err, syscall.Mount("proc", "/proc", "proc", 0, "hidepid=2"), drop())
	case "subset":
		err = errors.Join(err, syscall.Mount("proc", "/proc", "proc", 0, "subset=pid"), drop())
	case "no proc":
		err = errors.Join(err, noProc())
	case "foreign proc": // as in a container that was given its host's; here the other way round
		err = errors.Join(err, syscall.Mount("proc", "/proc", "proc", 0, ""))
	case "malformed", "short", "another's": // in the place of its stat, for us
		err = errors.Join(err, overStat(args[0], args[2]))
	case "over": // something else is mounted there
		err = errors.Join(err, syscall.Mount("none", "/proc", "tmpfs", 0, ""))
	}
	if err != nil {
		return err
	}
	if args[1] == "no pidfd" {
		if err := systest.Refuse(syscall.EPERM, "pidfd_open", "pidfd_send_signal"); err != nil {
			return err
		}
	}
	h := NewHost()
	for _, text := range args[2:] {
		var rec api.Identity
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			return err
		}
		p, v, why := h.Recall(rec)
		if p != nil {
			why = append(why, "held by "+string(p.How()))
			p.Close()
		}
		fmt.Printf("%s: %s\n", v, strings.Join(why, ", "))
	}
	return nil
}

// overStat has another file in the place of /proc/<pid>/stat of a recorded process.
func overStat(what, text string) error {
	var rec api.Identity
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		return err
	}
	stat := fmt.Sprintf("/proc/%d/stat", rec.PID)
	if what == "another's" {
		return syscall.Mount(fmt.Sprintf("/proc/%d/stat", os.Getpid()), stat, "", syscall.MS_BIND, "")
	}
	b, err := os.ReadFile(stat)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "pinfold-test-stat")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if b = b[:len(b)/4]; what == "malformed" {
		b = []byte("no line of a stat) at ( all\n")
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	return syscall.Mount(f.Name(), stat, "", syscall.MS_BIND, "")
}

// TestHidden: who is hidden is not gone and not owned, unless an inode tells; and
// who is gone is gone only when the kernel says that the number is free.
func TestHidden(t *testing.T) {
	systest.Root(t)
	p, ended := systest.Start(t, sleepCommand()), systest.Start(t, sleepCommand())
	record := func(pid int) string {
		q, err := NewHost().Hold(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		b, err := json.Marshal(q.Identity())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	alive, dead := record(p.PID()), record(ended.PID())
	ended.End()
	byInode := "owned"
	if strings.Contains(alive, `"pidfs_ino"`) == false {
		byInode = "unverifiable"
	}
	for _, test := range []struct{ mode, pidfds, alive, dead string }{
		{"as it is", "", "owned", "gone"},
		{"as it is", "no pidfd", "owned", "gone"},
		{"user", "", "owned", "gone"},
		{"user", "no pidfd", "owned", "gone"},
		{"hidepid", "", byInode, "gone"},
		{"hidepid", "no pidfd", "unverifiable", "gone"},
		{"subset", "", "unverifiable", "unverifiable"}, // it has no boot id
		{"subset", "no pidfd", "unverifiable", "unverifiable"},
		{"no proc", "", "unverifiable", "unverifiable"},
		{"no proc", "no pidfd", "unverifiable", "unverifiable"},
		{"over", "", "unverifiable", "unverifiable"},
		{"malformed", "", byInode, "gone"},
		{"malformed", "no pidfd", "unverifiable", "gone"},
		{"short", "", byInode, "gone"},
		{"short", "no pidfd", "unverifiable", "gone"},
		{"another's", "", byInode, "gone"},
		{"another's", "no pidfd", "unverifiable", "gone"},
		{"foreign proc", "", "unverifiable", "unverifiable"},
		{"foreign proc", "no pidfd", "unverifiable", "unverifiable"},
	} {
		t.Run(test.mode+" "+test.pidfds, func(t *testing.T) {
			cmd := suite.Command(t, "hidden", test.mode, test.pidfds, alive, dead)
			cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
			if test.mode == "foreign proc" {
				cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
			}
			q := systest.Start(t, cmd)
			if got := q.Line(t); !strings.HasPrefix(got, test.alive+":") {
				t.Errorf("alive: %s; want %s", got, test.alive)
			}
			if got := q.Line(t); !strings.HasPrefix(got, test.dead+":") {
				t.Errorf("dead: %s; want %s", got, test.dead)
			}
		})
	}
}

// TestMainThreadGone: a process whose main thread has ended looks like a zombie,
// and lives; it is not gone, and can be ended, by whatever it is held.
func TestMainThreadGone(t *testing.T) {
	for how, h := range hosts() {
		p := systest.Start(t, suite.Command(t, "leaderless"))
		p.Line(t)
		systest.Until(t, "its main thread is a zombie", func() bool {
			b, err := sys.ProcFile(p.PID(), "stat")
			s, perr := sys.ParseStat(b)
			return err == nil && perr == nil && s.State == 'Z'
		})
		q, err := h.Hold(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		if v, why := q.Verify(); v != api.VerdictOwned {
			t.Errorf("%s: %s, %q", how, v, why)
		}
		if v, why, err := q.Signal(syscall.SIGKILL); v != api.VerdictOwned || err != nil {
			t.Errorf("%s: %s, %q, %v", how, v, why, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := q.Wait(ctx); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		cancel()
		if v, why := q.Verify(); v != api.VerdictGone { // a zombie
			t.Errorf("%s: ended: %s, %q", how, v, why)
		}
		p.Reap()
		if v, why := q.Verify(); v != api.VerdictGone {
			t.Errorf("%s: reaped: %s, %q", how, v, why)
		}
		if v, why, err := q.Signal(syscall.SIGKILL); v != api.VerdictGone || err != nil {
			t.Errorf("%s: reaped: %s, %q, %v", how, v, why, err)
		}
		q.Close()
	}
}
