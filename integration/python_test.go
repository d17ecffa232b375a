package integration

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// The Python client is held to the standard library's own behaviour, and the
// example gateway to its README, by tests in Python: each starts a service of
// its own. They must not be skipped, and there must be as many as there are.

func TestPythonClient(t *testing.T) { pythonTests(t, "../clients/python", 212) }

func TestExampleGateway(t *testing.T) { pythonTests(t, "../examples/gateway", 19) }

// pythonTests runs the tests in dir, at least some of them.
func pythonTests(t *testing.T, dir string, least int) {
	needRoot(t)
	cmd := exec.Command("python3", "-W", "error::ResourceWarning", "-m", "unittest", "-v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PINFOLD_BIN="+Binaries(t), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	defer time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGINT) }).Stop()
	runtime.LockOSThread() // Pdeathsig is of the thread that starts it
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ran := regexp.MustCompile(`(?m)^Ran (\d+) tests? in .*\n\nOK( \(skipped=\d+\))?$`).FindSubmatch(out)
	if ran == nil {
		t.Fatalf("the tests do not say that all is well:\n%s", out)
	}
	if n, _ := strconv.Atoi(string(ran[1])); n < least || len(ran[2]) > 0 {
		t.Errorf("%s tests%s, at least %d are there\n%s", ran[1], ran[2], least, out)
	}
}
