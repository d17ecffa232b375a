package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"pinfold.dev/client"
)

// bed is a service of one test, and what a person has beside it: a terminal.
type bed struct {
	*client.Client
	place
	t     *testing.T
	env   []string
	s     *service
	serve func() // starts the service, again
}

func newBed(t *testing.T, features ...string) *bed {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: tests that need no service only")
	}
	if f := lacks(append([]string{"holder", "cgroup2", "bash"}, features...)...); f != "" {
		t.Skip("this host has no " + f)
	}
	dir, err := os.MkdirTemp("", "pinfold-bed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := newPlace(t.Name(), dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := dir + "/sock"
	b := &bed{Client: &client.Client{Socket: socket}, place: p, t: t, s: &service{},
		env: append(managerEnv(), "PINFOLD_SOCKET="+socket, "PATH="+p.path(), "HOME="+dir, "SHELL=/bin/sh", "TERM=dumb", "LC_ALL=C.UTF-8", "PS1=$ ")}
	b.serve = func() {
		if err := b.s.start(p, b.env); err != nil {
			t.Error(err)
		}
		if err := b.s.ready(socket); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		for _, rel := range b.s.clean(socket, p) {
			t.Errorf("cgroup left behind: %s", rel)
		}
		if t.Failed() {
			t.Logf("service log:\n%s", b.s.log)
		}
	})
	b.serve()
	return b
}

// command is one that the user types.
func (b *bed) command(words ...string) *exec.Cmd {
	b.t.Helper()
	c := exec.Command(words[0], words[1:]...)
	c.Env, c.Dir = b.env, b.dir
	done, err := b.runAs(c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(done)
	return c
}

// out is what a command prints, which must exit with 0.
func (b *bed) out(words ...string) string {
	b.t.Helper()
	c := b.command(words...)
	c.Stderr = os.Stderr
	o, err := c.Output()
	if err != nil {
		b.t.Fatalf("%q: %v", words, err)
	}
	return strings.TrimSpace(string(o))
}

// lines are the words that a file comes to have.
func (b *bed) word(file string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, file)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(s), "\n") {
			return strings.TrimSpace(string(s))
		}
	}
	b.t.Fatalf("%s has nothing after two minutes", file)
	return ""
}

// person is somebody at a real pseudo-terminal, which a command of theirs has as
// its controlling terminal.
type person struct {
	t    *testing.T
	tty  *os.File // the master
	cmd  *exec.Cmd
	out  *syncBuffer
	seen int
	was  term.State
	gone chan struct{}
	all  chan struct{} // closed when nothing more can come to the screen
}

// sit starts a command on a terminal of 24 rows of 80 columns.
func (b *bed) sit(words ...string) *person {
	b.t.Helper()
	m, s, err := pty.Open()
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	p := &person{t: b.t, tty: m, cmd: b.command(words...), out: &syncBuffer{}, gone: make(chan struct{}), all: make(chan struct{})}
	if err := pty.Setsize(m, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		b.t.Fatal(err)
	}
	if b.changes() { // as whoever opens a session does
		if err := s.Chown(b.uid, -1); err != nil {
			b.t.Fatal(err)
		}
	}
	p.was = p.state()
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = s, s, s
	p.cmd.SysProcAttr.Setsid, p.cmd.SysProcAttr.Setctty = true, true
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() { defer close(p.all); _, _ = io.Copy(p.out, m) }()
	go func() { defer close(p.gone); _ = p.cmd.Wait() }()
	b.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.gone
		m.Close()
	})
	return p
}

// state is how the terminal is set.
func (p *person) state() term.State {
	p.t.Helper()
	s, err := term.GetState(int(p.tty.Fd()))
	if err != nil {
		p.t.Fatal(err)
	}
	return *s
}

func (p *person) types(s string) {
	p.t.Helper()
	if _, err := p.tty.WriteString(s); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits for text after what was seen before, and returns what matched.
func (p *person) sees(pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		all := p.out.String()
		if at := re.FindStringIndex(all[p.seen:]); at != nil {
			m := all[p.seen+at[0] : p.seen+at[1]]
			p.seen += at[1]
			return m
		}
	}
	p.t.Fatalf("no %q within three minutes; the screen since then: %q", pattern, p.out.String()[p.seen:])
	return ""
}

// hasTerminal waits until a process goes on with the terminal: fg names a job before
// it gives it that.
func (p *person) hasTerminal(pid string) {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		st := statOf(p.t, pid) // the group in the foreground is its own, and it is not stopped
		if st[5] == st[2] && st[0] != "T" {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("it does not have the terminal: %v", st[:6])
		}
	}
}

// screen is all that came to it, of commands that have all ended.
func (p *person) screen() string {
	p.t.Helper()
	select {
	case <-p.all:
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("somebody still has the terminal; the screen: %q", p.out.String())
	}
	return p.out.String()
}

// ends waits for the command's end, which must be with this status, and the
// terminal as it was.
func (p *person) ends(want int) {
	p.t.Helper()
	select {
	case <-p.gone:
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("it has not ended; the screen: %q", p.out.String())
	}
	ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	got := ws.ExitStatus()
	if ws.Signaled() {
		got = 128 + int(ws.Signal())
	}
	if got != want {
		p.t.Errorf("exit status %d, not %d; the screen: %q", got, want, p.out.String())
	}
	p.isAsItWas()
}

func (p *person) isAsItWas() {
	p.t.Helper()
	if s := p.state(); s != p.was {
		p.t.Errorf("the terminal is set %+v, was %+v", s, p.was)
	}
}

// panicky is a program that panics beside a raw terminal.
func panicky() {
	t := stdinTerminal()
	if err := t.raw(); err != nil || !t.isRaw() {
		fmt.Println("not raw:", err)
		os.Exit(3)
	}
	fmt.Print("raw\r\n")
	done := make(chan struct{})
	go func() {
		defer t.guard()
		_, _ = os.Stdin.Read(make([]byte, 1))
		panic("on purpose")
	}()
	<-done
}
