//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// frozenDisk makes a file system in args[0], mounts it there and freezes it when it reads a line, so that whoever writes there hangs.
// When its input ends, for whatever reason, it thaws it again. Its process is
// not to be killed with the test's.
func frozenDisk(args []string) error {
	image, dir := args[0]+"/image", args[0]+"/disk"
	run := func(name string, args ...string) error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
		}
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := errors.Join(os.Truncate(image, 8<<20), run("mkfs.ext4", "-q", image), run("mount", "-o", "loop", image, dir)); err != nil {
		return err
	}
	defer func() { // whoever hung there may take a moment to go
		for i := 0; run("umount", dir) != nil && i < 500; i++ {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	fmt.Println("mounted")
	var line string
	if _, err := fmt.Scanln(&line); err != nil {
		return err
	}
	if err := run("fsfreeze", "-f", dir); err != nil {
		return err
	}
	fmt.Println("frozen")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return run("fsfreeze", "-u", dir)
}

// TestKillUnkillable: a process that waits for a disk does not die. It is told
// within the bound, with where it hangs, and the next Kill finds that it went.
func TestKillUnkillable(t *testing.T) {
	systest.Root(t)
	newCanary(t)
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "fsfreeze"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: install e2fsprogs and util-linux", err)
		}
	}
	_, err := os.Stat("/dev/loop-control")
	systest.Lacking(t, "loop devices", err)
	tmp := t.TempDir()
	disk := suite.Command(t, "frozen-disk", tmp)
	disk.SysProcAttr = nil
	in, err := disk.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := systest.StartGently(t, disk)
	t.Cleanup(func() {
		in.Close()
		if st := p.Reap(); !st.Success() {
			t.Errorf("frozen disk: %v", st)
		}
	})
	p.Line(t)
	d := testDir(t)
	beat := filepath.Join(tmp, "disk", "beat")
	w := systest.Start(t, into(d, exec.Command("sh", "-c", `while :; do echo x >"$0"; done`, beat)))
	other := born(t, d)
	t.Cleanup(func() { in.Close() }) // before anything that waits for the writer
	systest.Until(t, "it writes", func() bool { _, err := os.Stat(beat); return err == nil })
	fmt.Fprintln(in, "freeze")
	p.Line(t)
	systest.Until(t, "it hangs", func() bool { s, ok := readStat(w.PID(), "stat"); return ok && s.State == 'D' })

	var k Killed
	systest.Until(t, "the end of the other", func() bool { // on a busy machine it takes its time
		if k, err = d.Kill(t.Context(), 100*time.Millisecond); err != nil || !k.EmptyAt.IsZero() {
			t.Fatalf("%+v, %v", k, err)
		}
		return len(k.Survivors) == 1
	})
	s := k.Survivors[0]
	if s.PID != w.PID() || s.State != "D" || s.Comm != "sh" || s.TID != 0 {
		t.Errorf("survivor %+v", s)
	}
	t.Logf("%+v", k)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if k, err := d.Kill(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || !k.EmptyAt.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	h := handle(t, other.PID())
	systest.Until(t, "the end of the other, by its handle", func() bool { // a cgroup may be without it a moment before
		exited, err := h.Exited()
		return exited && err == nil
	})
	in.Close()
	if err := d.Empty(t.Context()); err != nil {
		t.Error(err)
	}
	killAndSee(t, d, []int{w.PID()})
}
