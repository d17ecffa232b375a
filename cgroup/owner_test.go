//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

const someUID = 54321

// asOwner works in the cgroup args[0] as the user whom it belongs to. Process
// args[2] is root's and in it; cgroup args[1] is marked by root, and root's.
func asOwner(args []string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(someUID), syscall.Setuid(someUID)); err != nil {
		return err
	}
	d, err := Open(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Mark("mine"); err != nil {
		return err
	}
	if n, err := d.Nonce(); n != "mine" || err != nil {
		return fmt.Errorf("own mark: %q, %w", n, err)
	}
	c, err := d.Make("child")
	if err != nil {
		return err
	}
	defer c.Close()
	roots, err := Open(args[1])
	if err != nil {
		return err
	}
	defer roots.Close()
	// Root's mark cannot be read, which is no proof of anything.
	if x, v, err := OpenVerified(roots.Path(), roots.ID(), "roots"); v != api.VerdictUnverifiable || x != nil {
		return fmt.Errorf("root's mark: %s, %w", v, err)
	}
	if err := roots.Mark("forged"); err == nil {
		return errors.New("marked what is root's")
	}
	if _, err := roots.Make("x"); !errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("made a cgroup in root's: %w", err)
	}
	if n, err := d.Signal(func(string) syscall.Signal { return syscall.SIGTERM }); n != 0 || !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("signalled %d of root's, %w", n, err)
	}
	// kill(2) may not, cgroup.kill may: it asks who owns the cgroup.
	k, err := d.Kill(context.Background(), bound)
	if err != nil || k.EmptyAt.IsZero() {
		return fmt.Errorf("%+v, %w", k, err)
	}
	fmt.Println(k.Mechanism)
	return d.Remove(context.Background())
}

func TestOwner(t *testing.T) {
	newCanary(t)
	parent := testDir(t)
	d, roots := child(t, parent, "owned"), child(t, parent, "roots")
	if err := roots.Mark("roots"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{parent.Path(), d.Path(), d.Path() + "/cgroup.procs", d.Path() + "/cgroup.kill", d.Path() + "/cgroup.freeze"} {
		if err := os.Chown(path, someUID, someUID); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(d.Path() + "/cgroup.kill"); errors.Is(err, os.ErrNotExist) {
		systest.Feature(t, "cgroup.kill", "5.14", err)
	}
	p := born(t, d)
	h := systest.Start(t, suite.Command(t, "as-owner", d.Path(), roots.Path(), strconv.Itoa(p.PID())))
	out := h.Rest(t)
	if st := h.Reap(); !st.Success() {
		t.Fatal(st, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := handle(t, p.PID()).Wait(ctx); err != nil {
		t.Error(err)
	}
	t.Log(out)
}
