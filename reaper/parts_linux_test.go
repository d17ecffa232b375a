package reaper

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/reaper/spawn"
)

func TestCgroupBelow(t *testing.T) {
	for _, tt := range []struct{ name, mounts, work, want string }{
		{"hybrid", "26 25 0:23 / /sys/fs/cgroup ro - tmpfs t rw\n42 26 0:39 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n",
			"/sys/fs/cgroup/unified/pinfold/t1/work", "/pinfold/t1"},
		{"unified", "42 26 0:39 / /sys/fs/cgroup rw - cgroup2 c rw\n", "/sys/fs/cgroup/x.scope/work", "/x.scope"},
		{"another root", "42 26 0:39 /a/b /mnt rw - cgroup2 c rw\n", "/mnt/t1/work", "/a/b/t1"},
		{"outside the namespace", "42 26 0:39 /../.. /mnt rw - cgroup2 c rw\n", "/mnt/t1/work", "/../../t1"},
		{"the deepest", "42 26 0:39 / / rw - cgroup2 c rw\n43 26 0:39 /in /mnt rw - cgroup2 c rw\n", "/mnt/t1/work", "/in/t1"},
		{"a name that only begins alike", "42 26 0:39 / /mnt rw - cgroup2 c rw\n", "/mnt2/t1/work", ""},
		{"none", "42 26 0:39 / /mnt rw - tmpfs c rw\n", "/mnt/t1/work", ""},
	} {
		mounts, err := sys.ParseMountinfo([]byte(tt.mounts))
		if err != nil {
			t.Fatal(err)
		}
		if got := cgroupBelow(mounts, tt.work); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestInside(t *testing.T) {
	w := &work{turn: "/p/t1"}
	for cgroup, want := range map[string]bool{
		"/p/t1": true, "/p/t1/work/p1": true, "/p/t1 (deleted)": true, "/p/t1/work/p1 (deleted)": true,
		"/p/t10": false, "/p": false, "/": false, "": false, "/p/t1x/work": false,
	} {
		if w.inside(cgroup) != want {
			t.Errorf("%q: %v", cgroup, !want)
		}
	}
}

func TestStatField(t *testing.T) {
	stat := []byte("7 (a) S 9 )\n) S 1 2 3 4 5 4194564 10 11 12 13 14 15 16 17 18 19 20 0 3333 99\n")
	for field, want := range map[int]uint64{4: 1, 9: 4194564, 22: 3333, 23: 99, 24: 0, 60: 0} {
		if got := statField(stat, field); got != want {
			t.Errorf("field %d: %d, want %d", field, got, want)
		}
	}
	if statField(nil, 9) != 0 {
		t.Error("a field of nothing")
	}
}

func TestCut(t *testing.T) {
	long := strings.Repeat("x", argvKept)
	if got := cut([]string{"a", "", "b"}); len(got) != 3 {
		t.Errorf("short: %q", got)
	}
	if got := cut([]string{"a", long, "b"}); len(got) != 2 || len(got[1]) != argvKept-1+len("…") {
		t.Errorf("long: %d arguments", len(got))
	}
}

func TestGateHelps(t *testing.T) {
	if gateHelps(errors.New("x")) || gateHelps(syscall.ENOSYS) {
		t.Error("an error of nobody's")
	}
	for errno, want := range map[syscall.Errno]bool{
		syscall.ENOSYS: true, syscall.EPERM: true, syscall.EBUSY: true, syscall.EACCES: true, syscall.EOPNOTSUPP: true, syscall.EBADF: true,
		syscall.E2BIG: true, syscall.EINVAL: true, // before Linux 5.7
		syscall.EAGAIN: false, syscall.ENOMEM: false, syscall.ENOENT: false,
	} {
		if got := gateHelps(&spawn.Error{Step: spawn.StepClone, Errno: errno}); got != want {
			t.Errorf("%v: %v", errno, got)
		}
		if gateHelps(&spawn.Error{Step: spawn.StepExec, Errno: errno}) {
			t.Errorf("%v of exec", errno)
		}
	}
}

// A panic is one line in the log, with its place, and is survived.
func TestGuard(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	old, err := syscall.Dup(2)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Dup3(int(w.Fd()), 2, 0)
	var nowhere map[string]int
	var nothing []int
	guard("test", func() { nowhere["x"] = 1 })
	guard("test", func() { panic("on purpose") })
	guard("test", func() { panic(7) })
	guard("test", func() { nothing[len(os.Args)] = 1 })
	syscall.Dup3(old, 2, 0)
	syscall.Close(old)
	w.Close()
	buf := make([]byte, 4096)
	n, _ := r.Read(buf)
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	if len(lines) != 4 {
		t.Fatalf("log: %q", buf[:n])
	}
	for i, want := range []string{"nil map", "on purpose", "unprintable", "index out of range"} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "parts_linux_test.go:") {
			t.Errorf("line %d: %s", i, lines[i])
		}
	}
}

func TestOOMKills(t *testing.T) {
	dir := t.TempDir()
	fd, err := sys.Openat(sys.AtFDCWD, dir, sys.ORdonly|sys.ODirectory)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	w := &work{dir: fd}
	if n := w.oomKills("p1"); n != 0 {
		t.Errorf("%d where nobody counts", n)
	}
	text := "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"
	if err := errors.Join(os.Mkdir(dir+"/p1", 0o755), os.WriteFile(dir+"/p1/memory.events", []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	if n := w.oomKills("p1"); n != 2 {
		t.Errorf("%d, want 2", n)
	}
}
