package turns

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// atScope runs a test at grade scope only; the run of the beds has it.
func atScope(t *testing.T, test func(t *testing.T, s *service)) {
	if !slices.Contains(grades(t), api.GradeScope) {
		t.Skip("needs systemd as PID 1: it runs in the test beds")
	}
	s := serve(t, api.GradeScope, options{})
	newCanary(t, s)
	test(t, s)
}

// said runs a command and returns what it says.
func said(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := run.kids.output(exec.Command(argv[0], argv[1:]...))
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return strings.TrimSpace(out)
}

// Any label is shown to people, and none reaches a unit's name.
func TestScopeShowsTheLabel(t *testing.T) {
	atScope(t, func(t *testing.T, s *service) {
		for _, label := range []string{"task 7", "-rf / --no", "a/b:c@d\\e", "größe 漢字 🙂", "%n$HOME\"'", strings.Repeat("x", 256)} {
			x := s.begin(t, api.BeginRequest{Label: label})
			if x.Unit != "pinfold-"+x.ID+".scope" {
				t.Errorf("%q: unit %s", label, x.Unit)
			}
			shown := label[:min(len(label), 200)] // the description has a bound
			if got := said(t, "systemctl", "show", "--value", "-p", "Description", x.Unit); !strings.Contains(got, shown) {
				t.Errorf("%q: systemctl describes it as %q", label, got)
			}
			if got := said(t, "systemctl", "status", "--no-pager", "-l", x.Unit); !strings.Contains(got, x.ID) || !strings.Contains(got, "active (running)") {
				t.Errorf("%q: systemctl status says\n%s", label, got)
			}
			x.abandon(0)
		}
		for _, label := range []string{strings.Repeat("x", 300), "a\nb", "\x1b[2J", "\xff"} {
			_, err := s.Begin(t.Context(), api.BeginRequest{Label: label})
			wantCode(t, err, api.CodeBadRequest)
		}
	})
}

// An ending needs no bus: not one that is gone, and not one that hangs.
func TestEndingNeedsNoBus(t *testing.T) {
	for _, c := range []struct {
		name         string
		break_, mend func(t *testing.T)
	}{
		{"stopped", func(t *testing.T) {
			_, _ = run.kids.output(exec.Command("systemctl", "stop", "dbus.socket", "dbus.service")) // it loses its own connection
			if _, err := run.kids.output(exec.Command("busctl", "--timeout=1", "status")); err == nil {
				t.Fatal("the bus is still there")
			}
		}, func(t *testing.T) { said(t, "systemctl", "start", "dbus.socket", "dbus.service") }},
		{"hanging", func(t *testing.T) { signalBus(t, syscall.SIGSTOP) }, func(t *testing.T) { signalBus(t, syscall.SIGCONT) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			atScope(t, func(t *testing.T, s *service) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "leader", "child")
				x.launch(helper(t, "setsid", f[0], f[1]))
				heart(f[0]).beating(t)
				heart(f[1]).beating(t)
				c.break_(t)
				mended := false
				defer func() {
					if !mended {
						c.mend(t)
					}
				}()
				r := x.abandon(0)
				stopped(t, heart(f[0]), heart(f[1]))
				if len(r.Notes) != 0 {
					t.Errorf("notes: %q", r.Notes)
				}
				c.mend(t)
				mended = true
				eventually(t, "the scope gone", func() bool {
					return strings.Contains(said(t, "systemctl", "show", "-p", "ActiveState", x.Unit), "inactive")
				})
				eventually(t, "a new turn at grade scope", func() bool { // the verdict on a bus that failed expires
					v, err := s.Begin(t.Context(), api.BeginRequest{MinGrade: api.GradeScope})
					if err == nil {
						run.guard.tell("held", v.Cgroup, "0")
						(&turn{Turn: v, s: s, t: t}).abandon(0)
					}
					return err == nil
				})
			})
		})
	}
}

// signalBus signals the bed's own message bus.
func signalBus(t *testing.T, sig syscall.Signal) {
	t.Helper()
	pid, err := strconv.Atoi(said(t, "systemctl", "show", "--value", "-p", "MainPID", "dbus.service"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if line, err := h.CgroupPath(); err != nil || !strings.HasSuffix(line, "dbus.service") {
		t.Fatalf("pid %d is no bus: %q %v", pid, line, err)
	}
	if err := h.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// A launched process that another unit takes is still ours by its handle.
func TestStolenByAnotherUnit(t *testing.T) {
	atScope(t, func(t *testing.T, s *service) {
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "leader", "child", "other")
		p := x.launch(helper(t, "setsid", f[0], f[1]))
		x.launch(helper(t, "beat", f[2]))
		for _, file := range f {
			heart(file).beating(t)
		}
		thief := "thief-" + x.ID + ".scope"
		said(t, "busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
			"StartTransientUnit", "ssa(sv)a(sa(sv))", thief, "fail", "1", "PIDs", "au", "1", strconv.Itoa(p.PID), "0")
		eventually(t, "the process in the other unit", func() bool {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "cgroup"))
			return err == nil && strings.Contains(string(b), thief)
		})
		now := int64(0)
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: &now})
		if err != nil || !r.Complete {
			t.Fatalf("%+v (%v)", r, err)
		}
		stopped(t, heart(f[0]), heart(f[1]), heart(f[2]))
		if !r.Processes[0].Escaped || r.Processes[0].Verdict != api.VerdictGone {
			t.Errorf("p1 on the receipt: %+v", r.Processes[0])
		}
		i := slices.IndexFunc(r.Outside, func(o api.Outside) bool { return o.Process == p.ID })
		if i < 0 || !r.Outside[i].Ended || !strings.Contains(r.Outside[i].Cgroup, thief) {
			t.Errorf("outside on the receipt: %+v", r.Outside)
		}
	})
}

// What a turn hands to the service manager is seen, told, and left alone.
func TestHandedToSystemd(t *testing.T) {
	atScope(t, func(t *testing.T, s *service) {
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "handed", "inside")
		handed := helper(t, "beat", f[0])
		unit := "handed-" + x.ID + ".scope"
		req := handed
		req.Argv = append([]string{"/usr/bin/systemd-run", "--quiet", "--scope", "--unit=" + unit}, handed.Argv...)
		x.launch(api.LaunchRequest{Argv: append([]string{"/bin/sh", "-c", `"$@" & exec sleep 1000`, "sh"}, req.Argv...), Env: req.Env, Cwd: "/"})
		x.launch(helper(t, "beat", f[1]))
		t.Cleanup(func() { _, _ = run.kids.output(exec.Command("systemctl", "stop", unit)) })
		heart(f[0]).beating(t)
		heart(f[1]).beating(t)
		now := int64(0)
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: &now})
		if err != nil || !r.Complete {
			t.Fatalf("%+v (%v)", r, err)
		}
		stopped(t, heart(f[1]))
		heart(f[0]).beating(t)
		i := slices.IndexFunc(r.Outside, func(o api.Outside) bool { return strings.Contains(o.Cgroup, unit) })
		if i < 0 || r.Outside[i].Ended || r.Outside[i].Evidence == "" {
			t.Errorf("outside on the receipt: %+v", r.Outside)
		}
		said(t, "systemctl", "stop", unit)
		time.Sleep(patience(20 * time.Millisecond))
		stopped(t, heart(f[0]))
	})
}

// Clients that go away as soon as they have asked for a turn say nothing of the
// service manager: everybody else's turns are held as well as before.
func TestHastyClientsCostNobodyTheGrade(t *testing.T) {
	atScope(t, func(t *testing.T, s *service) {
		for i := range 30 {
			h := s.hostile(t)
			h.send(request("POST", "/v1/turns", "{}"))
			time.Sleep(time.Duration(i%10) * 500 * time.Microsecond) // somewhere in the begin
			h.Close()
			x := s.begin(t, api.BeginRequest{})
			if x.Grade != api.GradeScope {
				t.Errorf("a turn is held at grade %s: %q", x.Grade, x.Degraded)
			}
			x.abandon(0)
		}
		s.endTurns()
	})
}
