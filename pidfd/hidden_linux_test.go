package pidfd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// hidden verifies a recorded process (JSON in args[1]) where /proc hides it, or
// is absent, or is another's, as args[0] says; on an old kernel when it ends in
// "old". It prints the verdict, and the evidence.
func hidden(args []string) error {
	mode, old := strings.CutSuffix(args[0], " old")
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	var err error
	switch mode {
	case "hidepid":
		err = errors.Join(
			syscall.Mount("proc", "/proc", "proc", 0, "hidepid=2"),
			syscall.Setgroups(nil), syscall.Setgid(54321), syscall.Setuid(54321))
	case "no proc":
		err = syscall.Unmount("/proc", syscall.MNT_DETACH)
	case "other pid namespace":
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	}
	if err == nil && old {
		err = systest.LikeOld(false)
	}
	if err != nil {
		return err
	}
	var rec api.Identity
	if err := json.Unmarshal([]byte(args[1]), &rec); err != nil {
		return err
	}
	h, v, ev := OpenVerified(rec)
	if h != nil {
		h.Close()
	}
	fmt.Println(v, strings.Join(ev, ", "))
	return nil
}

// TestHidden: a process that cannot be seen is never taken for gone, nor for
// owned but by its inode.
func TestHidden(t *testing.T) {
	systest.Root(t)
	p := sleeper(t)
	h := open(t, p.PID())
	rec, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	byInode := "unverifiable"
	if rec.Ino != 0 {
		byInode = "owned"
	}
	for mode, want := range map[string]string{
		"hidepid":                 byInode,
		"hidepid old":             "unverifiable",
		"no proc":                 "unverifiable",
		"other pid namespace":     "unverifiable",
		"other pid namespace old": "unverifiable",
		"as it is":                "owned",
	} {
		t.Run(mode, func(t *testing.T) {
			cmd := suite.Command(t, "hidden", mode, string(data))
			cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
			if strings.HasPrefix(mode, "other") {
				cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
			}
			out := systest.Start(t, cmd).Line(t)
			if v, _, _ := strings.Cut(out, " "); v != want {
				t.Errorf("%s, want %s", out, want)
			}
		})
	}
	if err := h.Signal(0); err != nil {
		t.Errorf("the process: %v", err)
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Errorf("the helpers took /proc away: %v", err)
	}
}
