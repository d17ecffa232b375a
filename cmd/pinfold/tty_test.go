package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// Keys go inside as bytes: ^C and ^Z are the inner terminal's.
func TestTTYKeys(t *testing.T) {
	b := newBed(t)
	p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", `trap 'echo "int"; exit 42' INT; tty; stty size; echo ready; while :; do sleep 0.05; done`)
	p.sees(`/dev/pts/\d+\r\n24 80\r\nready`)
	if s := p.state(); s == p.was {
		t.Error("the terminal is not raw")
	}
	p.types("\x03")
	p.sees("int")
	p.ends(42)

	p = b.sit("pinfold", "run", "-t", "--", "bash", "--norc", "-i")
	p.sees(`\$ $`)
	p.types("sh -c 'echo $$ >pid; exec sleep 1000'\r")
	pid := b.word("pid") // it runs, and has the terminal: before that, keys are the shell's
	p.types("\x1a")
	p.sees(`Stopped +sh -c`)
	p.types("jobs\r")
	p.sees(`\[1\]\+ +Stopped`)
	p.types("fg\r")
	p.sees("fg\r\nsh -c [^\n]*\r\n")
	p.hasTerminal(pid)
	p.types("\x03")
	p.sees(`\$ $`)
	p.types("echo $?\r")
	p.sees("\r\n130\r\n")
	p.types("\x04") // ^D
	p.sees("exit")
	p.ends(0)
}

func TestTTYResize(t *testing.T) {
	b := newBed(t)
	p := b.sit("pinfold", "run", "-t", "--", "bash", "-c", `trap 'echo told' WINCH; trap 'exit 130' INT; echo ready; while :; do stty size; sleep 0.05; done`)
	p.sees("ready")
	if err := pty.Setsize(p.tty, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	p.sees("told") // only of the first: bash forgets a signal that comes while it runs the same one's trap
	for _, size := range []pty.Winsize{{Rows: 40, Cols: 132}, {Rows: 5, Cols: 20}, {Rows: 50, Cols: 200}} {
		if err := pty.Setsize(p.tty, &size); err != nil {
			t.Fatal(err)
		}
		p.sees(fmt.Sprintf("%d %d\r\n", size.Rows, size.Cols))
	}
	p.types("\x03") // without a trap, bash leaves it to the command that runs, which may have ended just then
	p.ends(130)
}

// The terminal is as it was whatever ends the command, or us.
func TestTTYIsRestored(t *testing.T) {
	b := newBed(t)
	for script, want := range map[string]int{"exit 3": 3, "kill -KILL $$": 137, "exec no-such-program": 127} {
		p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", script)
		p.ends(want)
	}
	p := b.sit("pinfold", "run", "-t", "--", "no-such-program")
	p.ends(127)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", "echo ready; exec sleep 1000")
		p.sees("ready")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		p.ends(128 + int(sig))
	}
	for _, sig := range []syscall.Signal{syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGSYS} {
		p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", "echo ready; exec sleep 1000")
		p.sees("ready")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		p.ends(2) // Go's way of dying, with a dump
	}
	// A descendant holds the terminal: the end is not awaited with it.
	p = b.sit("pinfold", "run", "-t", "--leftovers", "reap", "--", "sh", "-c", "trap '' HUP; setsid sleep 1000 & echo done; exit 6")
	p.sees("done")
	p.ends(6)
	p = b.sit("panicky")
	p.sees("raw")
	if s := p.state(); s == p.was {
		t.Error("the terminal is not raw")
	}
	p.types("x")
	p.sees("panic: on purpose")
	p.ends(2)
}

func TestTTYIsRestoredWhenTheServiceGoes(t *testing.T) {
	b := newBed(t)
	p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", "echo ready; exec sleep 1000")
	p.sees("ready")
	if err := b.s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-b.s.gone
	defer b.serve()
	p.ends(125)
	p.sees("pinfold: the service went away and has not come back")
}

// Every byte goes through, in both directions, once the inner terminal is raw.
func TestTTYBytes(t *testing.T) {
	b := newBed(t, "od")
	p := b.sit("pinfold", "run", "-t", "--", "sh", "-c", `stty raw -echo; printf ready; head -c 512 >got; od -An -v -tx1 got | tr -d ' \n'; printf end; cat got`)
	p.sees("ready$")
	all := make([]byte, 512)
	for i := range all {
		all[i] = byte(i)
	}
	p.types(string(all))
	p.sees(hex.EncodeToString(all) + "end")
	p.ends(0)
	if got := p.screen()[p.seen:]; got != string(all) {
		t.Errorf("%d bytes came back: %q", len(got), got)
	}
}

// A command that is over at once loses nothing.
func TestTTYFastCommands(t *testing.T) {
	b := newBed(t)
	const n = 200
	p := b.sit("bash", "-c", fmt.Sprintf(`for i in {1..%d}; do pinfold run -t --turn %s -- echo "x$i" || exit 1; done; echo all`, n, b.out("pinfold", "begin")))
	p.sees("all\r\n")
	p.ends(0)
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "x%d\r\n", i+1)
	}
	if got := p.out.String(); got != want.String()+"all\r\n" {
		t.Errorf("%d bytes, not %d: %q", len(got), want.Len()+5, got)
	}
}

// At a shell with job control: ^Z stops run and the command, fg goes on with
// both; -t stops only itself, and has a raw terminal again after fg.
func TestStopAndGoOn(t *testing.T) {
	b := newBed(t)
	p := b.sit("bash", "--norc", "-i")
	p.sees(`\$ $`)
	p.types("pinfold run -- bash -c 'trap \"echo got tstp\" TSTP; trap \"exit 130\" INT; echo $$ >pid; for ((i = 0; ; i++)); do echo $i >beat; sleep 0.05; done'\r")
	pid := b.word("pid")
	before := p.seen
	p.types("\x1a")
	p.sees(`\[1\]\+ +Stopped +pinfold run`)
	for end := time.Now().Add(2 * time.Minute); statOf(t, pid)[0] != "T"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the command is in state %s", statOf(t, pid)[0])
		}
	}
	p.types("fg\r")
	p.sees("fg\r\npinfold run [^\n]*\r\n")
	after := p.seen
	p.seen = before
	p.sees("got tstp\r\n") // before it is stopped, or after: when bash comes to it
	p.seen = max(p.seen, after)
	beat := b.word("beat")
	for b.word("beat") == beat {
	}
	p.types("\x03")
	p.sees(`\$ $`)
	p.types("echo st=$?\r")
	p.sees("st=130\r\n")

	p.types("pinfold run -t -- sh -c 'stty -echo; echo $$ >pid2; while read x; do echo \"<$x>\"; done; exit 9'\r")
	b.word("pid2")
	p.types("one\r")
	p.sees("<one>")
	jobs := b.out("pgrep", "-n", "-P", fmt.Sprint(p.cmd.Process.Pid), "-f", "pinfold run -t -- sh -c stty")
	b.out("kill", "-TSTP", jobs)
	p.sees(`\[1\]\+ +Stopped +pinfold run -t`)
	p.types("stty -a | grep -o '.icanon'\r")
	p.sees(" icanon\r\n")
	p.types("fg\r")
	p.sees("fg\r\n.*pinfold run -t[^\n]*\n")
	p.types("two\r")
	p.sees("<two>")
	p.types("\x04")
	p.sees(`\$ $`)
	p.types("echo st=$?\r")
	p.sees("st=9\r\n")
	p.types("exit\r")
	p.ends(0)
}

func TestKeys(t *testing.T) {
	want := []byte{16, 17}
	for in, out := range map[string]string{"abc": "abc", "\x10": "", "\x10a": "\x10a", "\x10\x10a": "\x10\x10a", "a\x10\x11b": "a!", "\x10\x10\x11": "\x10!"} {
		for _, size := range []int{1, 2, 100} {
			k, got := keys{want: want}, ""
			for rest := []byte(in); len(rest) > 0; {
				n := min(size, len(rest))
				b, found := k.find(rest[:n])
				got += string(b)
				if rest = rest[n:]; found {
					got += "!"
					break
				}
			}
			if got != out {
				t.Errorf("%q by %d: %q, not %q", in, size, got, out)
			}
		}
	}
	k := keys{want: []byte("aab")}
	if out, found := k.find([]byte("aaab")); !found || string(out) != "a" {
		t.Errorf("%q %v", out, found)
	}
	if b, err := parseKeys("ctrl-P,q,ctrl-["); err != nil || !bytes.Equal(b, []byte{16, 'q', 27}) {
		t.Errorf("%v %v", b, err)
	}
	for _, bad := range []string{"ctrl-", "ab", "ctrl-p,", "ctrl-1"} {
		if b, err := parseKeys(bad); err == nil {
			t.Errorf("%s: %v", bad, b)
		}
	}
}

// Two people at one terminal: both see all, the keys leave, and it goes on.
func TestAttach(t *testing.T) {
	b := newBed(t)
	id := strings.Fields(b.out("pinfold", "run", "-t", "-d", "--", "bash", "-c",
		`stty -echo; trap 'stty size' WINCH; while :; do
		if read -r -t 0.2 x; then x=$l$x; l=; echo "<$x>"; [ "$x" = end ] && exit 7; else l+=$x; fi; done`)) // time may be up within a line
	one := b.sit("pinfold", "attach", id[0], id[1])
	one.types("here\r")
	one.sees("<here>\r\n")
	two := b.sit("pinfold", "attach", id[0], id[1])
	two.types("too\r")
	two.sees("<too>\r\n")
	one.types("a\r")
	one.sees("<a>\r\n")
	two.sees("<a>\r\n")
	two.types("b\x10c\r") // half of the keys is typed
	one.sees("<b\x10c>\r\n")
	if err := pty.Setsize(two.tty, &pty.Winsize{Rows: 30, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	one.sees("30 99\r\n")
	two.types("\x10\x11")
	two.sees("pinfold: left; again: pinfold attach " + id[0] + " " + id[1])
	two.ends(0)
	if err := two.cmd.Process.Signal(syscall.Signal(0)); err == nil {
		t.Error("it is still there")
	}
	three := b.sit("pinfold", "attach", "--no-stdin", "--tail", "1", id[0], id[1])
	three.sees("30 99\r+\n") // our own terminal is not raw then
	if err := three.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	three.ends(143)
	one.types("end\r")
	one.sees("<end>")
	one.ends(7)
}

// The service is killed and comes back: the terminal goes on, and nothing that
// was written meanwhile is lost.
func TestTTYOutlivesTheService(t *testing.T) {
	b := newBed(t)
	p := b.sit("pinfold", "run", "-t", "--", "bash", "-c", `stty -echo; echo ready; for ((i = 0; i < 40; i++)); do echo "n$i"; sleep 0.05; done; read -r x; echo "<$x>"; exit 5`)
	p.sees("n3\r\n")
	if err := b.s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-b.s.gone
	b.serve()
	p.sees("n39\r\n")
	p.types("still there\r")
	p.sees("<still there>\r\n")
	p.ends(5)
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "n%d\r\n", i)
	}
	if got := p.out.String(); got != "ready\r\n"+want.String()+"<still there>\r\n" {
		t.Errorf("the screen: %q", got)
	}
}
