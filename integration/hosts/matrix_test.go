package hosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody is a user without privileges.
const nobody = 65534

// stages are the hosts, in the order of the table.
func stages() []stage {
	calls := []string{"pidfd_open", "pidfd_send_signal", "waitid(P_PIDFD)", "clone3"}
	out := []stage{
		{Name: "cgroup v2 beside v1 (hybrid)"},
		{Name: "cgroup v2 alone", Cgroup: "unified", Long: true},
		{Name: "cgroup v2, no procfs", Proc: "none", Long: true},
		{Name: "cgroup v2, procfs of another PID namespace", Proc: "other", Long: true},
		{Name: "cgroup v2, procfs with hidepid=2", Proc: "hidepid=2", Long: true},
		{Name: "cgroup v2, procfs with subset=pid", Proc: "subset=pid"},
		{Name: "cgroup v2, all of " + strings.Join(calls, ", ") + ": ENOSYS", Refuse: calls, Errno: syscall.ENOSYS},
		{Name: "cgroup v2, all of them: EPERM", Refuse: calls, Errno: syscall.EPERM},
		{Name: "cgroup v2 read-only", Cgroup: "read-only"},
		{Name: "cgroup v1 only", Cgroup: "v1"},
		{Name: "another file system at the place of cgroup v2", Cgroup: "tmpfs", Long: true},
		{Name: "a container without /sys", Cgroup: "nosys"},
		{Name: "no cgroups", Cgroup: "none", Storm: true},
		{Name: "no cgroups, no procfs", Cgroup: "none", Proc: "none"},
		{Name: "no cgroups, procfs of another PID namespace", Cgroup: "none", Proc: "other"},
		{Name: "no cgroups, procfs with hidepid=2", Cgroup: "none", Proc: "hidepid=2", Long: true},
		{Name: "no cgroups, procfs with subset=pid", Cgroup: "none", Proc: "subset=pid"},
	}
	for _, c := range calls {
		for _, e := range []syscall.Errno{syscall.ENOSYS, syscall.EPERM} {
			out = append(out, stage{Name: fmt.Sprintf("no cgroups, %s: %s", c, errnoName(e)), Cgroup: "none", Refuse: []string{c}, Errno: e, Long: e == syscall.EPERM || c == "waitid(P_PIDFD)" || c == "clone3"})
		}
	}
	return append(out,
		stage{Name: "no cgroups, all of them: ENOSYS", Cgroup: "none", Refuse: calls, Errno: syscall.ENOSYS, Long: true},
		stage{Name: "no cgroups, all of them: EPERM", Cgroup: "none", Storm: true, Refuse: calls, Errno: syscall.EPERM},
		stage{Name: "no cgroups, no procfs, all of them: EPERM", Cgroup: "none", Proc: "none", Refuse: calls, Errno: syscall.EPERM, Long: true},
		stage{Name: "a user without privileges", UID: nobody},
		stage{Name: "a user without privileges, procfs with hidepid=2", UID: nobody, Proc: "hidepid=2"},
		stage{Name: "no cgroups, `--allow-pidns`", Cgroup: "none", Storm: true, Serve: []string{"--allow-pidns"}},
		stage{Name: "no cgroups, no procfs, `--allow-pidns`", Cgroup: "none", Proc: "none", Serve: []string{"--allow-pidns"}, Long: true},
		stage{Name: "no cgroups, all of them: EPERM, `--allow-pidns`", Cgroup: "none", Refuse: calls, Errno: syscall.EPERM, Serve: []string{"--allow-pidns"}, Long: true},
		stage{Name: "a user without privileges, `--allow-pidns`", UID: nobody, Serve: []string{"--allow-pidns"}},
	)
}

func errnoName(e syscall.Errno) string {
	if e == syscall.EPERM {
		return "EPERM"
	}
	return "ENOSYS"
}

// On each host the service holds turns at the best grade that it can show, says
// what that lacks, and ends what tries to get away, or says that it did not; across
// a crash of the service, of the keeper, and of both.
func TestHosts(t *testing.T) {
	needRoot(t)
	all := stages()
	seen := make([]*outcome, len(all))
	t.Run("each", func(t *testing.T) {
		for i, s := range all {
			t.Run(s.fileName(), func(t *testing.T) {
				if s.Long && os.Getenv("PINFOLD_TEST_LONG") == "" {
					t.Skip("left out, as others are like it: PINFOLD_TEST_LONG=1 tries it")
				}
				t.Parallel()
				seen[i] = tryOn(t, s)
			})
		}
	})
	if !t.Failed() {
		checkTable(t, all, seen)
	}
}

// tryOn tries the service on a stage.
func tryOn(t *testing.T, s stage) *outcome {
	dir, err := os.MkdirTemp(run.dir, "") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	s.Dir, s.Bin, s.Mount = dir, run.bin, run.mount
	if err := os.Chmod(s.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(s.Dir, s.UID, s.UID); err != nil {
		t.Fatal(err)
	}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	if run.mount == "" {
		if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), " - cgroup2 ") {
			t.Fatalf("cgroup v2 is mounted here, and was not found (%v)", err)
		}
		t.Skip("not here: cgroup v2")
	}
	own := filepath.Join(run.mount, fmt.Sprintf("%s%d.%s", ours, os.Getpid(), s.fileName()))
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeCgroup(own)
	home, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	attr.UseCgroupFD, attr.CgroupFD = true, int(home.Fd())
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(run.exe)
	cmd.Env = []string{stageEnv + "=" + string(b), "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = attr
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stderr, &stdout)
	}
	out := &outcome{}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	bad := out.Refused != ""
	for _, one := range out.Trials {
		for _, p := range one.Problems {
			t.Errorf("%s: %s", one.Name, p)
		}
		bad = bad || len(one.Problems) > 0
	}
	if out.Refused != "" {
		t.Errorf("the service does not start: %s", out.Refused)
	}
	if bad || testing.Verbose() {
		show, _ := json.MarshalIndent(out.Trials, "", " ")
		t.Logf("grade %s\n%s\n%s\n%s", out.Grade, show, strings.Join(out.Claims, "\n"), out.Log)
	}
	return out
}
