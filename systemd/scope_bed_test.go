package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScope(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	text, version := m.Version()
	if want := os.Getenv("PINFOLD_BED_SYSTEMD"); want != "" && strconv.Itoa(version) != want {
		t.Fatalf("the bed's systemd is %s, want %s", text, want)
	}
	p, canary := sleeper(t), sleeper(t)
	home := canary.cgroup(t)
	s := start(t, m, p)
	t.Logf("systemd %s: %+v", text, s)

	want := Scope{Unit: s.Unit, ControlGroup: "/pinfold.slice/" + s.Unit, ControlGroupID: inode(t, s.ControlGroup),
		InvocationID: show(t, s.Unit, "InvocationID"), ByHandle: version >= 255}
	if version < 252 {
		want.ControlGroupID = s.ControlGroupID // not told there
	}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for property, want := range map[string]string{
		"Description": "TestScope", "Delegate": "yes", "CollectMode": "inactive-or-failed",
		"ActiveState": "active", "Slice": "pinfold.slice", "CPUAccounting": "yes",
		"MemoryAccounting": "yes", "TasksAccounting": "yes", "IOAccounting": "yes",
		"TimeoutStopUSec": stopTimeout.String(), // the bed's manager has another one
	} {
		if got := show(t, s.Unit, property); got != want {
			t.Errorf("%s=%s, want %s", property, got, want)
		}
	}
	// Delegated: what we make in there is left alone, and goes with the scope.
	sub := filepath.Join(mount, s.ControlGroup, "work")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "cgroup.procs"), []byte(strconv.Itoa(p.pid)), 0); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	if got := p.cgroup(t); got != s.ControlGroup+"/work" {
		t.Errorf("after a reload the process is in %s", got)
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	eventually(t, "the scope goes when it is empty", gone(s.ControlGroup))
	if got := canary.cgroup(t); got != home {
		t.Errorf("the canary is in %s, was in %s", got, home)
	}
	canary.alive(t)
}

// A unit is shown with the label, whatever that is, and stays the same unit
// when the manager reads its file again.
func TestScopeLabels(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	labels := []string{"plain", "/", "../../etc", "-rf", "--", "%n %% %i", `back\slash\`, `"quo'te`, "$HOME ${X}",
		"two\nDelegate=no", "\x00\x1b[31m", "Schafstall 🐑", "\u202eright to left", strings.Repeat("é", 150), "", "[Scope]", "#x", ";y"}
	units := make(map[string]string)
	for _, label := range labels {
		p, unit := sleeper(t), newUnit()
		s, err := m.StartScope(t.Context(), ScopeSpec{Unit: unit, Description: label, PID: p.pid, PIDFD: p.pidfd})
		if err != nil {
			t.Errorf("label %q: %v", label, err)
			continue
		}
		if s.ControlGroup != "/pinfold.slice/"+unit {
			t.Errorf("label %q: scope in %s", label, s.ControlGroup)
		}
		units[label] = unit
	}
	check := func(when string) {
		for label, unit := range units {
			got := systemctl(t, "show", "--property=Description", "--property=Delegate", "--", unit)
			for _, want := range []string{"Delegate=yes", "Description=" + Description(label)} {
				if !slices.Contains(strings.Split(got, "\n"), want) {
					t.Errorf("%s: label %q shows %q, not %q", when, label, got, want)
				}
			}
		}
	}
	check("at once")
	systemctl(t, "daemon-reload")
	check("after a reload")
	if len(units) > 0 && !strings.Contains(systemctl(t, "status", "--no-pager", units["plain"]), "plain") {
		t.Error("systemctl status does not show the label")
	}
}

func TestScopeOfProcessThatIsGone(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	for _, handle := range []bool{false, true} {
		dead, zombie := sleeper(t), sleeper(t)
		_ = dead.cmd.Process.Kill()
		_ = dead.cmd.Wait()
		_ = zombie.cmd.Process.Kill() // and not waited for
		eventually(t, "a zombie", func() bool { return zombie.state() == "Z" })
		spec := func(p *process) ScopeSpec {
			s := ScopeSpec{Unit: newUnit(), PID: p.pid, PIDFD: -1}
			if handle {
				s.PIDFD = p.pidfd
			}
			return s
		}
		if s, err := m.StartScope(t.Context(), spec(dead)); !errors.Is(err, ErrProcessGone) {
			t.Errorf("dead (handle: %v): %+v, %v", handle, s, err)
		}
		s, err := m.StartScope(t.Context(), spec(zombie))
		switch {
		case errors.Is(err, ErrProcessGone):
		case err != nil:
			t.Errorf("zombie (handle: %v): %v", handle, err)
		default: // refused by nobody, but seen: nothing is in it
			b, err := os.ReadFile(filepath.Join(mount, s.ControlGroup, "cgroup.procs"))
			if len(b) > 0 || (err != nil && !os.IsNotExist(err)) {
				t.Errorf("zombie (handle: %v): its scope holds %q, %v", handle, b, err)
			}
			// It never was anything but empty, so nothing tells the manager.
			if err := m.StopScope(t.Context(), s.Unit); err != nil {
				t.Error(err)
			}
			eventually(t, "the empty scope is gone", gone(s.ControlGroup))
		}
		t.Logf("zombie (handle: %v): %+v, %v", handle, s, err)
	}
}

func TestScopeNameTaken(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	first, second := sleeper(t), sleeper(t)
	s := start(t, m, first)
	home := second.cgroup(t)
	_, err := m.StartScope(t.Context(), ScopeSpec{Unit: s.Unit, PID: second.pid, PIDFD: second.pidfd})
	if !errors.Is(err, ErrUnitExists) {
		t.Errorf("a second unit of that name: %v", err)
	}
	if got := second.cgroup(t); got != home {
		t.Errorf("the second process was moved to %s", got)
	}
	if got := first.cgroup(t); got != s.ControlGroup {
		t.Errorf("the first process was moved to %s", got)
	}
	first.alive(t)
	second.alive(t)
	start(t, m, second) // under another name it works
}

func TestScopeProperties(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	p := sleeper(t)
	more := []Property{{"PinfoldInvented", true}, {"TasksMax", uint64(77)}, {"PinfoldToo", "x"}}
	for _, when := range []string{"at first", "remembered"} {
		s := start(t, m, p, more...)
		if d := cmp.Diff([]string{"PinfoldInvented", "PinfoldToo"}, s.Dropped); d != "" {
			t.Errorf("%s: dropped: %s", when, d)
		}
		if got := show(t, s.Unit, "TasksMax"); got != "77" {
			t.Errorf("%s: TasksMax=%s", when, got)
		}
		if got := show(t, s.Unit, "Delegate"); got != "yes" {
			t.Errorf("%s: Delegate=%s", when, got)
		}
	}
	if !m.unknownProperties()["PinfoldInvented"] {
		t.Error("not remembered")
	}
	// A property that is known but has the wrong type is the caller's error.
	home := p.cgroup(t)
	s, err := m.StartScope(t.Context(), ScopeSpec{Unit: newUnit(), PID: p.pid, PIDFD: p.pidfd,
		Properties: []Property{{"TasksMax", "lots"}}})
	if err == nil {
		t.Errorf("TasksMax of the wrong type: %+v", s)
	}
	if got := p.cgroup(t); got != home {
		t.Errorf("the process was moved to %s nevertheless", got)
	}
	t.Log(err)
}

func TestStopScope(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	p, canary := sleeper(t), sleeper(t)
	s, other := start(t, m, p), start(t, m, canary)
	if err := m.StopScope(t.Context(), s.Unit); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scope is gone", gone(s.ControlGroup))
	for range 2 {
		if err := m.StopScope(t.Context(), s.Unit); err != nil {
			t.Errorf("a unit that is gone: %v", err)
		}
	}
	if err := m.StopScope(t.Context(), newUnit()); err != nil {
		t.Errorf("a unit that never was: %v", err)
	}
	if err := m.StopScope(t.Context(), "dbus.service"); err == nil {
		t.Error("a unit that is not ours")
	}
	if got := canary.cgroup(t); got != other.ControlGroup {
		t.Errorf("the canary is in %s", got)
	}
	canary.alive(t)
}

// Trying leaves nothing behind.
func TestAvailableInBed(t *testing.T) {
	needBed(t, bedRoot)
	canary := sleeper(t)
	for range 3 {
		if err := Available(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if list := systemctl(t, "list-units", "--all", "--plain", "--no-legend", "pinfold-*.scope"); strings.Contains(list, "tries") {
		t.Errorf("left behind: %s", list)
	}
	canary.alive(t)
}

func TestScopesAtOnce(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	const n = 40
	procs := make([]*process, n)
	for i := range procs {
		procs[i] = sleeper(t)
	}
	began := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i, p := range procs {
		wg.Go(func() {
			s, err := m.StartScope(t.Context(), ScopeSpec{Unit: newUnit(), PID: p.pid, PIDFD: p.pidfd})
			if err == nil && p.cgroup(t) != s.ControlGroup {
				err = fmt.Errorf("process %d is not in %s", p.pid, s.ControlGroup)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	t.Logf("%d scopes in %v", n, time.Since(began))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
