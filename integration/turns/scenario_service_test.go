package turns

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"pinfold.dev/api"
)

// playLogless: KIND PROGRAM WORD... It becomes the program, whose stdout and
// stderr are a small pipe that nobody reads (full), or that nobody could (gone).
func playLogless(words []string) int {
	var p [2]int
	check(syscall.Pipe(p[:]))
	if words[0] == "full" {
		_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(p[1]), syscall.F_SETPIPE_SZ, 4096)
		if errno != 0 {
			check(errno)
		}
	} else {
		check(syscall.Close(p[0]))
	}
	check(syscall.Dup3(p[1], 1, 0))
	check(syscall.Dup3(p[1], 2, 0))
	check(syscall.Exec(words[1], words[1:], os.Environ()))
	return 4 // not reached
}

// A service whose log nobody takes any more goes on: it launches, ends turns,
// answers, and stops when it is told to.
func TestLogThatNobodyReads(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		for _, kind := range []string{"full", "gone"} {
			t.Run(kind, func(t *testing.T) {
				s := serve(t, g, options{wrap: []string{"logless", kind}})
				newCanary(t, s)
				for range 60 { // more is logged of that than a pipe takes
					x := s.begin(t, api.BeginRequest{Label: strings.Repeat("a long label ", 10)})
					f := files(t, "beat")
					x.launch(helper(t, "beat", f[0]))
					heart(f[0]).beating(t)
					x.abandon(0)
					stopped(t, heart(f[0]))
				}
				s.kill()
				s.restart()
			})
		}
	})
}

// HUP, of a terminal that has gone, and PIPE, of a reader that has, are nothing
// to a service: it goes on.
func TestSignalsThatDoNotEndTheService(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "beat")
	x.launch(helper(t, "beat", f[0]))
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGCONT} {
		if err := s.proc.cmd.Process.Signal(sig); err != nil {
			t.Fatalf("%s: %v", sig, err)
		}
		time.Sleep(patience(20 * time.Millisecond))
		select {
		case <-s.proc.gone:
			t.Fatalf("%s ended the service: %s", sig, s.proc.cmd.ProcessState)
		default:
		}
		if _, err := s.Host(t.Context()); err != nil {
			t.Fatalf("after %s: %v", sig, err)
		}
	}
	heart(f[0]).beating(t)
	x.abandon(0)
	stopped(t, heart(f[0]))
}

// managers are variables by which a service manager speaks to one process, or
// that are a service's own.
func managers() []string {
	return []string{"NOTIFY_SOCKET=/nonexistent/notify", "LISTEN_FDS=2", "LISTEN_PID=1", "LISTEN_FDNAMES=a:b", "INVOCATION_ID=0123456789abcdef",
		"JOURNAL_STREAM=8:12345", "WATCHDOG_USEC=30000000", "WATCHDOG_PID=1", "SYSTEMD_EXEC_PID=1", "MANAGERPID=1", "MAINPID=1", "FDSTORE=5",
		"CREDENTIALS_DIRECTORY=/nonexistent/credentials", "RUNTIME_DIRECTORY=/nonexistent/run", "STATE_DIRECTORY=/nonexistent/state"}
}

// playDirty: PROGRAM WORD... It becomes the program, having left it all that a
// careless parent can: variables, ignored and blocked signals, descriptors.
func playDirty(words []string) int {
	runtime.LockOSThread()
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGTSTP, syscall.SIGTERM)
	set := uint64(1)<<(syscall.SIGUSR2-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGCHLD-1) | 1<<(syscall.SIGALRM-1)
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&set)), 0, 8, 0, 0)
	if errno != 0 {
		check(errno)
	}
	for _, name := range []string{"/dev/zero", "/dev/full"} {
		_ = must(syscall.Open(name, syscall.O_RDWR, 0)) // not close-on-exec
	}
	syscall.Umask(0o077)
	check(syscall.Exec(words[0], words, append(os.Environ(), append(managers(), "GATEWAY_TOKEN=s3cret")...)))
	return 4 // not reached
}

// What a service was given by whoever started it, and what a gateway has from
// its own manager, is not passed on: variables, signals, descriptors.
func TestNothingLeaksIntoAProcess(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{wrap: []string{"dirty"}})
		for _, streams := range []api.Stdio{{}, stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY), stdio(api.StdioPipe, api.StdioSpool, api.StdioSpool)} {
			x := s.begin(t, api.BeginRequest{})
			f := files(t, "base", "given")
			base := helper(t, "tell", f[0])
			base.EnvAdd, base.Env, base.Stdio = base.Env[:1], nil, streams
			x.launch(base)
			given := helper(t, "tell", f[1])
			given.Env, given.Stdio = append(given.Env, managers()...), streams
			given.EnvAdd = append([]string{"ADDED=yes"}, managers()...)
			x.launch(given)
			for i, want := range [][]string{
				{"HOME", "LANG", "LOGNAME", "PATH", helperEnv, "SHELL", "USER"},
				{"ADDED", "GOMAXPROCS", "PATH", helperEnv},
			} {
				if i == 0 && streams.Stdin.Mode == api.StdioPTY {
					want = append(want, "TERM")
					slices.Sort(want)
				}
				checkClean(t, told(t, f[i]), want)
			}
			x.abandon(0)
		}
	})
}

// checkClean checks that a process has nothing that nobody meant it to have.
func checkClean(t *testing.T, got seen, names []string) {
	t.Helper()
	has := map[string]bool{}
	for _, kv := range got.Env {
		name, _, _ := strings.Cut(string(kv), "=")
		has[name] = true
	}
	if list := slices.Sorted(maps.Keys(has)); !slices.Equal(list, slices.Sorted(slices.Values(names))) {
		t.Errorf("variables: %q, want %q", list, names)
	}
	if strings.Trim(got.SigIgn, "0") != "" || strings.Trim(got.SigBlk, "0") != "" {
		t.Errorf("signals: ignored %s, blocked %s", got.SigIgn, got.SigBlk)
	}
	if len(got.FDs) != 3 || !strings.HasPrefix(got.FDs[0], "0 ") || !strings.HasPrefix(got.FDs[2], "2 ") {
		t.Errorf("descriptors: %q", got.FDs)
	}
	if got.Umask != 0o022 || !got.Session {
		t.Errorf("umask %04o, leads its session: %v", got.Umask, got.Session)
	}
}

// The caller's variables say nothing of where a process is held; nor do the
// service's, of which it needs none.
func TestEmptyEnvironment(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{wrap: []string{"bare"}})
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.proc.pid))
		if err != nil || len(b) > 0 {
			t.Errorf("the service's environment: %q (%v)", b, err)
		}
		x := s.begin(t, api.BeginRequest{MinGrade: g})
		for _, env := range [][]string{{}, {"XDG_RUNTIME_DIR=/nonexistent", "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent", "DBUS_SYSTEM_BUS_ADDRESS=nonsense:"}} {
			p := x.launch(api.LaunchRequest{Argv: []string{"/bin/sleep", "3600"}, Env: env, MinGrade: g})
			if in := cgroupOf(t, p.PID); p.Grade != g || !strings.HasSuffix(in, filepath.Base(x.Cgroup)+"/work/"+p.ID) {
				t.Errorf("with %q it is in %s, grade %s", env, in, p.Grade)
			}
			want, got := strings.Join(env, "\x00"), ""
			eventually(t, "its environment", func() bool { // it may still be on its way into its program, where it has none
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
				got = strings.TrimSuffix(string(b), "\x00")
				return err == nil && (got != "" || want == "")
			})
			if got != want {
				t.Errorf("its environment: %q", got)
			}
		}
		x.abandon(0)
	})
}

// playBare: PROGRAM WORD... It becomes the program, without any environment.
func playBare(words []string) int {
	check(syscall.Exec(words[0], words, nil))
	return 4 // not reached
}

// What a process's variables hold is nobody's to read but its own: no file, no
// log and no answer of the service has it. Nor has a log its words.
func TestSecretsStayWhereTheyAre(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	const secret, word = "s3cret-of-a-variable", "w0rd-of-a-command"
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "beat")
	req := helper(t, "beat", f[0], word)
	req.Env, req.EnvAdd = append(req.Env, "TOKEN="+secret), []string{"OTHER_TOKEN=" + secret}
	req.IdempotencyKey = "once"
	p := x.launch(req)
	bad := api.LaunchRequest{Argv: []string{"/nonexistent/" + word}, Env: []string{"TOKEN=" + secret}, IdempotencyKey: "bad"}
	if _, err := s.Launch(t.Context(), x.ID, bad); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
	if p, err := s.Launch(t.Context(), x.ID, req); err != nil || !p.Repeated {
		t.Errorf("%+v (%v)", p, err)
	}
	heart(f[0]).beating(t)
	look := func(when string) {
		t.Helper()
		for path, b := range everything(t, s.dir) {
			if strings.Contains(b, secret) {
				t.Errorf("%s: %s holds the value of a variable", when, path)
			}
			if path == s.dir+"/log" && strings.Contains(b, word) {
				t.Errorf("%s: the log holds a word of a command", when)
			}
		}
	}
	look("while it runs")
	tree, terr := s.Tree(t.Context(), x.ID)
	v, perr := s.Process(t.Context(), x.ID, p.ID)
	r := x.abandon(0)
	if all := fmt.Sprintf("%+v %+v %+v %+v", tree, v, x.look(), r); strings.Contains(all, secret) || terr != nil || perr != nil {
		t.Errorf("an answer holds the value of a variable: %s (%v, %v)", all, terr, perr)
	}
	look("after its end")
}

// everything is what the files below a directory hold, by their paths.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // gone meanwhile, or no file
		}
		b, err := os.ReadFile(path)
		if err == nil {
			out[path] = string(b)
		}
		return nil
	})
	if err != nil || len(out) < 2 {
		t.Fatalf("%d files (%v)", len(out), err)
	}
	return out
}

// Run in place, a command is the caller's own process; what the caller's
// manager has told the caller stays with the caller all the same.
func TestInPlaceLeaksNothing(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	f := files(t, "in place", "run")
	for i, way := range [][]string{{"run", "--in-place"}, {"run"}} {
		h := helper(t, "tell", f[i])
		words := append(append([]string{"--socket", s.dir + "/sock"}, way...), "--leftovers", "reap", "--")
		cmd := exec.Command(run.bin+"/pinfold", append(words, h.Argv...)...)
		cmd.Env = append(slices.Clone(h.Env), managers()...)
		if out, err := run.kids.output(cmd); err != nil {
			t.Fatalf("%q: %v\n%s", way, err, out)
		}
		for _, kv := range told(t, f[i]).Env {
			if name, _, _ := strings.Cut(string(kv), "="); !slices.Contains([]string{helperEnv, "PATH", "GOMAXPROCS"}, name) {
				t.Errorf("%q: %s", way, kv)
			}
		}
	}
	// One that is its unit's own process keeps what is its own.
	own := `export LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$; exec "$0" --socket "$1" run --in-place -- sh -c 'echo $NOTIFY_SOCKET $LISTEN_FDS'`
	cmd := exec.Command("/bin/sh", "-c", own, run.bin+"/pinfold", s.dir+"/sock")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, managers()...)
	if out, err := run.kids.output(cmd); err != nil || out != "/nonexistent/notify 2\n" {
		t.Errorf("%q %v", out, err)
	}
	eventually(t, "their turns are over", func() bool {
		l, err := s.Turns(t.Context(), false, "")
		return err == nil && !slices.ContainsFunc(l.Turns, func(v api.Turn) bool { return !v.State.Terminal() })
	})
}
