package sys

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/windows"
)

// TestHelper is no test: it is what the test starts, and ends with a code when
// its input does.
func TestHelper(t *testing.T) {
	code, err := strconv.Atoi(os.Getenv("PINFOLD_TEST_CODE"))
	if err != nil {
		return
	}
	os.Stdout.WriteString("here\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(code)
}

// TestExitedWithoutWaiting: a handle that may only be asked about tells an exit
// by its code. While it runs nothing can be told, and when it has exited with
// 259 neither.
func TestExitedWithoutWaiting(t *testing.T) {
	for _, test := range []struct {
		code   int
		exited bool
		err    error
	}{{0, true, nil}, {3, true, nil}, {259, false, ErrParse}} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelper$")
		cmd.Env = append(os.Environ(), "PINFOLD_TEST_CODE="+strconv.Itoa(test.code))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		full, err := OpenWinProcess(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		p := &WinProcess{h: h}
		if exited, err := p.Exited(); exited || !errors.Is(err, ErrParse) {
			t.Errorf("while it runs: %v, %v", exited, err)
		}
		if exited, err := full.Exited(); exited || err != nil {
			t.Errorf("while it runs, by a handle that may be waited for: %v, %v", exited, err)
		}
		if parent, err := full.Parent(); parent != os.Getpid() || err != nil {
			t.Errorf("parent is %d, %v, want %d", parent, err, os.Getpid())
		}
		in.Close()
		_ = cmd.Wait()
		if exited, err := p.Exited(); exited != test.exited || !errors.Is(err, test.err) {
			t.Errorf("after exit code %d: %v, %v", test.code, exited, err)
		}
		if exited, err := full.Exited(); !exited || err != nil {
			t.Errorf("after exit code %d, by a handle that may be waited for: %v, %v", test.code, exited, err)
		}
		if err := p.Terminate(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			t.Errorf("terminate: %v", err)
		}
		_ = p.Close()
		_ = full.Close()
	}
}
