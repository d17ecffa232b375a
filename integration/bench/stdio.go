package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// line is what a program is given to read.
const line = "a line of input, as a tool that is called might get\n"

// stdioMode is one set-up of a process's streams, made by us and by os/exec.
type stdioMode struct {
	name, peer   string
	ours, theirs func() error
}

// launchStdio compares one launch into an open turn, from the request until the
// exit is seen and the streams are read or written, with os/exec and the like
// streams.
func (b *bench) launchStdio(rounds int) error {
	exit, err := b.programs.exit()
	if err != nil {
		return err
	}
	drink, err := b.programs.drink()
	if err != nil {
		return err
	}
	turn, err := b.service.begin()
	if err != nil {
		return err
	}
	file := filepath.Join(b.place.dir, "kept")
	modes := []stdioMode{
		{"null", "os/exec, /dev/null",
			func() error { return b.service.runOne(turn, exit) }, func() error { return exec.Command(exit).Run() }},
		{"pass, a pipe", "os/exec, the same pipe",
			func() error { return b.service.runPassing(turn, exit) }, func() error { return execPassing(exit) }},
		{"spool", "os/exec, a pipe copied to a new file",
			func() error { return b.service.runKept(turn, exit, api.StdioSpool) }, func() error { return execKept(exit, file) }},
		{"pty", "os/exec, a terminal copied to a new file",
			func() error { return b.service.runKept(turn, exit, api.StdioPTY) }, func() error { return execTerminal(exit, file) }},
		{"stdin data, read", "os/exec, stdin from memory",
			func() error { return b.service.runFed(turn, drink) }, func() error { return execFed(drink) }},
		{"stdin pipe, written, closed", "os/exec, the same with StdinPipe",
			func() error { return b.service.runWritten(turn, drink) }, func() error { return execWritten(drink) }},
	}
	for _, m := range modes {
		got, err := compare(rounds,
			contestant{"pinfold", func() (time.Duration, error) { return since(m.ours) }},
			contestant{"os/exec", func() (time.Duration, error) { return since(m.theirs) }},
		)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		b.add(against("launch, streams (grade "+string(b.service.grade)+")", m.name, got[0], got[1], m.peer, budget{}))
	}
	_, err = b.service.abandon(turn)
	return err
}

// runPassing hands a pipe over, as stdout and stderr, and reads it to its end.
func (s *service) runPassing(turn, program string) error {
	return reading(func(w *os.File) (func() error, error) {
		pass := api.Stream{Mode: api.StdioPass}
		req := api.LaunchRequest{Argv: []string{program}, Cwd: "/", Stdio: api.Stdio{Stdout: pass, Stderr: pass}}
		return func() error { return nil }, s.runs(turn, req, w)
	})
}

func execPassing(program string) error {
	return reading(func(w *os.File) (func() error, error) {
		cmd := exec.Command(program)
		cmd.Stdout, cmd.Stderr = w, w
		return cmd.Wait, cmd.Start()
	})
}

// reading reads what a program writes to a pipe.
func reading(start func(w *os.File) (wait func() error, err error)) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	wait, err := start(w)
	w.Close()
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, wait())
}

// runKept has what the program writes kept; on a terminal it reads from there,
// too.
func (s *service) runKept(turn, program string, mode api.StdioMode) error {
	req := api.LaunchRequest{Argv: []string{program}, Cwd: "/"}
	req.Stdio.Stdout.Mode, req.Stdio.Stderr.Mode = mode, api.StdioStdout
	if mode == api.StdioPTY {
		req.Stdio.Stdin.Mode, req.Stdio.Stderr.Mode = mode, mode
	}
	return s.runs(turn, req)
}

func execKept(program, file string) error {
	return keeping(file, func(f *os.File) error {
		cmd := exec.Command(program)
		cmd.Stdout = struct{ io.Writer }{f} // not the file itself: through a pipe
		cmd.Stderr = cmd.Stdout
		return cmd.Run()
	})
}

// keeping makes a file for output, which it removes again.
func keeping(file string, do func(f *os.File) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close(), os.Remove(file))
}

func execTerminal(program, file string) error {
	master, slave, err := sys.OpenTerminal()
	if err != nil {
		return err
	}
	m, sl := os.NewFile(uintptr(master), "master"), os.NewFile(uintptr(slave), "slave")
	defer m.Close()
	defer sl.Close()
	if err := sys.SetWinSize(master, 24, 80); err != nil {
		return err
	}
	return keeping(file, func(f *os.File) error {
		cmd := exec.Command(program)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = sl, sl, sl
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		sl.Close()
		if _, err := io.Copy(f, m); err != nil && !errors.Is(err, syscall.EIO) {
			return err
		}
		return cmd.Wait()
	})
}

// runFed sends the input along.
func (s *service) runFed(turn, program string) error {
	req := api.LaunchRequest{Argv: []string{program}, Cwd: "/"}
	req.Stdio.Stdin = api.Stream{Mode: api.StdioData, Data: []byte(line)}
	return s.runs(turn, req)
}

func execFed(program string) error {
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader([]byte(line))
	return cmd.Run()
}

// runWritten launches, writes and closes: three requests.
func (s *service) runWritten(turn, program string) error {
	ctx := context.Background()
	req := api.LaunchRequest{Argv: []string{program}, Cwd: "/"}
	req.Stdio.Stdin.Mode = api.StdioPipe
	p, err := s.client.Launch(ctx, turn, req)
	if err != nil {
		return err
	}
	if _, err := s.client.WriteStdin(ctx, turn, p.ID, strings.NewReader(line), true); err != nil {
		return err
	}
	p, err = s.client.WaitProcess(ctx, turn, p.ID)
	return well(p, err)
}

func execWritten(program string) error {
	cmd := exec.Command(program)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = io.WriteString(in, line)
	return errors.Join(err, in.Close(), cmd.Wait())
}
