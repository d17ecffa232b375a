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
