package containers

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// mode is a way to run a container: what it is given, and what that must come to.
type mode struct {
	name     string
	rootless bool
	flags    []string // of the init
	change   func(t testing.TB, b *bundle)
	grade    api.Grade // at which turns must be held
	dir      string    // for the gateway's files; empty: /tmp
	doctor   []string  // what doctor must say, too
	needs    string    // a controller of cgroup v1
	unless   string    // a runtime that cannot do it
}

// In each mode a gateway that is the container's command has its service beside
// it, held as well as the container allows; doctor says so; a turn whose processes
// try to escape is ended, and nothing else; the container stops as it is asked.
// docs/containers.md has what it came to.
func TestModes(t *testing.T) {
	t.Run("each", func(t *testing.T) { // returns when all have
		runtimes(t, func(t *testing.T, rt oci) {
			for _, m := range modes() {
				if m.unless == rt.name {
					run.table.add(m.name, rt, cell{cannot: true})
					continue
				}
				t.Run(m.name, func(t *testing.T) {
					t.Parallel()
					if m.needs != "" && run.v1[m.needs] == "" {
						missing(t, "the controller "+m.needs+" of cgroup v1")
					}
					rt := rt
					rt.rootless = m.rootless
					m.test(t, rt)
				})
			}
		})
	})
	if !t.Failed() && run.dir != "" {
		run.table.check(t, modes())
	}
}

func (m mode) test(t *testing.T, rt oci) {
	b := newBundle(t, gateway("life")...)
	b.flags(m.flags...)
	b.imageEnv()
	if m.rootless {
		b.rootless()
	}
	if m.change != nil {
		m.change(t, b)
	}
	c := rt.start(t, b)
	s := c.story()
	m.check(t, s)
	if says := strings.Contains(c.out.String(), "turns are held at grade "+string(m.grade)+" ") ||
		strings.Contains(c.out.String(), "turns are held at grade "+string(m.grade)+":"); says != (m.grade != "") {
		t.Error("the init's first word on the service is not its grade")
	}
	c.kill("TERM")
	code := c.code()
	if code != 7 || !strings.Contains(c.out.String(), "stopped") {
		t.Errorf("stopped, it ends with %d", code)
	}
	run.table.add(m.name, rt, cell{grade: s.Host.Grade, code: code, doctor: s.DoctorExit})
}

// check compares what was seen inside with what the container was given.
func (m mode) check(t *testing.T, s story) {
	t.Helper()
	if s.Host.Grade != m.grade {
		t.Errorf("turns are held at grade %q, want %q: %s", s.Host.Grade, m.grade, s.Refused)
	}
	var h api.Host
	if err := json.Unmarshal(s.Doctor, &h); err != nil || h.Grade != m.grade || (s.DoctorExit == 0) != (m.grade != "") {
		t.Errorf("doctor: exit %d, %s (%v)", s.DoctorExit, s.Doctor, err)
	}
	for _, c := range h.Checks {
		of, ok := strings.CutPrefix(c.Name, "grade ")
		if ok && api.Grade(of) == m.grade && !c.OK || c.Name == "grade cgroup" && c.OK != (m.grade == api.GradeCgroup) {
			t.Errorf("doctor says of %s: %v, %s", c.Name, c.OK, c.Detail)
		}
		if !c.OK && c.Detail == "" && c.Remedy == "" {
			t.Errorf("doctor says no to %s, and not why", c.Name)
		}
	}
	for _, text := range m.doctor {
		if !strings.Contains(string(s.Doctor), text) {
			t.Errorf("doctor does not say %q: %s", text, s.Doctor)
		}
	}
	if !s.Canary {
		t.Error("the process outside the turn is gone")
	}
	if m.grade == "" {
		return
	}
	r := s.Receipt
	if s.Exit.State != api.ProcessExited || s.Exit.Code != 5 {
		t.Errorf("a process that exits with 5: %+v", s.Exit)
	}
	if !r.Complete || r.State != api.StateAbandoned || r.Grade != m.grade || !s.Gone || r.Counts.Survivors != 0 || s.Up != 3 {
		t.Errorf("%d processes were up; complete %v, state %s, grade %s, counts %+v, all gone %v; mechanism %s",
			s.Up, r.Complete, r.State, r.Grade, r.Counts, s.Gone, r.Mechanism)
	}
}

// gateway is a command of the image: its entrypoint, and this program in a role.
func gateway(role string, words ...string) []string {
	return slices.Concat(run.image.entrypoint, as(role, words...))
}

// flags gives the init more of them.
func (b *bundle) flags(more ...string) {
	b.Process.Args = slices.Concat(b.Process.Args[:1], more, b.Process.Args[1:])
}

// imageEnv gives the container the image's environment.
func (b *bundle) imageEnv() {
	for _, e := range run.image.env {
		b.env(e)
	}
	b.env(roleEnv + "=gateway")
}

// story waits for what the gateway tells.
func (c *container) story() (s story) {
	c.t.Helper()
	c.says(storyMark)
	for end := false; !end; {
		_, text, _ := strings.Cut(c.out.String(), storyMark)
		text, _, end = strings.Cut(text, "\n")
		if end {
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return s
}

// limited makes a cgroup of cgroup v1 with a limit for a bundle.
func limited(controller string, b *bundle, file, value string) string {
	dir := run.v1[controller] + b.Linux.CgroupsPath
	check(os.MkdirAll(dir, 0o755))
	check(os.WriteFile(dir+"/"+file, []byte(value), 0))
	return dir
}
