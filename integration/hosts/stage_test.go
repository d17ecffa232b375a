package hosts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	seccomp "github.com/elastic/go-seccomp-bpf"

	"pinfold.dev/internal/sys"
)

// stage is a host that lacks something. It is set up in PID and mount namespaces of
// its own, whose init is the one that tries the service there.
type stage struct {
	Name string
	// Proc is what /proc is: empty the usual one, "none", "other" another PID
	// namespace's, or options of proc(5).
	Proc string
	// Cgroup is what is at the place of cgroup v2: empty the usual mount, "none",
	// "v1" no v2 beside v1, "read-only", "tmpfs", "unified" a v2 mount at
	// /sys/fs/cgroup, or "nosys" no /sys at all.
	Cgroup string
	Refuse []string // system calls
	Errno  syscall.Errno
	UID    int
	Serve  []string // more words for the service
	Storm  bool     // a storm of forks is ended, too
	Long   bool     // it is tried with PINFOLD_TEST_LONG=1 only

	// What the test fills in.
	Dir, Bin, Mount string
}

// playStage sets the stage and tries the service on it. It does not return.
func playStage(text string) {
	runtime.LockOSThread()
	var s stage
	check(json.Unmarshal([]byte(text), &s))
	check(os.Unsetenv(stageEnv))
	check(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	self := must(os.Open("/proc/self/exe")) // before there is none
	_ = self.Close()
	s.setCgroup()
	s.setProc()
	s.refuse()
	if s.UID != 0 {
		check(syscall.Setgroups(nil))
		check(syscall.Setresgid(s.UID, s.UID, s.UID))
		check(syscall.Setresuid(s.UID, s.UID, s.UID))
	}
	d := &drive{stage: s}
	out := d.all()
	check(json.NewEncoder(os.Stdout).Encode(out))
	os.Exit(0)
}

func (s *stage) setCgroup() {
	detach := func(path string) {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			check(fmt.Errorf("umount %s: %w", path, err))
		}
	}
	const root = "/sys/fs/cgroup"
	switch s.Cgroup {
	case "":
	case "none":
		detach(root)
	case "nosys":
		detach("/sys")
	case "v1":
		if s.Mount == root {
			check(syscall.Mount("tmpfs", root, "tmpfs", 0, ""))
		} else {
			detach(s.Mount)
		}
		dir := root + "/pinfold-v1"
		check(os.MkdirAll(dir, 0o755))
		if err := syscall.Mount("none", dir, "cgroup", 0, "none,name=pinfold-test"); err != nil {
			fmt.Fprintln(os.Stderr, "no v1 hierarchy can be made here:", err)
		}
	case "read-only":
		check(syscall.Mount(s.Mount, s.Mount, "", syscall.MS_BIND, ""))
		check(syscall.Mount("", s.Mount, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	case "tmpfs":
		check(syscall.Mount("tmpfs", s.Mount, "tmpfs", 0, ""))
	case "unified":
		detach(root)
		check(syscall.Mount("cgroup2", root, "cgroup2", 0, ""))
	default:
		check(fmt.Errorf("no such cgroup: %s", s.Cgroup))
	}
}

func (s *stage) setProc() {
	switch s.Proc {
	case "other": // the one of the namespace outside, as it was
	case "none":
		check(syscall.Unmount("/proc", syscall.MNT_DETACH))
	default:
		check(syscall.Mount("proc", "/proc", "proc", 0, s.Proc))
	}
}

// refuse has system calls answered with an error from here on.
func (s *stage) refuse() {
	if len(s.Refuse) == 0 {
		return
	}
	g := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(s.Errno)}
	for _, name := range s.Refuse {
		if name == "waitid(P_PIDFD)" {
			g.NamesWithCondtions = append(g.NamesWithCondtions, seccomp.NameWithConditions{Name: "waitid",
				Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: sys.PPidfd}}})
		} else {
			g.Names = append(g.Names, name)
		}
	}
	check(seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{g}}}))
}

// path of something of the stage's own.
func (s *stage) path(name string) string { return filepath.Join(s.Dir, name) }

func (s *stage) fileName() string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s.Name)
}
