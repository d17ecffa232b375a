package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bedNotify is where TestNotifyHelper is a service.
const bedNotify = "notify-service"

// What a service has the manager keep comes back after its death, by name, with
// the manager executed anew in between; what it has forgotten does not. Its line
// shows, and it is started when it has said so.
func TestManagerKeeps(t *testing.T) {
	needBed(t, bedRoot)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const unit = "pinfold-notify-test.service"
	out, err := exec.Command("systemd-run", "--quiet", "--service-type=notify", "--unit="+unit,
		"--setenv=PINFOLD_BED="+bedNotify, "--setenv=FDSTORE=8", "--property=FileDescriptorStoreMax=8", "--property=Restart=always",
		"--property=RestartSec=100ms", "--property=WatchdogSec=60s", exe, "-test.run=TestNotifyHelper").CombinedOutput()
	if err != nil {
		t.Fatalf("start: %v\n%s", err, out)
	}
	defer systemctl(t, "stop", unit)
	status := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return show(t, unit, "StatusText") == want })
	}
	status("has []")
	if got := show(t, unit, "ActiveState"); got != "active" {
		t.Errorf("ActiveState=%s", got)
	}
	kept := func(want string) {
		t.Helper()
		eventually(t, want+" descriptors are kept", func() bool { return show(t, unit, "NFileDescriptorStore") == want })
	}
	kept("2")
	systemctl(t, "kill", "--signal=KILL", unit)
	status("has [dead=true gone=true]") // which it then forgets one of
	kept("1")
	systemctl(t, "daemon-reexec")
	systemctl(t, "daemon-reload")
	systemctl(t, "restart", unit)
	status("has [dead=true]")
	kept("1")
}

// TestNotifyHelper is the service of TestManagerKeeps. Its first life stores two
// handles of processes that have ended, and been reaped, when the next one looks.
func TestNotifyHelper(t *testing.T) {
	needBed(t, bedNotify)
	passed, err := TakePassed(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNotifier(os.Getenv, slog.Default(), passed)
	if err != nil {
		t.Fatal(err)
	}
	if WatchdogEvery(os.Getenv) != 30*time.Second {
		t.Error("the watchdog's time is not told")
	}
	var have []string
	for _, p := range passed {
		over := pollIn(p.FD)
		have = append(have, fmt.Sprintf("%s=%t", p.Name, over))
	}
	slices.Sort(have)
	n.Say("READY=1")
	n.Say("STATUS=has [" + strings.Join(have, " ") + "]")
	if len(passed) == 0 {
		for _, name := range []string{"dead", "gone"} {
			fd := -1
			cmd := exec.Command("true")
			cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			n.Store(name, fd, 0)
		}
	}
	if len(passed) == 2 {
		n.Remove("gone")
	}
	n.Guard(context.Background(), time.Second, func() {})
}

// pollIn tells whether a descriptor is readable: a pidfd of a process that has
// ended is.
func pollIn(fd int) bool {
	ep, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	defer syscall.Close(ep)
	if err := syscall.EpollCtl(ep, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN}); err != nil {
		return false
	}
	n, err := syscall.EpollWait(ep, make([]syscall.EpollEvent, 1), 0)
	return err == nil && n == 1
}
