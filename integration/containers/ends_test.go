package containers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// bare is a command of the image without a service: the init alone.
func bare(flags []string, words ...string) []string {
	return append(append([]string{"/usr/bin/pinfold-init"}, flags...), append([]string{"--"}, words...)...)
}

// initOnly is a container that needs no service.
func initOnly(t testing.TB, flags []string, words ...string) *bundle {
	b := newBundle(t, bare(flags, words...)...)
	b.env(roleEnv + "=gateway")
	return b
}

// What an orchestrator sees as the container's exit code.
func TestCodes(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		for _, tt := range []struct {
			what string
			args []string
			code int
			out  string
		}{
			{"exits with 0", bare(nil, as("exit", "0")...), 0, ""},
			{"exits with 42", bare(nil, as("exit", "42")...), 42, ""},
			{"exits with 143, which is 0 here", bare([]string{"-e", "143"}, as("exit", "143")...), 0, ""},
			{"dies of TERM", bare(nil, as("die", "15")...), 143, ""},
			{"dies of KILL", bare(nil, as("die", "9")...), 137, ""},
			{"dies of INT", bare(nil, as("die", "2")...), 130, ""},
			{"is missing", bare(nil, "/none"), 127, "/none"},
			{"is a directory", bare(nil, "/tmp"), 126, "/tmp"},
			{"is none", bare(nil), 125, "usage"},
		} {
			t.Run(tt.what, func(t *testing.T) {
				b := newBundle(t, tt.args...)
				b.env(roleEnv + "=gateway")
				code, out := rt.result(t, b)
				if code != tt.code || !strings.Contains(strings.ToLower(out), tt.out) {
					t.Errorf("code %d, want %d; it says %q", code, tt.code, out)
				}
			})
		}
	})
}

// An orchestrator sends the stop signal, waits, and kills.
func TestStop(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		t.Run("a command that heeds TERM", func(t *testing.T) {
			c := rt.start(t, initOnly(t, nil, as("polite")...))
			c.says("up")
			c.kill("TERM")
			if code := c.code(); code != 7 {
				t.Errorf("code %d", code)
			}
		})
		t.Run("one that does not", func(t *testing.T) {
			c := rt.start(t, initOnly(t, nil, as("deaf")...))
			c.says("up")
			c.kill("TERM")
			if c.endsIn(300 * time.Millisecond) {
				t.Fatal("it ended at TERM")
			}
			c.kill("KILL")
			if code := c.code(); code != 137 {
				t.Errorf("code %d", code)
			}
		})
		t.Run("one that does not, and --stop-timeout", func(t *testing.T) {
			c := rt.start(t, initOnly(t, []string{"--stop-timeout=100ms"}, as("deaf")...))
			c.says("up")
			c.kill("TERM")
			if code := c.code(); code != 137 {
				t.Errorf("code %d", code)
			}
		})
	})
}

// The kernel ends the command for want of memory: the code is KILL's, and the
// init says why.
func TestOutOfMemory(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		bounded(t, "memory")
		b := initOnly(t, []string{"-v"}, as("eat")...)
		b.memory(64 << 20)
		code, out := rt.result(t, b)
		if code != 137 || !strings.Contains(out, "out of memory") {
			t.Errorf("code %d, it says %q", code, out)
		}
	})
}

// The container's first process is killed, then the container is removed: all of
// it is gone, the turns too.
func TestKilled(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		for _, tt := range []struct {
			what     string
			rootless bool
			change   func(*bundle)
			goes     bool // when the first process does
		}{
			{"cgroups read-only", false, func(*bundle) {}, true},
			{"cgroups writable", false, func(b *bundle) { b.cgroups("rw") }, true},
			{"rootless, cgroups writable", true, func(b *bundle) { b.cgroups("rw") }, true},
			{"the host's PID namespace, cgroups writable", false, func(b *bundle) {
				b.cgroups("rw")
				b.share(specs.PIDNamespace)
			}, false},
		} {
			t.Run(tt.what, func(t *testing.T) {
				rt := rt
				b := newBundle(t, gateway("life", "/shared", "/shared/never")...)
				b.imageEnv()
				b.detached = !tt.rootless
				if rt.rootless = tt.rootless; rt.rootless {
					b.rootless()
				}
				dir := b.shared(t)
				tt.change(b)
				c := rt.start(t, b)
				c.says("the turn is up")
				c.kill("KILL")
				if code := c.code(); code != 137 {
					t.Errorf("code %d", code)
				}
				lives := func() bool { return held(dir+"/turn") || held(dir+"/canary") }
				if tt.goes && lives() {
					t.Error("something of the container lives")
				}
				c.remove()
				eventually(t, "all of a container that was removed is gone", func() bool { return !lives() })
			})
		}
	})
}

// shared is a directory of the host's that the container has at /shared.
func (b *bundle) shared(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(b.dir, "shared")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	b.bind(dir, "/shared", "rw")
	return dir
}
