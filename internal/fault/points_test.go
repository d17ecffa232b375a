//go:build faultpoints

package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAULT_TEST_PLAY") != "" {
		for range 3 {
			Point("a.step")
			Point("another.step")
		}
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// play visits two points three times each and exits with 7, unless one acts.
func play(t *testing.T, rules string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"FAULT_TEST_PLAY=1", variable + "=" + rules}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestActions(t *testing.T) {
	armed := filepath.Join(t.TempDir(), "armed")
	if err := os.WriteFile(armed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rules   string
		killed  bool
		code    int
		reached bool
	}{
		{"", false, 7, false},
		{"a.step=kill", true, -1, false},
		{"a.step=kill:" + armed, true, -1, true},
		{"a.step=kill:" + armed + ".not", false, 7, false},
		{"a.step#3=exit", false, 1, false},
		{"a.step#4=exit", false, 7, false},
		{"no.step=kill,another.step#2=exit:" + armed, false, 1, true},
		{"a.step#0=kill,a.step,=kill,a.step#x=kill", false, 7, false},
	} {
		cmd := play(t, c.rules)
		_ = cmd.Wait()
		st := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if (st.Signaled() && st.Signal() == syscall.SIGKILL) != c.killed || st.ExitStatus() != c.code {
			t.Errorf("%q: it ended with %v", c.rules, cmd.ProcessState)
		}
		if err := os.Remove(armed + ".reached"); (err == nil) != c.reached {
			t.Errorf("%q: reached: %v", c.rules, err)
		}
	}
}

func TestHold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "held")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := play(t, "another.step=hold:"+file)
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for end := time.Now().Add(2 * time.Minute); !exists(file + ".reached"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to the point")
		}
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case <-gone:
		t.Fatal("it went on")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	<-gone
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}
