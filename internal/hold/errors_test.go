package hold

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What execve(2) refuses for a reason that people meet is told with what to do. The
// errors are the kernel's own.
func TestExecRemedies(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy := file("busy", "#!/bin/sh\n", 0o755)
	f, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, c := range []struct {
		path string
		args []string
		want string
	}{
		{busy, nil, "open for writing"},
		{file("plain", "true\n", 0o644), nil, "make it executable"},
		{file("strange", "\x00\x01", 0o755), nil, "run it through its interpreter"},
		{filepath.Join(dir, "none"), nil, "absolute path"},
		{file("long", "#!/bin/sh\n", 0o755), []string{strings.Repeat("x", 1<<22)}, "more than the kernel takes"},
	} {
		err := exec.Command(c.path, c.args...).Run()
		for errors.Is(err, syscall.ETXTBSY) && c.path != busy { // somebody forked while it was written
			err = exec.Command(c.path, c.args...).Run()
		}
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			t.Errorf("%s: %v", c.path, err)
		} else if got := execRemedy(errno); !strings.Contains(got, c.want) {
			t.Errorf("%v: %s", errno, got)
		}
	}
	if got := execRemedy(syscall.EAGAIN); !strings.Contains(got, "RLIMIT_NPROC") {
		t.Error(got)
	}
}

// A keeper that had no room to begin is told as that, whose remedy is known, also when
// it could say so; any other word of its is told as it is.
func TestWhyNotGreeted(t *testing.T) {
	var x keeping
	x.facts.Dir = t.TempDir()
	gone := errors.New("the connection is gone")
	for _, c := range []struct {
		said string
		room error
	}{
		{"pinfold-init: keeper: open /x/journal.jsonl: " + syscall.ENOSPC.Error(), syscall.ENOSPC},
		{"pinfold-init: keeper: write: " + syscall.EDQUOT.Error(), syscall.EDQUOT},
		{"pinfold-init: keeper: " + syscall.EPERM.Error(), nil},
	} {
		if err := os.WriteFile(filepath.Join(x.facts.Dir, "keeper.log"), []byte(c.said+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := x.whyNotGreeted(gone)
		if want := gone.Error() + " (it said: " + c.said + ")"; err.Error() != want || !errors.Is(err, gone) {
			t.Errorf("%v, not %s", err, want)
		}
		for _, room := range []error{syscall.ENOSPC, syscall.EDQUOT} {
			if errors.Is(err, room) != (room == c.room) {
				t.Errorf("%v is %v: %v", err, room, errors.Is(err, room))
			}
		}
	}
}
