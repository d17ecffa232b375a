package reaper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/wire"
)

func TestStdin(t *testing.T) {
	s := newSpools(t, 0)
	cat := func(process string, argv ...string) {
		l := spooled(process, argv...)
		l.StdinPipe = true
		s.mustLaunch(l)
	}
	cat("p1", "cat")
	for _, text := range []string{"one ", "", "two\n\x00\xff"} {
		if e := s.input("p1", text, false); e != nil {
			t.Fatal(e)
		}
	}
	s.textIs("p1.stdout", "one two\n\x00\xff")
	if e := s.input("p1", "end", true); e != nil {
		t.Fatal(e)
	}
	s.exitOf("p1")
	s.textIs("p1.stdout", "one two\n\x00\xffend")
	if e := s.input("p1", "more", false); e == nil || e.Kind != wire.ErrClosed {
		t.Errorf("input after its end: %+v", e)
	}
	cat("p2", "sh", "-c", "exec <&-; sleep 60")
	eventually(t, "nobody reads", func() bool {
		e := s.input("p2", "x", false)
		return e != nil && e.Kind == wire.ErrClosed
	})
	s.mustLaunch(spooled("p3", "sleep", "600"))
	if e := s.input("p3", "x", false); e == nil || e.Kind != wire.ErrClosed {
		t.Errorf("input without a pipe: %+v", e)
	}
	if e := s.input("p9", "x", false); e == nil || e.Kind != wire.ErrNotFound {
		t.Errorf("input to nobody: %+v", e)
	}
	if e := s.input("p3", strings.Repeat("x", 64<<10+1), false); e == nil || e.Kind != wire.ErrProtocol {
		t.Errorf("too much input: %+v", e)
	}
	s.end("p2")
	s.end("p3")
}

// A process that does not read holds up its writer, and nobody else; what was
// taken comes once it reads.
func TestStdinThatIsNotRead(t *testing.T) {
	s := newSpools(t, 0)
	gate := filepath.Join(s.dir, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	l := spooled("p1", "sh", "-c", "read x <"+gate+"; wc -c")
	l.StdinPipe = true
	s.mustLaunch(l)
	before := s.keeperMemory()
	block := strings.Repeat("x", 64<<10)
	taken := 0
	var due <-chan answer
	for due == nil {
		ch := s.ask(wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: "p1", Data: []byte(block)}})
		if out := s.hello(testNonce); out.Error != nil { // answered after it, if it is taken at once
			t.Fatal(out.Error)
		}
		select {
		case a := <-ch:
			if a.Error != nil {
				t.Fatal(a.Error)
			}
			taken++
		default:
			due = ch
		}
	}
	if taken != 2 { // one in the pipe, one in the keeper
		t.Errorf("%d blocks were taken", taken)
	}
	if now := s.keeperMemory(); now > before+2<<20 {
		t.Errorf("memory went from %d to %d", before, now)
	}
	s.mustLaunch(spooled("p2", "echo", "x"))
	s.exitOf("p2")
	// One that goes away while it waits is not heard, and is in nobody's way; one that
	// waits on is heard.
	for range 20 {
		c := s.connect()
		c.hello(testNonce)
		c.ask(wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: "p1", Data: []byte(block)}})
		c.hello(testNonce)
		c.conn.Close()
		eventually(t, "the connection is closed", func() bool {
			a := s.hello(testNonce)
			return a.Error == nil && s.connections() == 1
		})
	}
	one := s.ask(wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: "p1", Data: []byte("1")}})
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if a := s.await(wire.Message{Op: wire.OpInput}, due); a.Error != nil {
		t.Fatal(a.Error)
	}
	if a := s.await(wire.Message{Op: wire.OpInput}, one); a.Error != nil {
		t.Fatal(a.Error)
	}
	if e := s.input("p1", "last", true); e != nil {
		t.Fatal(e)
	}
	s.exitOf("p1")
	s.textIs("p1.stdout", fmt.Sprintln((taken+1)*len(block)+5))
}

// The end of a reader is told to who waits.
func TestReaderOfStdinEnds(t *testing.T) {
	s := newSpools(t, 0)
	l := spooled("p1", "sleep", "600")
	l.StdinPipe = true
	s.mustLaunch(l)
	block := strings.Repeat("x", 64<<10)
	var last <-chan answer
	for range 3 {
		last = s.ask(wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: "p1", Data: []byte(block)}})
	}
	time.Sleep(20 * time.Millisecond)
	s.hello(testNonce)
	fds := s.keeperFDs()
	s.end("p1")
	if a := s.await(wire.Message{Op: wire.OpInput}, last); a.Error == nil || a.Error.Kind != wire.ErrClosed {
		t.Errorf("%+v", a.Error)
	}
	eventually(t, "all is closed", func() bool { return s.keeperFDs() == fds-6 }) // stdin, two outputs with their files, handle
}

func TestTerminal(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(onTerminal("p1", "sh", "-c", `stty size; stty -echo; test -t 0 -a -t 1 -a -t 2 && echo yes
		tty | sed 's/[0-9].*//'; ps -o pid= -o tpgid= -p $$ | { read a b; test $a = $b && echo foreground; }; ls -l /proc/self/fd | wc -l
		trap 'stty size' WINCH; trap 'echo int' INT; trap 'echo quit' QUIT; echo ready
		while test "$x" != bye; do read x && echo "<$x>"; done; cat; echo end`)) // a trap may end a read
	text := "24 80\r\nyes\r\n/dev/pts/\r\nforeground\r\n5\r\nready\r\n" // 0-2, ls's own, and a line "total"
	s.textIs("p1.stdout", text)
	size := wire.Message{Op: wire.OpResize, Resize: &wire.Resize{Process: "p1", Size: wire.WinSize{Rows: 50, Cols: 132}}}
	if m := s.call(size); m.Error != nil {
		t.Fatal(m.Error)
	}
	eventually(t, "the resize and the line", func() bool {
		s.input("p1", "ä b\n", false)
		out, _ := s.read("p1.stdout")
		return strings.Contains(out, "50 132\r\n") && strings.Contains(out, "<ä b>\r\n")
	})
	for sig, word := range map[syscall.Signal]string{syscall.SIGINT: "int", syscall.SIGQUIT: "quit"} {
		m := wire.Message{Op: wire.OpSignal, Signal: &wire.Signal{Process: "p1", Number: int(sig), Foreground: true}}
		if a := s.call(m); a.Error != nil {
			t.Fatal(a.Error)
		}
		eventually(t, word, func() bool {
			s.input("p1", "\n", false)
			out, _ := s.read("p1.stdout")
			return strings.Contains(out, word+"\r\n")
		})
	}
	if e := s.input("p1", "bye\nto cat\n", false); e != nil {
		t.Fatal(e)
	}
	eventually(t, "cat reads", func() bool {
		out, _ := s.read("p1.stdout")
		return strings.HasSuffix(out, "<bye>\r\nto cat\r\n")
	})
	if e := s.input("p1", "", true); e != nil {
		t.Fatal(e)
	}
	s.exitOf("p1")
	if out, st := s.read("p1.stdout"); !strings.HasSuffix(out, "end\r\n") || !st.EOF {
		t.Errorf("%q, %+v", out, st)
	}
	for _, m := range []wire.Message{size, {Op: wire.OpCloseTTY, Input: &wire.Input{Process: "p1"}}} {
		if a := s.call(m); a.Error == nil || a.Error.Kind != wire.ErrNotTerminal {
			t.Errorf("%s after the end: %+v", m.Op, a.Error)
		}
	}
}

// Only some streams are the terminal, and a user owns it.
func TestTerminalBesidesOtherStreams(t *testing.T) {
	s := newSpools(t, 0)
	l := onTerminal("p1", "sh", "-c", `cat; test -t 0 || echo no; test -t 2 || echo err >&2; stat -c '%u %a' $(readlink /proc/$$/fd/1); echo hi >/dev/tty; id -u`)
	l.TTYIn, l.TTYErr, l.StdinPipe, l.SpoolErr = false, false, true, spoolSize
	l.SetUser, l.UID, l.GID = true, 1234, 1234
	s.mustLaunch(l)
	if e := s.input("p1", "in\n", true); e != nil {
		t.Fatal(e)
	}
	s.exitOf("p1")
	if out, st := s.read("p1.stdout"); out != "in\r\nno\r\n1234 620\r\nhi\r\n1234\r\n" || !st.EOF {
		t.Errorf("%q, %+v", out, st)
	}
	if out, st := s.read("p1.stderr"); out != "err\n" || !st.EOF {
		t.Errorf("%q, %+v", out, st)
	}
}

// A terminal that nobody has open for a while is not lost, and wakes nobody.
func TestTerminalOpenedAgain(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(onTerminal("p1", "sh", "-c", "echo one; exec <&- >&- 2>&-; sleep 0.5; echo two >/dev/tty; sleep 0.5; echo three >/dev/tty; sleep 0.2"))
	eventually(t, "its first line", func() bool { out, _ := s.read("p1.stdout"); return strings.HasPrefix(out, "one\r\n") })
	before := s.keeperTicks()
	s.exitOf("p1")
	if out, st := s.read("p1.stdout"); out != "one\r\ntwo\r\nthree\r\n" || !st.EOF {
		t.Errorf("%q, %+v", out, st)
	}
	if took := s.keeperTicks() - before; took > 30 {
		t.Errorf("%d ticks of processor time", took)
	}
}

// Closing a terminal does not wait for who ignores the hangup.
func TestCloseTerminal(t *testing.T) {
	s := newSpools(t, 0)
	s.mustLaunch(onTerminal("p1", "sh", "-c", "trap '' HUP; (setsid sleep 60) & echo out; sleep 60"))
	s.mustLaunch(onTerminal("p2", "sleep", "600"))
	s.textIs("p1.stdout", "out\r\n")
	for _, p := range []string{"p1", "p2"} {
		if a := s.call(wire.Message{Op: wire.OpCloseTTY, Input: &wire.Input{Process: p}}); a.Error != nil {
			t.Fatal(a.Error)
		}
	}
	if e := s.exitOf("p2"); e.Signal != int(syscall.SIGHUP) {
		t.Errorf("%+v", e)
	}
	if out, st := s.read("p1.stdout"); out != "out\r\n" || !st.Closed {
		t.Errorf("%q, %+v", out, st)
	}
	if e := s.input("p1", "x", false); e == nil || e.Kind != wire.ErrClosed {
		t.Errorf("input after the hangup: %+v", e)
	}
	s.end("p1")
}
