package turns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// playHolder: SOCKET PORT LOCK FILE [daemon]. It listens on a TCP port, which it
// writes down, locks a file, has a connection to a socket, and beats. As a
// daemon it does so in a session of its own, whose parent is gone.
func playHolder(words []string) int {
	if len(words) > 4 {
		selfAs("holder", &syscall.SysProcAttr{Setsid: true}, words[:4]...)
		return 0
	}
	peer := must(net.Dial("unix", words[0]))
	defer peer.Close()
	// At an address of its own: when its port is free, nobody else gets it by chance.
	l := must(net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", os.Getpid()>>16&127+1, os.Getpid()>>8&255, os.Getpid()&255)))
	defer l.Close()
	lock := must(os.OpenFile(words[2], os.O_RDWR|os.O_CREATE, 0o666))
	check(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	check(os.WriteFile(words[1]+".new", []byte(l.Addr().String()), 0o666))
	check(os.Rename(words[1]+".new", words[1]))
	return pulse(words[3]).forever()
}

// holdings are what one holder has.
type holdings struct {
	t     *testing.T
	words []string      // of the helper
	peer  *net.UnixConn // our end of its connection
	addr  string        // that it listens on
	heart
}

// newHoldings waits for a holder that start starts with the words given, until gone
// tells that it is gone, which is an error.
func newHoldings(t *testing.T, start func(words []string), gone func() bool) (*holdings, error) {
	t.Helper()
	f := files(t, "socket", "port", "lock", "beat")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f[0], Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(f[0], 0o777); err != nil {
		t.Fatal(err)
	}
	h := &holdings{t: t, words: f, heart: heart(f[3])}
	start(f)
	eventually(t, "the holder", func() bool {
		if h.peer == nil {
			_ = l.SetDeadline(time.Now().Add(20 * time.Millisecond))
			if c, err := l.AcceptUnix(); err == nil {
				h.peer = c
				t.Cleanup(func() { c.Close() })
			}
		}
		return h.peer != nil && h.size(t) > 0 || gone()
	})
	if h.peer == nil || h.size(t) == 0 {
		return nil, errors.New("the holder was gone before it held anything")
	}
	b, err := os.ReadFile(f[1])
	if err != nil {
		t.Fatal(err)
	}
	h.addr = string(b)
	if why := h.are(true); why != "" && gone() {
		return nil, errors.New(why)
	} else if why != "" {
		t.Error(why)
	}
	return h, nil
}

// are tells what is not as it is to be: everything is held, or nothing is, at once,
// without a second try.
func (h *holdings) are(held bool) (wrong string) {
	h.t.Helper()
	l, err := net.Listen("tcp", h.addr)
	if err == nil {
		l.Close()
	}
	if held != errors.Is(err, syscall.EADDRINUSE) || !held && err != nil {
		wrong += fmt.Sprintf("listen on %s: %v, held %v\n", h.addr, err, held)
	}
	f, err := os.Open(h.words[2])
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); held != errors.Is(err, syscall.EWOULDBLOCK) || !held && err != nil {
		wrong += fmt.Sprintf("lock: %v, held %v\n", err, held)
	}
	raw, err := h.peer.SyscallConn()
	if err != nil {
		h.t.Fatal(err)
	}
	n := 0
	rerr := raw.Read(func(fd uintptr) bool { // it does not block
		n, err = syscall.Read(int(fd), make([]byte, 1))
		return true
	})
	if gone := err == nil && n == 0 || errors.Is(err, syscall.ECONNRESET); rerr != nil || gone == held {
		wrong += fmt.Sprintf("the connection's other end: %d %v %v, held %v\n", n, err, rerr, held)
	}
	return wrong
}

// must checks that all is held, or nothing.
func (h *holdings) must(held bool) {
	h.t.Helper()
	if wrong := h.are(held); wrong != "" {
		h.t.Error(wrong)
	}
}

// When the receipt is there, everything that the turn's processes had is free:
// ports, locks, the other ends of connections and pipes. Nothing comes back, and
// what holders outside have, they keep.
func TestWhatATurnHeldIsFree(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		outside, err := newHoldings(t, func(words []string) {
			h := helper(t, "holder", words...)
			cmd := exec.Command(run.exe, h.Argv[1:]...)
			cmd.Env = h.Env
			p, err := run.kids.start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.kill)
		}, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"root", "nobody"} {
			for _, how := range []string{"itself", "daemon"} {
				for _, ending := range []string{"abandon", "deadline", "finish"} {
					t.Run(strings.Join([]string{user, how, ending}, " "), func(t *testing.T) {
						unhurried(t, patience(2*time.Second), func(clock time.Duration) error { return letGo(t, s, clock, user, how, ending) })
					})
				}
			}
		}
		outside.t = t
		outside.must(true)
		outside.beating(t)
	})
}

// letGo has a holder in a turn, ends it, and looks whether all is free. It is an error
// if its deadline was over too soon.
func letGo(t *testing.T, s *service, clock time.Duration, user, how, ending string) error {
	x := s.begin(t, api.BeginRequest{Leftovers: api.LeftoversReap})
	pipe := newPassed(t)
	var p api.Process
	h, err := newHoldings(t, func(words []string) {
		if how == "daemon" {
			words = append(slices.Clone(words), how)
		}
		req := helper(t, "holder", words...)
		req.User, req.PassFDs = user, []api.PassFD{{Number: 7}}
		if ending == "deadline" {
			req.Argv = []string{"/bin/sh", "-c", `"$0" "$@"; exec sleep 3600`, req.Argv[0]}
			req.Argv, req.DeadlineMS = append(req.Argv, words...), clock.Milliseconds()
		}
		var err error
		if p, err = s.Launch(t.Context(), x.ID, req, pipe.out[1]); err != nil {
			t.Fatal(err)
		}
	}, func() bool {
		v, err := s.Process(t.Context(), x.ID, p.ID)
		return ending == "deadline" && (err != nil || v.Status.State != api.ProcessRunning)
	})
	if err != nil {
		x.drop()
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
	defer cancel()
	switch ending {
	case "abandon":
		x.abandon(0)
	case "deadline": // a limit ends what an ending does, and no less
		v, err := s.WaitProcess(ctx, x.ID, p.ID)
		if err != nil || v.Status.EndedBy != api.EndedByDeadline {
			t.Fatalf("%+v (%v)", v.Status, err)
		}
		eventually(t, "its cgroup is empty", func() bool { return x.look().Alive == 0 })
	case "finish":
		r, err := s.Finish(ctx, x.ID, api.FinishRequest{})
		if err != nil || !r.Complete || len(r.Leftovers) > 0 {
			t.Fatalf("%+v (%v)", r, err)
		}
	}
	h.must(false)
	pipe.ended(t)
	stopped(t, h.heart)
	h.must(false) // nothing has come back
	if ending == "deadline" {
		x.abandon(0)
	}
	return nil
}

// A client that is gone with all of its cgroup right after a launch takes
// neither the process with it, nor what that says; where the process writes into
// the client's own pipe, it gets what a broken pipe gives, and is held.
func TestClientThatIsGone(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		for name, c := range map[string]struct {
			way  []string
			want string
		}{
			"kept":        {[]string{"--detach"}, "exited 5"},
			"its own":     {nil, "signaled SIGPIPE"},
			"on terminal": {[]string{"--tty"}, "exited 5"},
		} {
			t.Run(name, func(t *testing.T) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "beat", "go")
				script := `i=0; while [ ! -e "$1" ]; do i=$((i+1)); echo line $i || exit 9; printf . >>"$0"; done; echo last $i; exit 5`
				words := append([]string{"--socket", s.dir + "/sock", "run", "--turn", x.ID, "--cwd", "/"}, c.way...)
				gone := inCgroup(t, append(words, "--", "/bin/sh", "-c", script, f[0], f[1])...)
				heart(f[0]).beating(t)
				gone()
				if name != "its own" {
					heart(f[0]).beating(t)
				}
				if err := os.WriteFile(f[1], nil, 0o600); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the keeper's answer is entered", func() bool { return len(x.look().Processes) == 1 })
				v := x.ended("p1")
				if got := strings.TrimSpace(string(v.Status.State) + " " + map[bool]string{true: "5", false: v.Status.Signal}[v.Status.Code == 5]); got != c.want {
					t.Errorf("it ended: %+v, want %s", v.Status, c.want)
				}
				if o, kept := v.Output[api.StreamStdout]; kept && (o.BytesLost > 0 || o.BytesTotal < 10) {
					t.Errorf("%+v", o)
				}
				if now := x.look(); now.State != api.StateOpen {
					t.Errorf("the turn is %s", now.State)
				}
				x.abandon(0)
			})
		}
	})
}

// inCgroup runs pinfold in a cgroup of its own; the function that is returned
// ends that cgroup, and closes what the program wrote to.
func inCgroup(t *testing.T, words ...string) func() {
	t.Helper()
	dir := filepath.Join(run.cgroup, "client")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTree(dir) })
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := exec.Command(run.bin+"/pinfold", words...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd()), Pdeathsig: syscall.SIGKILL}
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, r)
	}()
	return func() {
		set(t, dir+"/cgroup.kill", "1")
		<-c.gone
		_ = r.Close()
		<-read
		removeTree(dir)
	}
}
