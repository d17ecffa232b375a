//go:build linux

package hold

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
	"pinfold.dev/systemd"
)

// strangerIs starts a process and tells all that identifies it.
func strangerIs(t *testing.T, argv ...string) api.Identity {
	t.Helper()
	p := systest.Start(t, exec.Command(argv[0], argv[1:]...))
	h, err := pidfd.Open(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *stage) withFacts(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// forge adds a launch to the turn's journal.
func (s *stage) forge(process string, id api.Identity) {
	s.t.Helper()
	st := wire.Started{Process: process, PID: id.PID, StartTicks: id.StartTicks, Ino: id.Ino, CgroupID: id.CgroupID, StartedNS: time.Now().UnixNano()}
	b := (&wire.Entry{AtNS: time.Now().UnixNano(), Fact: wire.FactStarted, Process: process, Started: &st}).Append(nil)
	f, err := os.OpenFile(filepath.Join(s.hold.facts.Dir, wire.JournalName), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// A journal may name a stranger as a launch, with all that identifies that, and the
// record may call whatever it likes the turn's cgroup: the stranger is not
// signalled, asked or waited for, and what is the turn's ends.
func TestStrangerInJournal(t *testing.T) {
	for name, line := range map[string]string{"journal": "", "and record": "/"} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			p1 := s.start("p1", "sleep", "1000")
			id := strangerIs(t, "sleep", "1000")
			live, dead := mustLive(t, id.PID), mustEnd(t, p1.PID)
			if err := s.EndKeeper(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.forge("p9", id)
			s.withFacts(func() {
				if line != "" {
					s.facts.CgroupLine = line
				}
			})
			s.restart()
			if v, err := s.Signal(t.Context(), "p9", syscall.SIGKILL); v == api.VerdictOwned {
				t.Errorf("it is signalled: %s, %v", v, err)
			}
			if v, err := s.Signal(t.Context(), "p1", syscall.Signal(0)); v != api.VerdictOwned || err != nil {
				t.Errorf("the turn's own: %s, %v", v, err)
			}
			live()
			found := false
			for _, p := range s.Processes() {
				if p.Started.Process == "p9" {
					found = p.Exit != nil && p.Exit.Status.State == api.ProcessLost && strings.Contains(p.Exit.Status.Why, "was not touched")
				}
			}
			if !found {
				t.Errorf("it is told as %+v", s.Processes())
			}
			if v, err := s.Rejoin("p8", id); v == api.VerdictOwned || err == nil {
				t.Errorf("it had joined: %s, %v", v, err)
			}
			if k, err := s.Kill(t.Context(), time.Minute); err != nil || len(k.Escaped) > 0 || k.EmptyAt.IsZero() {
				t.Errorf("%+v %v", k, err)
			}
			dead()
			s.endTurn()
			live()
		})
	}
}

// What the turn's keeper has launched is the turn's wherever it went, as long as the
// keeper is there to say so.
func TestEscapedIsVouchedFor(t *testing.T) {
	s := begin(t)
	p1 := s.start("p1", "sleep", "1000")
	own, err := s.host.mount.Own()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own+"/cgroup.procs", []byte(strconv.Itoa(p1.PID)), 0); err != nil {
		t.Fatal(err)
	}
	h, err := pidfd.Open(p1.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := s.vouched(h); err != nil {
		t.Errorf("a child of the keeper: %v", err)
	}
	if s.lists(h) {
		t.Error("the turn's cgroup lists it")
	}
	p2 := s.start("p2", "sleep", "1000")
	h2, err := pidfd.Open(p2.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer h2.Close()
	if !s.lists(h2) {
		t.Error("the turn's cgroup does not list one that is in it")
	}
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.vouched(h); !errors.Is(err, errOutside) {
		t.Errorf("without a keeper: %v", err)
	}
	dead := mustEnd(t, p1.PID)
	s.endTurn() // by the handle, which the running service has
	dead()
}

// A record may name as keeper a stranger that was started with a keeper's words: it
// is not in the turn's cgroup, and lives. Nor is a unit stopped that is not the
// turn's.
func TestStrangerWithKeepersWords(t *testing.T) {
	s := begin(t)
	p1 := s.start("p1", "sleep", "1000")
	id := strangerIs(t, "sh", "-c", "while sleep 1; do :; done", "pinfold-init", "keeper", "--turn", s.turn, "--dir", s.hold.facts.Dir)
	live, dead := mustLive(t, id.PID), mustEnd(t, p1.PID)
	keeper, unit := api.Identity{}, ""
	s.withFacts(func() {
		keeper, unit = s.facts.Keeper, s.facts.Unit
		s.facts.Keeper, s.facts.Unit = id, "init.scope"
	})
	s.restart()
	if got := s.hold.facts.Unit; got != systemd.UnitName(s.turn) {
		t.Errorf("its unit is %q", got)
	}
	if s.keeper != nil {
		t.Error("the stranger is its keeper")
	}
	if _, err := s.Kill(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	dead()
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Error(err)
	}
	live()
	s.withFacts(func() { s.facts.Keeper, s.facts.Unit = keeper, unit })
	s.restart()
	s.endTurn()
	live()
}
