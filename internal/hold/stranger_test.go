//go:build linux

package hold

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// A record may name a stranger as the keeper, with all that identifies that: it
// is no keeper of this turn, and lives. The turn is held, and ended, without one.
func TestStrangerAsKeeper(t *testing.T) {
	s := begin(t)
	p1 := s.start("p1", "sleep", "1000")
	stranger := systest.Start(t, exec.Command("sleep", "1000"))
	handle, err := pidfd.Open(stranger.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	own, err := handle.Identity()
	if err != nil {
		t.Fatal(err)
	}
	live := mustLive(t, stranger.PID())
	dead := mustEnd(t, p1.PID)
	s.mu.Lock()
	unbegun := s.facts
	s.mu.Unlock()
	unbegun.Keeper, unbegun.Cgroup, unbegun.Grade = own, "", ""
	if h, v, err := s.host.Recover(t.Context(), s.turn, unbegun, s.hooks()); h != nil || v != api.VerdictGone || err != nil {
		t.Errorf("a turn that had not begun: %v, %s, %v", h, v, err)
	}
	live()
	s.mu.Lock()
	keeper := s.facts.Keeper
	s.facts.Keeper = own
	s.mu.Unlock()
	s.restart()
	if _, err := s.Kill(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	dead()
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Error(err)
	}
	live()
	s.mu.Lock()
	s.facts.Keeper = keeper
	s.mu.Unlock()
	s.restart()
	s.endTurn()
}

// How those ended that an ending killed is known when that is accounted for, with
// the keeper gone as well: their handles tell.
func TestKilledWithoutKeeper(t *testing.T) {
	s := begin(t)
	s.start("p1", "sleep", "1000")
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart()
	if _, err := s.Kill(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Census(t.Context()); err == nil {
		t.Error("a census without a keeper")
	}
	s.mu.Lock()
	told := slices.Clone(s.told)
	s.mu.Unlock()
	if len(told) != 1 || told[0].Status.SignalNumber != int(syscall.SIGKILL) && !(oldKernel(t) && told[0].Status.State == api.ProcessLost) {
		t.Errorf("told of the ends: %+v", told)
	}
	s.endTurn()
}

// A journal that is no file of ours, or has no end, is not read, and does not keep
// the service from its turns.
func TestJournalOfAStranger(t *testing.T) {
	s := begin(t)
	s.start("p1", "sleep", "1000")
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.facts.Dir, wire.JournalName)
	own, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, replace := range map[string]func() error{
		"fifo":     func() error { return syscall.Mkfifo(path, 0o600) },
		"link":     func() error { return os.Symlink("/dev/zero", path) },
		"another":  func() error { return errors.Join(os.WriteFile(path, own, 0o600), os.Chown(path, 65534, -1)) },
		"writable": func() error { return errors.Join(os.WriteFile(path, own, 0o600), os.Chmod(path, 0o666)) },
	} {
		if err := errors.Join(os.Remove(path), replace()); err != nil {
			t.Fatal(err)
		}
		s.restart()
		if known := s.Processes(); len(known) != 0 {
			t.Errorf("%s: it is believed: %+v", name, known)
		}
	}
	s.endTurn()
}
