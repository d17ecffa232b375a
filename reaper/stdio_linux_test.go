package reaper_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/spool"
	"pinfold.dev/internal/wire"
)

const spoolSize = 1 << 20

// spools is a keeper that was given a directory for spools.
type spools struct {
	*bed
	at string
}

func newSpools(t testing.TB, outputMax int64) *spools {
	t.Helper()
	s := &spools{newKeeper(t, nil), t.TempDir()}
	if err := os.Chmod(s.at, 0o700); err != nil {
		t.Fatal(err)
	}
	if m := s.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Work: s.work, Spool: s.at, OutputMax: outputMax}}); m.Error != nil {
		t.Fatalf("hold: %+v", m.Error)
	}
	return s
}

// spooled makes a request whose outputs go into spools.
func spooled(process string, argv ...string) *wire.Launch {
	l := request(process, argv...)
	l.SpoolOut, l.SpoolErr = spoolSize, spoolSize
	return l
}

// onTerminal makes a request that has a terminal for all streams.
func onTerminal(process string, argv ...string) *wire.Launch {
	l := request(process, argv...)
	l.PTY, l.TTYIn, l.TTYOut, l.TTYErr, l.SpoolOut = &wire.WinSize{Rows: 24, Cols: 80}, true, true, true, spoolSize
	return l
}

// read reads what a spool has at present.
func (s *spools) read(name string) (string, spool.Status) {
	s.t.Helper()
	r, err := spool.Open(filepath.Join(s.at, name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	st, err := r.Status()
	if err != nil {
		s.t.Fatal(err)
	}
	var all []byte
	buf := make([]byte, 64<<10)
	for off := int64(0); ; {
		n, next, gap, err := r.ReadAt(buf, off)
		if gap != nil {
			off = gap.To
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			s.t.Fatal(err)
		}
		if n == 0 {
			return string(all), st
		}
		all, off = append(all, buf[:n]...), next
	}
}

// textIs waits until a spool has a text.
func (s *spools) textIs(name, want string) {
	s.t.Helper()
	got := ""
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if got, _ = s.read(name); got == want {
			return
		}
	}
	s.t.Fatalf("%s has %q, want %q", name, got, want)
}

func (s *spools) input(process, data string, eof bool) *wire.Error {
	s.t.Helper()
	return s.call(wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: process, Data: []byte(data), EOF: eof}}).Error
}

func (s *spools) end(process string) {
	s.t.Helper()
	sig := &wire.Signal{Process: process, Number: int(syscall.SIGKILL)}
	if m := s.call(wire.Message{Op: wire.OpSignal, Signal: sig}); m.Error != nil {
		s.t.Fatal(m.Error)
	}
	s.exitOf(process)
}

func TestSpools(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(spooled("p1", "sh", "-c", "echo out; echo err >&2"))
	s.exitOf("p1")
	if out, st := s.read("p1.stdout"); out != "out\n" || !st.EOF || !st.Closed || st.Max != spoolSize {
		t.Errorf("stdout %q, %+v", out, st)
	}
	if out, st := s.read("p1.stderr"); out != "err\n" || !st.EOF {
		t.Errorf("stderr %q, %+v", out, st)
	}
	l := spooled("p2", "sh", "-c", "echo one; echo two >&2; echo three")
	l.SpoolErr, l.ErrToOut = 0, true
	s.mustLaunch(l)
	s.exitOf("p2")
	if out, st := s.read("p2.stdout"); out != "one\ntwo\nthree\n" || !st.EOF {
		t.Errorf("merged %q, %+v", out, st)
	}
	if fi, err := os.Stat(s.at + "/p2.stdout"); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	// The user may open what is his by name.
	l = spooled("p3", "sh", "-c", "echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin")
	l.SetUser, l.UID, l.GID, l.StdinPipe = true, 1234, 1234, true
	s.mustLaunch(l)
	if e := s.input("p3", "in\n", true); e != nil {
		t.Error(e)
	}
	s.exitOf("p3")
	if out, _ := s.read("p3.stdout"); out != "out\nin\n" {
		text, _ := s.read("p3.stderr")
		t.Errorf("as a user: %q, %q", out, text)
	}
}

// Whatever a process has said is in its spool when its end is announced, and
// nothing is left of it in the keeper.
func TestNoOutputIsLost(t *testing.T) {
	const rounds = 1000
	s := newSpools(t, 0)
	for _, kind := range []string{"pipe", "tty"} {
		fds := s.keeperFDs()
		for i := range rounds {
			name := fmt.Sprintf("%s%d", kind, i)
			l, want := spooled(name, "echo", name), name+"\n"
			if kind == "tty" {
				l, want = onTerminal(name, "echo", name), name+"\r\n"
			}
			s.mustLaunch(l)
			s.exitOf(name)
			if out, st := s.read(name + ".stdout"); out != want || !st.EOF || !st.Closed {
				t.Fatalf("%s: %q, %+v", name, out, st)
			}
		}
		eventually(t, "no descriptor is left", func() bool { return s.keeperFDs() == fds })
	}
}

// The end of a process waits for nobody who holds its streams open.
func TestEndDoesNotWaitForHolders(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"background", "sleep 1000 & echo said"},
		{"session", "setsid sleep 1000 & echo said"},
		{"subshell", "(sleep 1000; true) & echo said"},
		{"pipe", "(sleep 1000 | cat) & echo said"},
	} {
		for _, tty := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s tty=%v", tt.name, tty), func(t *testing.T) {
				s := newSpools(t, 0)
				script, want := "trap '' HUP; "+tt.script, "said\n"
				l := spooled("p1", "sh", "-c", script)
				if tty {
					l, want = onTerminal("p1", "sh", "-c", script), "said\r\n"
				} else {
					l.StdinPipe = true
				}
				s.mustLaunch(l)
				s.exitOf("p1")
				out, st := s.read("p1.stdout")
				if out != want || st.EOF || st.Closed {
					t.Errorf("%q, %+v", out, st)
				}
				if err := os.WriteFile(filepath.Join(s.work, "p1", "cgroup.kill"), []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
				eventually(t, "end of stream", func() bool { _, st := s.read("p1.stdout"); return st.EOF })
			})
		}
	}
}

// A grandchild's output is taken also after the end of the process, and what is
// there when the keeper quits.
func TestOutputAfterTheEnd(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(spooled("p1", "sh", "-c", "(while kill -0 $$ 2>/dev/null; do sleep 0.05; done; echo late; sleep 600) & echo early"))
	s.exitOf("p1")
	s.textIs("p1.stdout", "early\nlate\n")
	if m := s.call(wire.Message{Op: wire.OpQuit}); m.Error != nil {
		t.Fatal(m.Error)
	}
	if _, st := s.read("p1.stdout"); !st.Closed || st.EOF {
		t.Errorf("after the keeper quit: %+v", st)
	}
}

// A fast stream is bounded on the disk and in memory, and holds up nothing.
func TestFirehose(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(spooled("calm", "sleep", "600"))
	before := s.keeperMemory()
	const total = 256 << 20
	s.mustLaunch(spooled("p1", "head", "-c", fmt.Sprint(total), "/dev/zero"))
	s.mustLaunch(spooled("p2", "sh", "-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"))
	most := 0
	for i := range 20 {
		name := fmt.Sprintf("q%d", i)
		s.mustLaunch(spooled(name, "echo", "x"))
		s.exitOf(name)
		most = max(most, s.keeperMemory())
	}
	s.exitOf("p1")
	if _, st := s.read("p1.stdout"); st.Total != total || !st.EOF || st.Lost != 0 {
		t.Errorf("%+v", st)
	}
	if fi, err := os.Stat(s.at + "/p1.stdout"); err != nil || fi.Size() > spoolSize+8192 {
		t.Errorf("size %d, %v", fi.Size(), err)
	}
	s.end("p2")
	if most > before+1<<20 {
		t.Errorf("memory went from %d to %d", before, most)
	}
}

// What streams needed is given back: an idle keeper that has had many is as
// small as one that had none, and is not woken by those that are silent.
func TestIdleWithStreams(t *testing.T) {
	s := newSpools(t, 0)
	for i := range 100 {
		name := fmt.Sprintf("p%d", i)
		s.mustLaunch(onTerminal(name, "head", "-c", "100000", "/dev/zero"))
		s.exitOf(name)
	}
	l := spooled("silent", "sleep", "600")
	l.StdinPipe = true
	s.mustLaunch(l)
	s.mustLaunch(onTerminal("terminal", "sleep", "600"))
	s.idles(3 * time.Second)
	private := s.keeperMemory()
	if private > 2<<20 {
		t.Errorf("%d kB of private memory", private>>10)
	}
	t.Logf("%d kB of private memory with two live processes that have streams", private>>10)
}

func TestOutputMax(t *testing.T) {
	s := newSpools(t, 100_000)
	s.mustLaunch(spooled("p1", "head", "-c", "60000", "/dev/zero"))
	s.exitOf("p1")
	s.mustLaunch(spooled("p2", "head", "-c", "60000", "/dev/zero"))
	s.exitOf("p2")
	s.mustLaunch(spooled("p3", "echo", "x"))
	s.exitOf("p3")
	maxed := 0
	for len(s.events) > 0 {
		if m := <-s.events; m.Event == wire.EventOutputMax {
			maxed++
		}
	}
	if maxed != 1 {
		t.Errorf("announced %d times", maxed)
	}
	if _, st := s.read("p2.stdout"); st.Total != 60000 || st.Lost != 20000 {
		t.Errorf("the second: %+v", st)
	}
	if _, st := s.read("p3.stdout"); st.Total != 2 || st.Lost != 2 || !st.EOF {
		t.Errorf("the third: %+v", st)
	}
	if m := s.connect().hello(testNonce); m.Hello == nil || !m.Hello.OutputMaxed {
		t.Errorf("hello: %+v", m.Hello)
	}
}

// A killed keeper's spools can be read, and its children learn of it.
func TestKeeperKilled(t *testing.T) {
	s := newSpools(t, 0)
	left := filepath.Join(scratch, "left")
	script := `trap '' PIPE; echo begun; while echo x 2>/dev/null; do sleep 0.01; done; echo "$?" >` + left // its beginning stays
	s.mustLaunch(spooled("p1", "sh", "-c", script))
	s.mustLaunch(spooled("p2", "sh", "-c", "while :; do echo y; done"))
	eventually(t, "output", func() bool { _, st := s.read("p2.stdout"); return st.Total > 1000 })
	eventually(t, "output", func() bool { _, st := s.read("p1.stdout"); return st.Total > 10 })
	s.cmd.Process.Kill()
	s.cmd.Wait()
	eventually(t, "an error of write", func() bool { _, err := os.Stat(left); return err == nil })
	eventually(t, "SIGPIPE", func() bool {
		b, err := os.ReadFile(filepath.Join(s.work, "p2", "cgroup.procs"))
		return err == nil && len(b) == 0
	})
	out, st := s.read("p1.stdout")
	if !strings.HasPrefix(out, "begun\nx\n") || st.Closed {
		t.Errorf("%.20q, %+v", out, st)
	}
}

func TestBadStreams(t *testing.T) {
	s := newSpools(t, 0)
	fds := s.keeperFDs()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := os.WriteFile(s.at+"/taken.stderr", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, kind string
		change     func(*wire.Launch)
	}{
		{"two", wire.ErrProtocol, func(l *wire.Launch) { l.Stdout = 0 }},
		{"two-err", wire.ErrProtocol, func(l *wire.Launch) { l.ErrToOut = true }},
		{"two-in", wire.ErrProtocol, func(l *wire.Launch) { l.Stdin, l.StdinPipe = 0, true }},
		{"no-tty", wire.ErrProtocol, func(l *wire.Launch) { l.TTYIn = true }},
		{"size", wire.ErrProtocol, func(l *wire.Launch) { l.PTY = &wire.WinSize{Rows: -1} }},
		{"negative", wire.ErrProtocol, func(l *wire.Launch) { l.SpoolErr = -1 }},
		{"small", wire.ErrStdio, func(l *wire.Launch) { l.SpoolErr = 1 }},
		{"taken", wire.ErrStdio, func(l *wire.Launch) { l.StdinPipe = true }},
		{"noexec", wire.ErrExec, func(l *wire.Launch) { l.StdinPipe, l.Argv = true, []string{"/no/such"} }},
		{"noexec-tty", wire.ErrExec, func(l *wire.Launch) {
			l.PTY, l.TTYIn, l.Argv = &wire.WinSize{}, true, []string{"/no/such"}
		}},
	} {
		l := spooled(tt.name, "true")
		tt.change(l)
		if a := s.launch(l, int(null.Fd())); a.Error == nil || a.Error.Kind != tt.kind {
			t.Errorf("%s: %+v", tt.name, a.Error)
		}
	}
	if list, _ := os.ReadDir(s.at); len(list) != 1 {
		t.Errorf("spools: %v", list)
	}
	eventually(t, "descriptors are as before", func() bool { return s.keeperFDs() == fds })
}
