package systemd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEndpoints(t *testing.T) {
	private := endpoint{name: "/run/systemd/private", addr: "/run/systemd/private"}
	for name, c := range map[string]struct {
		user    bool
		uid     int
		env     map[string]string
		want    []endpoint
		problem string
	}{
		"root": {uid: 0, want: []endpoint{
			{"system bus", "/run/dbus/system_bus_socket", true}, private}},
		"not root": {uid: 7, want: []endpoint{
			{"system bus", "/run/dbus/system_bus_socket", true}}},
		"another system bus": {uid: 0,
			env:  map[string]string{"DBUS_SYSTEM_BUS_ADDRESS": "tcp:host=x;unix:path=/a%20b,guid=1;unix:abstract=c"},
			want: []endpoint{{"system bus", "/a b", true}, {"system bus", "@c", true}, private}},
		"no unix socket": {uid: 7,
			env:     map[string]string{"DBUS_SYSTEM_BUS_ADDRESS": "autolaunch:"},
			problem: `bus address "autolaunch:" has no unix socket`},
		"user": {user: true, uid: 7,
			env: map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"},
			want: []endpoint{{"user bus", "/run/user/7/bus", true},
				{"/run/user/7/systemd/private", "/run/user/7/systemd/private", false}}},
		"user with a session bus": {user: true, uid: 7,
			env: map[string]string{"XDG_RUNTIME_DIR": "/run/user/7", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/s"},
			want: []endpoint{{"session bus", "/s", true},
				{"/run/user/7/systemd/private", "/run/user/7/systemd/private", false}}},
		"user without a session": {user: true, uid: 7,
			problem: "neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem := endpoints(c.user, c.uid, func(k string) string { return c.env[k] })
			if d := cmp.Diff(c.want, got, cmp.AllowUnexported(endpoint{})); d != "" {
				t.Error(d)
			}
			if problem != c.problem {
				t.Errorf("problem %q, want %q", problem, c.problem)
			}
		})
	}
}

func TestVersionNumber(t *testing.T) {
	for v, want := range map[string]int{"252.39-1~deb12u2": 252, "257": 257, "v257": 0, "": 0} {
		if got := versionNumber(v); got != want {
			t.Errorf("versionNumber(%q) = %d, want %d", v, got, want)
		}
	}
}
