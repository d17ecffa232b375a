package server

import (
	"fmt"
	"os"
	"testing"
)

// nobody is the uid of peers that are somebody else. No user has it.
const nobody = 54321

// TestMain plays a helper when the environment says so: the test binary runs
// itself as another user, or inside a turn's cgroup.
func TestMain(m *testing.M) {
	if name := os.Getenv("SERVER_TEST_HELPER"); name != "" {
		f, ok := map[string]func(socket string) error{"rules": helperRules, "hang": helperHang, "orphan": helperOrphan}[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no helper", name)
			os.Exit(2)
		}
		if err := f(os.Getenv("SERVER_TEST_SOCKET")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// need skips a test on a host that lacks what it needs.
func need(t *testing.T, what string, has bool) {
	t.Helper()
	if !has {
		t.Skip("this host has no " + what)
	}
}

// needRoot is for tests that run processes as somebody else or make cgroups.
func needRoot(t *testing.T) {
	t.Helper()
	need(t, "root for us", os.Getuid() == 0)
}
