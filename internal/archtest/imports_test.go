package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "pinfold.dev"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// list asks go list for packages, and with deps for all that they need.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Dir,Standard,Imports,Deps,GoFiles"}, args...)...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	var e *exec.ExitError
	if errors.As(err, &e) {
		t.Fatalf("go list: %s", e.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// root is the directory of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// owners are the packages that alone may import something, and why.
func owners() []rule {
	return []rule{
		{"golang.org/x/sys", []string{"internal/sys"},
			"system calls have one seam, with same-named stubs for other systems"},
		{"github.com/godbus/dbus", []string{"systemd"}, "the kill path must work without a bus: only systemd may know of one"},
		{"github.com/coreos/go-systemd", []string{"systemd"}, "the kill path must work without a bus: only systemd may know of one"},
		{"github.com/containerd/cgroups", []string{"cgroup"}, "it weighs 5 MB, and its Kill takes other processes' statuses: cgroup alone uses its readers"},
		{"go.etcd.io/bbolt", []string{"internal/store"}, "history has one file format, known in one place"},
		{"github.com/spf13", []string{"cmd/pinfold"}, "flags belong to the command line; libraries take values"},
	}
}

type rule struct {
	path   string // an import path, or the head of one
	within []string
	why    string
}

func isOrBelow(path, head string) bool { return path == head || strings.HasPrefix(path, head+"/") }

func TestOneOwnerEach(t *testing.T) {
	for _, p := range list(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, r := range owners() {
			if slices.Contains(r.within, rel) {
				continue
			}
			for _, i := range p.Imports {
				if isOrBelow(i, r.path) {
					t.Errorf("%s imports %s, which only %v may: %s", rel, i, r.within, r.why)
				}
			}
		}
	}
}

// reach lists, for packages whose whole point is how little they need, what of
// this module they may import. Anything outside the module and the standard
// library is refused.
func reach() map[string][]string {
	return map[string][]string{
		"api":         {},
		"client":      {"api", "internal/fault"},
		"containment": {"api", "internal/fault"},
		"server":      {"api", "containment", "internal/fault", "internal/sys"},
	}
}

func TestReach(t *testing.T) {
	std := standard(t)
	for _, p := range list(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, ok := reach()[rel]
		if !ok {
			continue
		}
		for _, i := range p.Imports {
			own := strings.TrimPrefix(i, module+"/")
			if !std[i] && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s; it may import %v and the standard library (ARCHITECTURE.md)", rel, i, allowed)
			}
		}
	}
}

func standard(t *testing.T) map[string]bool {
	std := map[string]bool{}
	for _, p := range list(t, "std") {
		std[p.ImportPath] = true
	}
	return std
}

// TestDirection: a package may import those of lower layers, and what is below
// itself in the tree.
func TestDirection(t *testing.T) {
	layer := map[string]int{
		"api": 0, "internal/fault": 0, "internal/sys": 0, "internal/feature": 1, "internal/spool": 1, "internal/ownfile": 1, "internal/wire": 1, "internal/wire/wirenet": 2,
		"pidfd": 2, "fallback": 3, "cgroup": 3, "internal/inspect": 3, "systemd": 3, "reaper": 4, "reaper/pid1": 4,
		"containment": 4, "internal/hold": 5, "internal/outputs": 5, "internal/events": 5, "internal/store": 5, "internal/users": 5, "client": 5, "server": 6, "cmd": 7,
		"integration": 8, "clients": 8, "internal/archtest": 8,
	}
	of := func(rel string) (int, bool) {
		for name := rel; name != "."; name = filepath.Dir(name) {
			if n, ok := layer[name]; ok {
				return n, true
			}
		}
		return 0, false
	}
	for _, p := range list(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		mine, ok := of(rel)
		if !ok {
			t.Errorf("%s has no place in the layers of this test: give it one, and a line in ARCHITECTURE.md", rel)
			continue
		}
		for _, i := range p.Imports {
			own, inside := strings.CutPrefix(i, module+"/")
			if !inside {
				continue
			}
			if theirs, _ := of(own); theirs >= mine && !isOrBelow(own, rel) {
				t.Errorf("%s (layer %d) imports %s (layer %d): imports go one way, downwards", rel, mine, own, theirs)
			}
		}
	}
}

// TestInitIsSmall holds what pinfold-init links. It is PID 1 of containers and
// one process for each turn: each megabyte is paid once a turn, and each
// feature is attack surface that runs as root.
func TestInitIsSmall(t *testing.T) {
	const why = "pinfold-init runs once for every turn, as root: it must stay small and know no network and no bus"
	ps := list(t, "./cmd/pinfold-init")
	if len(ps) != 1 {
		t.Fatalf("go list found %d packages", len(ps))
	}
	for _, d := range ps[0].Deps {
		for _, bad := range []string{"net", "crypto/tls", "github.com", "go.etcd.io", module + "/systemd", module + "/server", module + "/client", module + "/cgroup"} {
			if isOrBelow(d, bad) && d != "net/netip" {
				t.Errorf("pinfold-init links %s: %s", d, why)
			}
		}
	}
}
