package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// terminal is our own terminal, while what is typed is another's: raw, and as
// it was on every way out. Where standard input is no terminal, it does nothing.
type terminal struct {
	fd   int
	real bool // there is one

	once sync.Once
	mu   sync.Mutex
	was  *term.State // nil: it is as it was
	gone bool        // left for good
}

func stdinTerminal() *terminal {
	fd := int(os.Stdin.Fd())
	return &terminal{fd: fd, real: term.IsTerminal(fd)}
}

// raw hands every byte on as it is typed, also when a shell that had stopped us
// has changed the terminal since. In the background it stops us, as everything
// does there that wants the terminal.
func (t *terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.real || t.gone {
		return nil
	}
	t.once.Do(t.fall)
	was, err := term.MakeRaw(t.fd)
	if err != nil {
		return os.NewSyscallError("make the terminal raw", err)
	}
	if t.was == nil {
		t.was = was
	}
	return nil
}

// restore makes it as it was, and tells whether it was raw. When it is another's
// by now, which happens when a shell has stopped us, it is left to that.
func (t *terminal) restore() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.was
	if was == nil {
		return false
	}
	t.was = nil
	if fg, err := sys.Foreground(t.fd); err != nil || fg == syscall.Getpgrp() {
		_ = term.Restore(t.fd, was)
	}
	return true
}

func (t *terminal) isRaw() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.was != nil
}

// leave is restore for good: where we are in the background by now, it does not
// stop us.
func (t *terminal) leave() {
	signal.Ignore(syscall.SIGTTOU)
	t.restore()
	t.mu.Lock()
	t.gone = true
	t.mu.Unlock()
}

// fall restores it when a signal comes that Go's runtime would end us by, with
// a dump, and then dies of that.
func (t *terminal) fall() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGSEGV, syscall.SIGSYS, syscall.SIGTRAP)
	go func() {
		sig := <-ch
		t.leave()
		signal.Reset(sig)
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			_ = p.Signal(sig)
		}
	}()
}

// guard is deferred by whatever runs beside a raw terminal: a panic is told on
// one that can be read.
func (t *terminal) guard() {
	if r := recover(); r != nil {
		t.leave()
		panic(r)
	}
}

// eol ends a line of ours: a raw terminal does not go back to the first column.
func (t *terminal) eol() string {
	if t.isRaw() {
		return "\r\n"
	}
	return "\n"
}

// size is that of the terminal that we have on one of our streams; nil: none.
func (t *terminal) size() *api.WinSize {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		cols, rows, err := term.GetSize(int(f.Fd()))
		if err == nil && cols > 0 && rows > 0 {
			return &api.WinSize{Rows: rows, Cols: cols}
		}
	}
	return nil
}
