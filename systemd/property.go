package systemd

import (
	"maps"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Property is one more property of a scope, by its D-Bus name and in the type
// that the manager expects (uint64 for MemoryMax, for one).
type Property struct {
	Name  string
	Value any
}

// propPIDFDs hands processes over by handle; from systemd 255.
const propPIDFDs = "PIDFDs"

// stopTimeout is how long a scope that is stopped from outside, as at a shutdown,
// may take before its processes are killed: a keeper does not heed TERM, and would
// make everybody wait for DefaultTimeoutStopSec, which is mostly 90 s.
const stopTimeout = 10 * time.Second

// always are the properties that every scope gets where the manager knows
// them: it goes away by itself, it holds up nobody who stops it, and it is
// accounted for.
func always() []Property {
	return []Property{
		{"CollectMode", "inactive-or-failed"}, // systemd 236
		{"TimeoutStopUSec", uint64(stopTimeout.Microseconds())},
		{"CPUAccounting", true},
		{"MemoryAccounting", true},
		{"TasksAccounting", true},
		{"IOAccounting", true},
	}
}

// request is what StartTransientUnit is asked.
type request struct {
	spec    ScopeSpec
	slice   string
	wanted  []Property      // may be left out
	without map[string]bool // left out
}

func newRequest(spec ScopeSpec, slice string) *request {
	return &request{spec: spec, slice: slice, wanted: append(always(), spec.Properties...)}
}

// byHandle tells whether the process is handed over as a pidfd.
func (r *request) byHandle() bool { return r.spec.PIDFD >= 0 && !r.without[propPIDFDs] }

// optional names what may still be left out.
func (r *request) optional() []string {
	var names []string
	for _, p := range r.wanted {
		if !r.without[p.Name] {
			names = append(names, p.Name)
		}
	}
	if r.byHandle() {
		names = append(names, propPIDFDs)
	}
	return names
}

// dropped names the wanted properties that were left out.
func (r *request) dropped() []string {
	var names []string
	for _, p := range r.wanted {
		if r.without[p.Name] {
			names = append(names, p.Name)
		}
	}
	return names
}

// properties is the request as the manager takes it.
func (r *request) properties() []sd.Property {
	out := []sd.Property{
		sd.PropDescription(Description(r.spec.Description)),
		sd.PropSlice(r.slice),
		{Name: "Delegate", Value: dbus.MakeVariant(true)},
	}
	if r.byHandle() {
		fds := []dbus.UnixFD{dbus.UnixFD(r.spec.PIDFD)}
		out = append(out, sd.Property{Name: propPIDFDs, Value: dbus.MakeVariant(fds)})
	} else {
		out = append(out, sd.PropPids(uint32(r.spec.PID)))
	}
	for _, p := range r.wanted {
		if !r.without[p.Name] {
			out = append(out, sd.Property{Name: p.Name, Value: dbus.MakeVariant(p.Value)})
		}
	}
	return out
}

// unknownProperty tells which of the optional properties an answer is about; ""
// when it is about something else. An answer that names none of them is held
// against the last, so that the next try is a smaller one.
func unknownProperty(err error, optional []string) string {
	if len(optional) == 0 || !isBusError(err, errReadOnlyProp, errUnknownProp) {
		return ""
	}
	words := strings.FieldsFunc(err.Error(), func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
	for _, name := range optional {
		for _, w := range words {
			if w == name {
				return name
			}
		}
	}
	return optional[len(optional)-1]
}

// unknownProperties is a copy of what this manager is known not to know.
func (m *Manager) unknownProperties() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.unknown)
}

// refused remembers that this manager does not know a property.
func (m *Manager) refused(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unknown[name] = true
}
