package sys

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold.dev/internal/sys/systest"
)

// programs are the files for the keeper and the command line, which are programs
// for Linux; the identity packages, which build elsewhere, use none of them. A
// table of processes is asked for only where /proc is not.
var programs = []string{"keeper_linux.go", "tty_linux.go", "stop_linux.go", "table_freebsd.go"}

// TestStubsMatch: every exported name exists on Linux and elsewhere, but for
// what only one side uses.
func TestStubsMatch(t *testing.T) {
	linux, other := exported(t, "linux"), exported(t, "freebsd")
	if d := cmp.Diff(linux, other); d != "" {
		t.Errorf("exported on linux (-), elsewhere (+):\n%s", d)
	}
	if len(linux) < 50 {
		t.Errorf("only %d names were found", len(linux))
	}
}

func exported(t *testing.T, goos string) []string {
	ctx := build.Default
	ctx.GOOS, ctx.CgoEnabled = goos, false
	pkg, err := ctx.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, file := range pkg.GoFiles {
		if slices.Contains(programs, file) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			for _, n := range declared(d) {
				if base := n[strings.LastIndex(n, ".")+1:]; ast.IsExported(base) {
					names[n] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			typ := d.Recv.List[0].Type
			if p, ok := typ.(*ast.StarExpr); ok {
				typ = p.X
			}
			name = typ.(*ast.Ident).Name + "." + name
		}
		return []string{name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			}
		}
	}
	return names
}

func pair(t *testing.T) (a, b int) {
	t.Helper()
	a, b, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(a); Close(b) })
	return a, b
}

func TestDescriptorsTravel(t *testing.T) {
	a, b := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("carried"); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	if n, err := SendMsg(a, []byte("hello"), []int{fd, fd}); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	buf := make([]byte, 64)
	n, fds, err := RecvMsg(b, buf, 4)
	if err != nil || string(buf[:n]) != "hello" || len(fds) != 2 {
		t.Fatal(n, fds, err)
	}
	for _, fd := range fds {
		got := make([]byte, 16)
		if n, err := Pread(fd, got, 0); err != nil || string(got[:n]) != "carried" {
			t.Error(n, err)
		}
		if flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); flags&syscall.FD_CLOEXEC == 0 {
			t.Error("received descriptor is not close-on-exec")
		}
		Close(fd)
	}
}

// TestTooManyDescriptors: what does not fit is refused and closed, not leaked.
func TestTooManyDescriptors(t *testing.T) {
	a, b := pair(t)
	open := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := open()
	for _, count := range []int{2, 3, 20} {
		fds := slices.Repeat([]int{a}, count)
		if _, err := SendMsg(a, []byte("x"), fds); err != nil {
			t.Fatal(err)
		}
		n, got, err := RecvMsg(b, make([]byte, 1), 1)
		if !errors.Is(err, syscall.EMSGSIZE) || got != nil {
			t.Errorf("%d descriptors: %d, %v, %v", count, n, got, err)
		}
	}
	if now := open(); now > before {
		t.Errorf("%d descriptors open, %d before", now, before)
	}
}

func TestPeer(t *testing.T) {
	a, _ := pair(t)
	c, err := PeerCred(a)
	if err != nil || c.PID != os.Getpid() || int(c.UID) != os.Getuid() {
		t.Errorf("%+v, %v", c, err)
	}
	fd, err := PeerPidfd(a)
	if err == nil {
		defer Close(fd)
		if in, err := PidfdGetInfo(fd, PidfdInfoPID); err == nil && in.PID != os.Getpid() {
			t.Errorf("%+v", in)
		}
	} else if !errors.Is(err, syscall.ENOPROTOOPT) {
		t.Error(err)
	}
	groups, err := PeerGroups(a)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) != len(want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
}

func TestWaitid(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "exit 7")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	for range 2 { // WNoWait leaves it
		c, err := Waitid(PPid, pid, WExited|WNoWait)
		if err != nil || c.PID != pid || c.Code != CldExited || c.Status != 7 {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	_ = cmd.Wait()
	if _, err := Waitid(PPid, pid, WExited|WNoHang); !errors.Is(err, syscall.ECHILD) {
		t.Error(err)
	}
}

func TestSubdirs(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 300 {
		name := strings.Repeat("d", 1+i%200) + string(rune('a'+i%26)) + string(rune('a'+i/26))
		if err := os.Mkdir(dir+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := Openat(AtFDCWD, dir, ODirectory)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	for range 2 { // from the beginning each time
		got, err := Subdirs(fd)
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%d of %d names, %v", len(got), len(want), err)
		}
	}
}

func TestReadFileAt(t *testing.T) {
	dir := t.TempDir()
	want := bytes.Repeat([]byte("0123456789"), 5000)
	if err := os.WriteFile(dir+"/f", want, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFileAt(AtFDCWD, dir+"/f")
	if err != nil || !bytes.Equal(got, want) {
		t.Error(len(got), err)
	}
	_, err = ReadFileAt(AtFDCWD, dir+"/none")
	if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "openat") {
		t.Error(err)
	}
}

func TestFDClose(t *testing.T) {
	n, err := Openat(AtFDCWD, "/", ODirectory)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFD(n, "/")
	entered, leave := make(chan int), make(chan bool)
	used := make(chan error)
	go func() {
		used <- f.Use(func(fd int) error {
			entered <- fd
			<-leave
			_, err := Ino(fd) // still open, though Close was called
			return err
		})
	}()
	<-entered
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := f.Use(func(int) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	leave <- true
	if err := <-used; err != nil {
		t.Error(err)
	}
	if _, err := Ino(n); !errors.Is(err, syscall.EBADF) {
		t.Errorf("descriptor is still open: %v", err)
	}
	if err := NewFD(-1, "").Use(nil); !errors.Is(err, syscall.EBADF) {
		t.Error(err)
	}
}

// TestParseSelf reads the machine's own files.
func TestParseSelf(t *testing.T) {
	b, err := ProcFile(0, "stat")
	systest.Lacking(t, "procfs", err)
	s, err := ParseStat(b)
	if err != nil || s.PID != os.Getpid() || s.PPID != os.Getppid() || s.StartTicks == 0 || s.RSSPages == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if now := BootTicks(); now < s.StartTicks || now-s.StartTicks > 3600*TicksPerSecond {
		t.Errorf("now %d ticks, started at %d", now, s.StartTicks)
	}
	h := ReadHere()
	if len(h.Boot) != 36 || h.PIDNS == 0 || !h.Proc {
		t.Errorf("%+v", h)
	}
}

// The clock of the host is the same in every time namespace.
func TestMonotonicOffset(t *testing.T) {
	if os.Getenv("SYS_TEST_CLOCK") != "" {
		fmt.Printf("clocks %d %d\n", Monotonic(), MonotonicOffset())
		return
	}
	systest.Root(t)
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		systest.Feature(t, "time namespaces", "5.6", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []string{"100000", "-1"} {
		cmd := exec.Command(systest.Program(t, "unshare"), "--time", "--monotonic", ahead, exe, "-test.run=^TestMonotonicOffset$", "-test.count=1")
		cmd.Env = append(os.Environ(), "SYS_TEST_CLOCK=1")
		out, err := cmd.CombinedOutput()
		_, line, _ := strings.Cut(string(out), "clocks ")
		var clock, offset time.Duration
		if _, serr := fmt.Sscan(line, &clock, &offset); err != nil || serr != nil {
			t.Fatalf("%v, %v: %s", err, serr, out)
		}
		if want, _ := time.ParseDuration(ahead + "s"); offset != want {
			t.Errorf("%s ahead: %s", ahead, offset)
		}
		if d := Monotonic() - MonotonicOffset() - (clock - offset); d < 0 || d > 10*time.Minute {
			t.Errorf("%s s ahead, the host's clock is %s off", ahead, d)
		}
	}
}
