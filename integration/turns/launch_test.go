package turns

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// badLaunch is a launch that must be refused.
type badLaunch struct {
	name  string
	req   api.LaunchRequest
	code  api.Code
	errno string // details.errno_name
	step  string // details.step; empty: any
}

// trace is what a launch may leave in a turn.
type trace struct {
	leaves   []string // cgroups below work/
	children int      // of the keeper
	keeper   int      // the keeper's descriptors
	service  int      // the service's
}

func (x *turn) trace() (out trace) {
	x.t.Helper()
	list, err := os.ReadDir(filepath.Join(x.Cgroup, "work"))
	if err != nil {
		x.t.Fatal(err)
	}
	for _, e := range list {
		if e.IsDir() {
			out.leaves = append(out.leaves, e.Name())
		}
	}
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(x.KeeperPID) + "/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		out.children += len(bytes.Fields(b))
	}
	out.keeper, out.service = fds(x.t, x.KeeperPID), fds(x.t, x.s.proc.pid)
	return out
}

// within tells that there is no more than before; then a launch may just have been
// put away.
func (a trace) within(b trace) bool {
	return slices.Equal(a.leaves, b.leaves) && a.children <= b.children && a.keeper <= b.keeper && a.service <= b.service
}

// refuses checks that a launch is refused as it should be, and leaves nothing
// behind.
func (x *turn) refuses(t *testing.T, b badLaunch) {
	t.Helper()
	before := x.trace()
	p, err := x.s.Launch(t.Context(), x.ID, b.req)
	if err == nil {
		t.Fatalf("it was launched: %+v", p)
	}
	e := wantCode(t, err, b.code)
	if got := e.Details["errno_name"]; got != b.errno {
		t.Errorf("errno_name is %q, want %q: %v", got, b.errno, err)
	}
	if n, err := strconv.Atoi(e.Details["errno"]); b.errno != "" && (err != nil || n <= 0 || !strings.Contains(e.Message, syscall.Errno(n).Error())) {
		t.Errorf("errno is %q, the message does not tell it: %q", e.Details["errno"], e.Message)
	}
	if b.step != "" && e.Details["step"] != b.step {
		t.Errorf("step is %q, want %q", e.Details["step"], b.step)
	}
	if e.Remedy == "" {
		t.Errorf("%q says not what to do", e.Message)
	}
	var now trace
	for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(time.Millisecond) {
		if now = x.trace(); now.within(before) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("it left something behind: before %+v, now %+v", before, now)
			break
		}
	}
	if n := len(x.look().Processes); n != 1 {
		t.Errorf("the turn tells of %d processes, only one was launched", n)
	}
}

func TestLaunchRefusals(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "beat")
		x.launch(helper(t, "beat", f[0]))
		for _, b := range badLaunches(t) {
			t.Run(b.name, func(t *testing.T) { x.refuses(t, b) })
		}
		heart(f[0]).beating(t) // the turn goes on
		x.abandon(0)
	})
}

func badLaunches(t *testing.T) []badLaunch {
	f := files(t, "plain", "nointerpreter", "garbage", "closed", "dangling")
	for name, content := range map[string]string{f[0]: "#!/bin/sh\n", f[1]: "#!/nonexistent/interpreter\n", f[2]: "\x01\x02 no program\n"} {
		mode := os.FileMode(0o755)
		if name == f[0] {
			mode = 0o644
		}
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(f[3], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nonexistent", f[4]); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 200<<10) // one word is at most 128 KiB: MAX_ARG_STRLEN, execve(2)
	argv := func(w ...string) api.LaunchRequest { return api.LaunchRequest{Argv: w, Cwd: "/"} }
	in := func(cwd, user string) api.LaunchRequest {
		return api.LaunchRequest{Argv: []string{"/bin/true"}, Cwd: cwd, User: user}
	}
	return []badLaunch{
		{"missing executable", argv("/nonexistent/program"), api.CodeExecFailed, "ENOENT", "exec"},
		{"missing in PATH", argv("no-such-program-anywhere"), api.CodeExecFailed, "ENOENT", "exec"},
		{"dangling link", argv(f[4]), api.CodeExecFailed, "ENOENT", "exec"},
		{"not executable", argv(f[0]), api.CodeExecFailed, "EACCES", "exec"},
		{"a directory", argv("/tmp"), api.CodeExecFailed, "EACCES", "exec"},
		{"below a file", argv(f[0] + "/x"), api.CodeExecFailed, "ENOTDIR", "exec"},
		{"missing interpreter", argv(f[1]), api.CodeExecFailed, "ENOENT", "exec"},
		{"no program format", argv(f[2]), api.CodeExecFailed, "ENOEXEC", "exec"},
		{"a word too long", argv("/bin/true", long), api.CodeExecFailed, "E2BIG", "exec"},
		{"missing directory", in("/nonexistent/dir", ""), api.CodeLaunchRefused, "ENOENT", "cwd"},
		{"directory is a file", in(f[0], ""), api.CodeLaunchRefused, "ENOTDIR", "cwd"},
		{"directory closed to the user", in(f[3], "nobody"), api.CodeLaunchRefused, "EACCES", "cwd"},
		{"unknown user", in("/", "no-such-user-here"), api.CodeLaunchRefused, "", "user"},
	}
}

// The turn's cgroup itself can refuse. The turn can be ended all the same.
func TestCgroupRefusals(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		for _, c := range []struct {
			name    string
			disturb func(t *testing.T, x *turn)
			want    badLaunch
		}{
			{"frozen", func(t *testing.T, x *turn) { set(t, x.Cgroup+"/work/cgroup.freeze", "1") },
				badLaunch{code: api.CodeLaunchRefused, step: "frozen"}},
			{"cgroup.max.descendants reached", func(t *testing.T, x *turn) { set(t, x.Cgroup+"/work/cgroup.max.descendants", "1") },
				badLaunch{code: api.CodeLaunchRefused, step: "cgroup", errno: "EAGAIN"}},
			{"cgroup.max.depth reached", func(t *testing.T, x *turn) { set(t, x.Cgroup+"/work/cgroup.max.depth", "0") },
				badLaunch{code: api.CodeLaunchRefused, step: "cgroup", errno: "EAGAIN"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "beat")
				x.launch(helper(t, "beat", f[0]))
				heart(f[0]).beating(t)
				c.disturb(t, x)
				c.want.req = helper(t, "exit", "0")
				x.refuses(t, c.want)
				x.abandon(0)
				stopped(t, heart(f[0]))
			})
		}
	})
}

func set(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// Somebody removes the cgroup of a turn that is empty.
func TestCgroupRemoved(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		p := x.launch(helper(t, "exit", "7"))
		if p, err := s.WaitProcess(t.Context(), x.ID, p.ID); err != nil || p.Status.Code != 7 {
			t.Fatalf("%+v %v", p.Status, err)
		}
		removeTree(x.Cgroup + "/work")
		_, err := s.Launch(t.Context(), x.ID, helper(t, "exit", "0"))
		e := wantCode(t, err, api.CodeLaunchRefused)
		if e.Details["step"] != "cgroup" || (e.Details["errno_name"] != "ENOENT" && e.Details["errno_name"] != "ENODEV") {
			t.Errorf("%v: details %v, want the step cgroup and its errno", err, e.Details)
		}
		r := x.abandon(0)
		if st := r.Processes[0].Status; len(r.Processes) != 1 || st.State != api.ProcessExited || st.Code != 7 {
			t.Errorf("the receipt tells of %+v", r.Processes)
		}
	})
}

// A program that is just being written is tried again.
func TestTextBusy(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		for range 20 {
			p, late, err := launchBusy(t, x)
			if err != nil && late { // for longer than anybody tries: who wrote it was not scheduled
				t.Logf("it was busy too long: %v", err)
				continue
			}
			if err == nil {
				p, err = s.WaitProcess(t.Context(), x.ID, p.ID)
			}
			if err != nil || p.Status.State != api.ProcessExited || p.Status.Code != 5 {
				t.Errorf("%+v, %v; want exited with 5", p.Status, err)
			}
			x.abandon(0)
			return
		}
		t.Error("it was busy too long each time")
	})
}

// launchBusy launches a program that is written to for 20 ms more. Late tells that it
// was a good deal more.
func launchBusy(t *testing.T, x *turn) (p api.Process, late bool, err error) {
	t.Helper()
	name := files(t, "program")[0]
	w, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o755)
	if err == nil {
		_, err = w.WriteString("#!/bin/sh\nexit 5\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	began, closed := time.Now(), make(chan time.Duration, 1)
	time.AfterFunc(20*time.Millisecond, func() {
		w.Close()
		closed <- time.Since(began)
	})
	p, err = x.s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{name}})
	return p, <-closed > 60*time.Millisecond, err
}
