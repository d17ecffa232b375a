package integration

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests of package systemd need a manager. They run under the one of this
// machine's Debian and under a later one, as root and in a user's session; each
// must have passed somewhere.
func TestSystemdPackageInBeds(t *testing.T) {
	needRoot(t)
	binary := PackageTests(t, "systemd")
	list, err := command(t, nil, binary, "-test.list=^Test")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, bed := range []struct {
		name, root string
		o          BedOptions
	}{
		{"host root", "", BedOptions{Bed: "root"}},
		{"host session", "", BedOptions{Bed: "session", User: "bed"}},
		{"trixie root", "trixie", BedOptions{Bed: "root", Env: []string{"PINFOLD_BED_SYSTEMD=257"}}},
		{"trixie session", "trixie", BedOptions{Bed: "session", User: "bed"}},
	} {
		t.Run(bed.name, func(t *testing.T) {
			bed.o.Binary = binary
			out := InNamespaceBed(t, bed.root, bed.o, ".")
			for _, m := range passed.FindAllStringSubmatch(out, -1) {
				seen[m[1]] = true
			}
		})
	}
	if t.Failed() {
		return
	}
	for name := range strings.SplitSeq(list, "\n") {
		if !seen[name] && name != "TestNotifyHelper" { // which is a service, not a test
			t.Errorf("%s of package systemd passed in no bed; these did: %v", name, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// One boot of Debian 12's kernel: what it lacks and has, the tests of the
// packages that talk to a kernel or to systemd, and some of the whole service,
// with controllers. What hangs on neither is left out: everything is slow here.
func TestOldKernel(t *testing.T) {
	needRoot(t)
	packageDir := func(pkg string) string {
		dir, err := filepath.Abs(filepath.Join("..", pkg))
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	InVM(t, kernel(t, debian61), BedOptions{Bed: "vm", Bin: true, Timeout: 8 * time.Minute}, []vmRun{
		{Name: "bed", Binary: executable(t), Args: []string{"-test.run=^TestInVM"}},
		{Name: "systemd", Binary: PackageTests(t, "systemd"), Env: []string{"PINFOLD_BED=root"},
			Args: []string{"-test.short", "-test.run='^Test(Scope|Stop|AvailableInBed)'"}},
		{Name: "cgroup", Binary: PackageTests(t, "cgroup"), Dir: packageDir("cgroup"),
			Args: []string{"-test.short", "-test.skip=Storm"}},
		{Name: "pidfd", Binary: PackageTests(t, "pidfd"), Dir: packageDir("pidfd"), Args: []string{"-test.short"}},
		{Name: "init", Binary: PackageTests(t, "integration/init"),
			Args: []string{"-test.run='^TestOutOfMemoryInCgroup2$/^early$'"}},
		{Name: "turns", Binary: PackageTests(t, "integration/turns"),
			Args: []string{"-test.short", "-test.run='^Test(Strays|Beside)$/^scope$/^(setsid|double_fork|main_thread_exited|frozen|nested_PID_namespace)$'"},
			Env:  []string{"PINFOLD_TEST_GRADE=scope", "PINFOLD_TEST_SLOW=10"}},
		{Name: "limits", Binary: PackageTests(t, "integration/turns"), // which only a host with controllers can keep
			Args: []string{"-test.run='^Test(OutOfMemory|JobOutOfMemory|ThrottledGateway)$'"},
			Env:  []string{"PINFOLD_TEST_GRADE=scope", "PINFOLD_TEST_SLOW=2"}},
		{Name: "hold", Binary: PackageTests(t, "internal/hold"), Args: []string{"-test.run='^TestJobOutOfMemory$'"}},
	})
}

// TestInVM proves that the virtual machine is what the tests in it are for.
func TestInVM(t *testing.T) {
	needBed(t, "vm")
	var un syscall.Utsname
	if err := syscall.Uname(&un); err != nil {
		t.Fatal(err)
	}
	var release []byte
	for _, c := range un.Release {
		release = append(release, byte(c))
	}
	if !strings.HasPrefix(string(release), "6.1.") {
		t.Errorf("kernel %s, want 6.1", release)
	}
	const mount = "/sys/fs/cgroup"
	b, err := os.ReadFile(mount + "/cgroup.controllers")
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Fields(string(b))
	for _, want := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(have, want) {
			t.Errorf("cgroup v2 controllers are %q: %s is missing", have, want)
		}
	}
	dir := mount + "/pinfold-bed-test"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if _, err := os.Stat(dir + "/cgroup.kill"); err != nil {
		t.Error(err)
	}
	if a, b := pidfdInode(t), pidfdInode(t); a != b {
		t.Errorf("pidfds have inodes %d and %d: this kernel has pidfs", a, b)
	}
}

// pidfdInode starts a process and returns its pidfd's inode number.
func pidfdInode(t *testing.T) uint64 {
	t.Helper()
	fd := -1
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"},
		&os.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &fd, Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
		_ = syscall.Close(fd)
	}()
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
