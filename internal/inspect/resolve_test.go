//go:build linux

package inspect

import (
	"os"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/internal/sys/systest"
)

// A directory is used whatever link it is asked for by, also when it is there no
// more; one that is only named like it is not.
func TestUsesThroughLinks(t *testing.T) {
	dir, _ := space(t)
	top := strings.TrimSuffix(dir, "/ws")
	for link, to := range map[string]string{"/abs": dir, "/rel": "ws/sub", "/chain": "abs", "/dangling": dir + "/gone", "/self": "self", "/up": dir + "/sub"} {
		if err := os.Symlink(to, top+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/gone", 0o755); err != nil {
		t.Fatal(err)
	}
	sub := systest.Start(t, suite.Command(t, "user", "cwd", dir+"/sub"))
	sub.Line(t)
	gone := systest.Start(t, suite.Command(t, "user", "cwd", dir+"/gone"))
	gone.Line(t)
	if err := os.Remove(dir + "/gone"); err != nil {
		t.Fatal(err)
	}
	in, out := []Use{{"cwd", dir + "/sub"}}, []Use(nil)
	for asked, want := range map[string][]Use{"/abs": in, "/rel": in, "/chain": in, "/chain/": in, "//abs/./sub": in, "/up/..": in, "/dangling": out, "/ws2": out, "/abs/none": out} {
		if got := of(t, top+asked, sub.PID()); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", asked, got, want)
		}
	}
	for _, asked := range []string{"/dangling", "/abs/gone", "/abs"} {
		if got := of(t, top+asked, gone.PID()); !slices.Equal(got, []Use{{"cwd", dir + "/gone (deleted)"}}) {
			t.Errorf("%s: %v", asked, got)
		}
	}
	if u, err := NewUses(top + "/self"); err == nil {
		t.Errorf("a link to itself is %+v", u)
	}
	for _, root := range []string{"/", "/..", "//"} {
		if got := of(t, root, sub.PID()); !slices.Contains(got, in[0]) {
			t.Errorf("%s: %v", root, got)
		}
	}
	if got, err := resolve("/proc/self/exe/../x"); err != nil || strings.Contains(got, "..") {
		t.Errorf("%s %v", got, err)
	}
}
