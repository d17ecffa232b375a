package turns

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A service that comes back to a host on which nothing of it gets on, here
// because all of its cgroups are frozen, goes by the self-test that it passed
// before: it must be there to end what keeps the host busy. It says so, and
// leaves nothing of the test that did not end.
func TestStartOnABusyHost(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		newCanary(t, s)
		_, beside := newNeighbour(t, s)
		x := s.begin(t, api.BeginRequest{Label: "busy"})
		h := heart(files(t, "beats")[0])
		x.launch(helper(t, "beat", string(h)))
		h.beating(t)
		s.kill()

		above := filepath.Dir(x.Cgroup)
		before := children(t, above)
		freeze(t, above, "1")
		t.Cleanup(func() { freeze(t, above, "0") })
		s.start()
		host, err := s.Host(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if host.Grade != g {
			t.Errorf("the service came back at grade %s, not %s", host.Grade, g)
		}
		said := false
		for _, c := range host.Checks {
			said = said || c.Name == "grade "+string(g) && strings.Contains(c.Detail, "an earlier self-test of this boot was passed")
		}
		if !said {
			t.Errorf("the host does not say that its self-test did not end: %+v", host.Checks)
		}
		if g == api.GradeCgroup { // a service manager may have thawed its slice by now
			if _, err := s.Begin(t.Context(), api.BeginRequest{}); !errors.Is(err, api.ErrUnavailable) {
				t.Errorf("begin below a frozen cgroup: %v", err)
			}
		}
		freeze(t, above, "0")
		var after []string
		for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(5 * time.Millisecond) { // a service manager takes its time to remove one
			if after = children(t, above); len(after) <= len(before) {
				break
			}
			if time.Now().After(end) {
				t.Errorf("the self-test left a cgroup: %q, before %q", after, before)
				break
			}
		}
		h.beating(t)
		if r := x.abandon(0); !r.Complete {
			t.Errorf("the receipt is not complete: %+v", r)
		}
		beside.lives()
	})
}

// freeze writes to the freezer of a cgroup.
func freeze(t *testing.T, dir, state string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte(state), 0); err != nil {
		t.Error(err)
	}
}

// children are the cgroups in dir.
func children(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}
