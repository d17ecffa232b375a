package pidfd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// A descriptor from somebody else is told from a pidfd, and a thread's from a
// process's; the handle is one of our own.
func TestFromStranger(t *testing.T) {
	p := systest.Start(t, exec.Command("sleep", "3600"))
	fd, err := sys.PidfdOpen(p.PID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	h, err := FromStranger(fd)
	if err != nil || h.PID() != p.PID() {
		t.Fatalf("%v (%v)", h, err)
	}
	if lives, err := h.Lives(); err != nil || !lives {
		t.Errorf("lives %v, %v", lives, err)
	}
	h.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for what, n := range map[string]int{"a pipe": int(r.Fd()), "a closed one": 1 << 20, "none": -1} {
		if _, err := FromStranger(n); !errors.Is(err, ErrNotPidfd) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if h, err := FromStranger(int(dir.Fd())); err == nil {
		t.Errorf("a directory of /proc is process %d", h.PID())
	}
	own, err := sys.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(own)
	if h, err := FromStranger(own); err != nil {
		t.Errorf("ourselves: %v", err)
	} else {
		if h.Signal(0) == nil {
			t.Error("ourselves, to be signalled")
		}
		h.Close()
	}
	tid := otherThread(t)
	if fd, err := sys.PidfdOpen(tid, sys.PidfdThread); err == nil {
		defer sys.Close(fd)
		var te *ThreadError
		if h, err := FromStranger(fd); !errors.As(err, &te) && !errors.Is(err, ErrGone) {
			t.Errorf("a thread: %v (%v)", h, err)
		}
	}
	var te *ThreadError
	if _, err := OpenNumber(tid); !errors.As(err, &te) || te.PID != os.Getpid() {
		t.Errorf("a thread's number: %v", err)
	}
	if h, err := OpenNumber(p.PID() + 1<<32); !errors.Is(err, ErrGone) {
		t.Errorf("a number whose lower half is its: %v (%v)", h, err)
	}
	p.End()
	if _, err := FromStranger(fd); !errors.Is(err, ErrGone) {
		t.Errorf("one that has ended: %v", err)
	}
}

func otherThread(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != os.Getpid() {
			return n
		}
	}
	t.Fatal("one thread")
	return 0
}

func TestWhose(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 3600 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, cmd)
	var b [32]byte
	n, err := out.Read(b[:])
	if err != nil {
		t.Fatal(err)
	}
	kid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		t.Fatal(err)
	}
	endsWith(t, kid)
	h, err := Open(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	me := uint32(os.Getuid())
	if ids, err := h.UIDs(); err != nil || ids != [4]uint32{me, me, me, me} {
		t.Errorf("%v (%v)", ids, err)
	}
	if k, err := h.KernelThread(); err != nil || k {
		t.Errorf("%v (%v)", k, err)
	}
	if kids, err := h.Children(); err != nil || len(kids) != 1 || kids[0] != kid {
		t.Errorf("%v (%v)", kids, err)
	}
	if kids, err := childrenOf(p.PID()); err != nil || len(kids) != 1 || kids[0] != kid {
		t.Errorf("%v (%v)", kids, err)
	}
	up, err := h.Parent()
	if err != nil || up == nil || up.PID() != os.Getpid() {
		t.Fatalf("%v (%v)", up, err)
	}
	up.Close()
	p.End()
	if _, err := h.Parent(); !errors.Is(err, ErrGone) {
		t.Errorf("of one that has ended: %v", err)
	}
	if _, err := h.UIDs(); err == nil {
		t.Error("it has ended, and has user ids")
	}
}

// endsWith has a process, which has lost its parent by then, end with the test.
func endsWith(t *testing.T, pid int) {
	t.Helper()
	h, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		h.Close()
	})
}

func TestClaim(t *testing.T) {
	is := api.Identity{PID: 7, Boot: "b", PIDNS: 1, TimeNS: 2, StartTicks: 100, Ino: 9, CgroupID: 5}
	old := is
	old.Ino = 0
	for name, c := range map[string]struct {
		said, is api.Identity
		true     bool
	}{
		"nothing":                 {api.Identity{}, is, true},
		"all":                     {is, is, true},
		"the inode, elsewhere":    {api.Identity{PID: 3, PIDNS: 8, TimeNS: 8, StartTicks: 1, Ino: 9}, is, true},
		"another inode":           {api.Identity{PID: 7, Ino: 8}, is, false},
		"another number":          {api.Identity{PID: 8}, is, false},
		"another tick":            {api.Identity{PID: 7, StartTicks: 101}, is, false},
		"another boot":            {api.Identity{PID: 7, Boot: "c", Ino: 9}, is, false},
		"another namespace":       {api.Identity{PID: 7, PIDNS: 8}, is, false},
		"another time":            {api.Identity{PID: 7, TimeNS: 8, StartTicks: 100}, is, false},
		"it has moved":            {api.Identity{PID: 7, CgroupID: 6}, is, true},
		"an inode, there is none": {api.Identity{PID: 7, Ino: 9, StartTicks: 100}, old, false},
		"below zero":              {api.Identity{PID: -7}, is, true}, // nobody opens it
	} {
		if err := Claim(c.said, c.is); (err == nil) != c.true {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// whoseAsOld does on an old kernel what the tests do on a new one, with process
// args[0], which has one child.
func whoseAsOld(args []string) error {
	if err := systest.LikeOld(false); err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	h, err := FromStranger(fd)
	if err != nil {
		return err
	}
	defer h.Close()
	ids, err := h.UIDs()
	kernel, kerr := h.KernelThread()
	kids, cerr := h.Children()
	up, perr := h.Parent()
	if err := errors.Join(err, kerr, cerr, perr); err != nil || up == nil {
		return err
	}
	defer up.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	_, nerr := FromStranger(int(null.Fd()))
	fmt.Println(h.PID() == pid, ids, kernel, len(kids), up.PID(), errors.Is(nerr, ErrNotPidfd))
	return nil
}

func TestWhoseOnOldKernels(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 3600 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, cmd)
	var b [32]byte
	n, err := out.Read(b[:])
	if err != nil {
		t.Fatal(err)
	}
	kid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		t.Fatal(err)
	}
	endsWith(t, kid)
	got, err := suite.Command(t, "oldwhose", strconv.Itoa(p.PID())).Output()
	me := uint32(os.Getuid())
	if want := fmt.Sprintln(true, [4]uint32{me, me, me, me}, false, 1, os.Getpid(), true); err != nil || string(got) != want {
		t.Errorf("%q, want %q (%v)", got, want, err)
	}
}
