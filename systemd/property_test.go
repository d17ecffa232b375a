package systemd

import (
	"errors"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

func TestUnknownProperty(t *testing.T) {
	optional := []string{"CollectMode", "CPUAccounting", "PIDFDs"}
	answer := func(name, text string) error { return dbus.Error{Name: name, Body: []any{text}} }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"as systemd 252 says it":   {answer(errReadOnlyProp, "Cannot set property PIDFDs, or unknown property."), "PIDFDs"},
		"a name in quotes":         {answer(errUnknownProp, "Unknown property 'CollectMode'"), "CollectMode"},
		"a name inside another":    {answer(errReadOnlyProp, "XCPUAccountingX"), "PIDFDs"},
		"no name":                  {answer(errReadOnlyProp, "no"), "PIDFDs"},
		"a name in another answer": {answer(errUnitExists, "PIDFDs"), ""},
		"no answer":                {errors.New("PIDFDs"), ""},
		"no error":                 {nil, ""},
	} {
		if got := unknownProperty(c.err, optional); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := unknownProperty(answer(errReadOnlyProp, "Delegate"), nil); got != "" {
		t.Errorf("with nothing left to drop: %q", got)
	}
}

// The process is always named, by handle or by number, never by both.
func TestRequestNamesTheProcess(t *testing.T) {
	r := newRequest(ScopeSpec{PID: 4242, PIDFD: 7, Properties: []Property{{"TasksMax", uint64(9)}}}, "s.slice")
	r.without = map[string]bool{}
	names := func() (out []string) {
		for _, p := range r.properties() {
			out = append(out, p.Name)
		}
		return out
	}
	const head, tail = "Description Slice Delegate", "CollectMode TimeoutStopUSec CPUAccounting MemoryAccounting TasksAccounting IOAccounting TasksMax"
	want := append(strings.Fields(head), append(strings.Fields("PIDFDs"), strings.Fields(tail)...)...)
	if d := cmp.Diff(want, names()); d != "" {
		t.Error(d)
	}
	r.without["PIDFDs"], r.without["TasksMax"] = true, true
	want = append(strings.Fields(head), append(strings.Fields("PIDs"), strings.Fields("CollectMode TimeoutStopUSec CPUAccounting MemoryAccounting TasksAccounting IOAccounting")...)...)
	if d := cmp.Diff(want, names()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"TasksMax"}, r.dropped()); d != "" {
		t.Error(d)
	}
}
