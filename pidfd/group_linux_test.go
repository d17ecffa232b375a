package pidfd

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// A leader's handle names its group, also once the leader has been reaped, and
// nobody else: neither a canary nor, of a process that leads none, its group.
func TestSignalGroup(t *testing.T) {
	canary := sleeper(t)
	leads := exec.Command("sh", "-c", `sleep 1000 & echo $!; wait`)
	leads.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := systest.Start(t, leads)
	child, err := strconv.Atoi(strings.TrimSpace(p.Line(t)))
	if err != nil {
		t.Fatal(err)
	}
	h, hc := open(t, p.PID()), open(t, child)
	defer func() { _ = hc.Signal(syscall.SIGKILL) }()
	if err := hc.SignalGroup(syscall.SIGKILL); err == nil {
		t.Error("the child leads no group")
	}
	p.End()
	if over, err := hc.Exited(); err != nil || over {
		t.Fatalf("the child: %v %v", over, err)
	}
	err = h.SignalGroup(syscall.SIGKILL)
	if errors.Is(err, errors.ErrUnsupported) {
		return // the kernel is older than 6.9, and said so
	}
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if over, err := hc.Exited(); over || err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the child lives")
		}
	}
	if over, err := open(t, canary.PID()).Exited(); err != nil || over {
		t.Errorf("the canary: %v %v", over, err)
	}
	if err := FromFD(-1, os.Getpid()).SignalGroup(syscall.SIGTERM); !errors.Is(err, ErrRefused) {
		t.Errorf("ourselves: %v", err)
	}
}
