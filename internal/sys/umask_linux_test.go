package sys_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// TestUmaskOfAll: where a thread gets no umask of its own the whole process's is
// set, and is as it was when WithUmask returns.
func TestUmaskOfAll(t *testing.T) {
	const refused = "PINFOLD_TEST_UMASK"
	if os.Getenv(refused) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestUmaskOfAll$")
		cmd.Env = append(os.Environ(), refused+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if err := systest.Refuse(syscall.EPERM, "unshare"); err != nil {
		t.Fatal(err)
	}
	const usual, other = 0o022, 0o077
	syscall.Umask(usual)
	for i := range 20_000 {
		in := 0
		if err := sys.WithUmask(other, func() error { in = syscall.Umask(other); return nil }); err != nil || in != other {
			t.Fatalf("%o, %v", in, err)
		}
		if now := syscall.Umask(usual); now != usual {
			t.Fatalf("after %d: %o", i, now)
		}
	}
}
