package feature

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic/go-seccomp-bpf"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

var suite = systest.New(map[string]systest.Helper{"blocked": blocked, "old": old})

func TestMain(m *testing.M) { suite.Main(m) }

func ownDir(t testing.TB) string {
	t.Helper()
	systest.Root(t)
	dir, err := findOwn()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func findOwn() (string, error) {
	m, _, err := sys.FindCgroup2()
	if err != nil {
		return "", err
	}
	own, err := sys.OwnCgroup()
	if err != nil {
		return "", err
	}
	return m.Dir(own)
}

// TestHere: what this kernel is new enough to have is found.
func TestHere(t *testing.T) {
	dir := ownDir(t)
	s := New(dir)
	for _, p := range probes() {
		t.Run(string(p.feature), func(t *testing.T) {
			systest.Feature(t, string(p.feature), p.since, s.Check(p.feature))
		})
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), fmt.Sprintf("pinfold-probe.%d.", os.Getpid())) {
			t.Errorf("left %s", e.Name())
		}
	}
}

// blocked has the kernel refuse a call (args[0]) with an errno (args[1]) and
// says what becomes of each feature.
func blocked(args []string) error {
	errno := map[string]syscall.Errno{"ENOSYS": syscall.ENOSYS, "EPERM": syscall.EPERM}[args[1]]
	dir, err := findOwn()
	if err != nil {
		return err
	}
	err = seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true, Flag: seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionErrno | seccomp.Action(errno), Names: args[:1]},
		}},
	})
	if err != nil {
		return err
	}
	return say(New(dir))
}

func old([]string) error {
	dir, err := findOwn()
	if err != nil {
		return err
	}
	if err := systest.LikeOld(false); err != nil {
		return err
	}
	return say(New(dir))
}

// say prints the features that are conclusively absent.
func say(s *Set) error {
	for _, f := range All() {
		if err := s.Check(f); errors.Is(err, ErrNotSupported) {
			fmt.Println(f)
		} else if err != nil {
			return err
		}
	}
	return nil
}

func TestBlocked(t *testing.T) {
	base := missingHere(t)
	everyPidfd := []Feature{PidfdSendSignal, PidfdOpen, PidfdWait, PidfsInode, PidfdSignalFlags, PidfdInfo, PidfdInfoCgroup}
	for call, want := range map[string][]Feature{
		"pidfd_open":        everyPidfd,
		"pidfd_send_signal": {PidfdSendSignal, PidfdSignalFlags},
		"waitid":            {PidfdWait},
		"clone3":            {CloneIntoCgroup},
	} {
		for _, errno := range []string{"ENOSYS", "EPERM"} {
			t.Run(call+" "+errno, func(t *testing.T) {
				compare(t, systest.Start(t, suite.Command(t, "blocked", call, errno)), base, want)
			})
		}
	}
	t.Run("old kernel", func(t *testing.T) {
		compare(t, systest.Start(t, suite.Command(t, "old")), base,
			[]Feature{PidfsInode, PidfdSignalFlags, PidfdInfo, PidfdInfoCgroup})
	})
}

// missingHere is what this kernel itself has not.
func missingHere(t *testing.T) map[Feature]bool {
	s, out := New(ownDir(t)), make(map[Feature]bool)
	for _, f := range All() {
		if s.Check(f) != nil {
			out[f] = true
		}
	}
	return out
}

func compare(t *testing.T, p *systest.Proc, base map[Feature]bool, want []Feature) {
	t.Helper()
	out := p.Rest(t)
	if st := p.Reap(); !st.Success() {
		t.Fatal(st, out)
	}
	absent := make(map[Feature]bool)
	for line := range strings.Lines(out) {
		absent[Feature(strings.TrimSpace(line))] = true
	}
	for _, f := range want {
		if !absent[f] && !base[f] {
			t.Errorf("%s was not told as absent", f)
		}
		delete(absent, f)
	}
	for f := range absent {
		if !base[f] {
			t.Errorf("%s was told as absent", f)
		}
	}
}

// TestCannotTell: what cannot be told is not remembered, what was found is.
func TestCannotTell(t *testing.T) {
	dir := ownDir(t)
	s := New("")
	if err := s.Check(CgroupKill); !errors.Is(err, errNoDir) || errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
	s = New(dir + "/not-there")
	if err := s.Check(CgroupKill); err == nil || errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
	s.dir = dir
	if err := s.Check(UserXattr); err != nil {
		t.Errorf("after the place was there: %v", err)
	}
	s.dir = dir + "/not-there"
	if err := s.Check(UserXattr); err != nil {
		t.Errorf("was not remembered: %v", err)
	}
	if err := s.Check("no such thing"); err == nil {
		t.Error("an unknown feature is there")
	}
	no := &UnsupportedError{PidfdOpen, "5.3", syscall.ENOSYS}
	if !errors.Is(no, ErrNotSupported) || !errors.Is(no, syscall.ENOSYS) || !strings.Contains(no.Error(), "5.3") {
		t.Error(no)
	}
}
