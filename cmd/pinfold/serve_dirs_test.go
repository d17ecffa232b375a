package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A runtime directory is not used where others may write.
func TestRuntimeDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	o := serveOptions{RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}
	prepare := func() error {
		l := &dirLock{runtime: o.RuntimeDir, state: o.StateDir}
		defer l.release()
		return l.hold()
	}
	if err := prepare(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o777, 0o777 | os.ModeSticky, 0o770} {
		if err := os.Chmod(o.RuntimeDir, mode); err != nil {
			t.Fatal(err)
		}
		if prepare() == nil {
			t.Errorf("it is used with mode %s", mode)
		}
	}
	if err := os.Chmod(o.RuntimeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := prepare(); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(o.RuntimeDir, 65534, -1); err != nil {
			t.Fatal(err)
		}
		if prepare() == nil {
			t.Error("another's is used")
		}
	}
}
