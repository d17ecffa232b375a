package turns

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// ask sends a request on a connection of its own and reads no answer.
func (s *service) ask(t *testing.T, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", s.dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// Readers that never read, readers that vanish and writers that never finish
// delay nobody: not the process, not who reads, not the ending; and the service
// has nothing left of them.
func TestReadersThatDoNotRead(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		before := fds(t, s.proc.pid)
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "go")
		req := api.LaunchRequest{Argv: []string{"sh", "-c", `while [ ! -e "$0" ]; do sleep 0.01; done; seq 1500000; exit 5`, f[0]},
			Stdio: stdio(api.StdioPipe, api.StdioSpool, "")}
		req.Stdio.Stdout.MaxBytes = 64 << 20
		p := x.launch(req)
		get := fmt.Sprintf("GET /v1/turns/%s/processes/%s/output?follow=true HTTP/1.1\r\nHost: x\r\n", x.ID, p.ID)
		var stuck []net.Conn
		for _, accept := range []string{"", "Accept: " + api.NDJSON + "\r\n"} {
			for range 3 {
				stuck = append(stuck, s.ask(t, get+accept+"\r\n"))
			}
		}
		// More than a pipe takes, to a process that reads nothing.
		stuck = append(stuck, s.ask(t, fmt.Sprintf("POST /v1/turns/%s/processes/%s/stdin HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n%s",
			x.ID, p.ID, strings.Repeat("x", 50<<10))))
		good := make(chan int64)
		go func() { good <- count(t, x, p.ID) }()
		if err := os.WriteFile(f[0], nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 20 { // readers that go while there is much to send to them
			c := s.ask(t, get+"\r\n")
			if _, err := io.ReadFull(c, make([]byte, 4000)); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		v := x.ended(p.ID)
		if o := v.Output[api.StreamStdout]; v.Status.Code != 5 || o.BytesDropped != 0 {
			t.Errorf("%+v", v)
		}
		if n := <-good; n != v.Output[api.StreamStdout].BytesTotal || n < 10<<20 {
			t.Errorf("the reader that reads got %d bytes of %d", n, v.Output[api.StreamStdout].BytesTotal)
		}
		x.abandon(0) // while they are still there
		for _, c := range stuck {
			c.Close()
		}
		s.Close()
		eventually(t, "the service has as many descriptors as before", func() bool { return fds(t, s.proc.pid) <= before })
	})
}

// count follows a stream to its end and counts.
func count(t *testing.T, x *turn, process string) int64 {
	ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
	defer cancel()
	o, err := x.s.Output(ctx, x.ID, process, client.OutputQuery{Follow: true})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer o.Close()
	n, err := io.Copy(io.Discard, o)
	if err != nil {
		t.Error(err)
	}
	return n
}

// A process whose reader has gone gets what a pipe gives: SIGPIPE at its
// default. Neither its keeper nor the service is hit, and others write on.
func TestReaderOfAPassedPipeGoes(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{wrap: []string{"dirty"}}) // it has PIPE ignored itself
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "beat")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		pass := api.Stdio{Stdout: api.Stream{Mode: api.StdioPass}, Stderr: api.Stream{Mode: api.StdioPass}}
		p, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"yes"}, Stdio: pass}, w)
		if err != nil {
			t.Fatal(err)
		}
		other := helper(t, "beat", f[0])
		other.Stdio = pass
		if _, err := s.Launch(t.Context(), x.ID, other, w); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		r.Close()
		if v := x.ended(p.ID); v.Status.Signal != "SIGPIPE" {
			t.Errorf("%+v", v.Status)
		}
		heart(f[0]).beating(t)
		if v := x.look(); v.State != api.StateOpen || len(v.Degraded) > len(x.Degraded) {
			t.Errorf("%s %q", v.State, v.Degraded)
		}
		x.abandon(0)
		stopped(t, heart(f[0]))
	})
}

// What one process can put on the disk is bounded, also when it reads what it
// has written, and what is kept is not where it works.
func TestOutputThatFeedsOnItself(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	work := filepath.Dir(files(t, "x")[0])
	f := files(t, "path")
	const most = 256 << 10
	req := api.LaunchRequest{Argv: []string{"sh", "-c", `echo seed; while [ ! -s "$0" ]; do sleep 0.01; done; read -r kept <"$0"; echo; i=0
while [ $i -lt 200 ]; do cat "$kept"; i=$((i+1)); done; grep -R seed . ; echo grep $?; exit 5`, f[0]}, Cwd: work, Stdio: stdio("", api.StdioSpool, "")}
	req.Stdio.Stdout.MaxBytes = most
	p := x.launch(req)
	eventually(t, "its first words", func() bool { return strings.HasPrefix(x.keptOutput(p.ID, client.OutputQuery{}), "seed\n") })
	kept := ""
	for path := range everything(t, s.dir) {
		if filepath.Base(path) == p.ID+".stdout" {
			kept = path
		}
	}
	if kept == "" || strings.HasPrefix(kept, work) {
		t.Fatalf("the output is kept in %q", kept)
	}
	if fi, err := os.Stat(kept); err != nil || fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if err := os.WriteFile(f[0]+".new", []byte(kept+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f[0]+".new", f[0]); err != nil {
		t.Fatal(err)
	}
	v := x.ended(p.ID)
	o := v.Output[api.StreamStdout]
	if v.Status.Code != 5 || o.BytesTotal < 10*most || o.BytesDropped < 9*most {
		t.Errorf("%+v", v)
	}
	if text := x.keptOutput(p.ID, client.OutputQuery{Tail: new(int64(7))}); text != "grep 1\n" {
		t.Errorf("its last words: %q", text)
	}
	if out, err := run.kids.output(exec.Command("du", "-sk", filepath.Dir(kept))); err != nil || kilobytes(string(out)) > most>>10+200 {
		t.Errorf("on the disk: %s (%v)", out, err)
	}
	x.abandon(0)
}

// kilobytes is the number that du begins with.
func kilobytes(du string) (n int) {
	_, _ = fmt.Sscan(du, &n)
	return n
}

// An ending that gives time takes it, also when that is longer than a kill may
// take: who needs its grace to put its files in order is not cut short.
func TestGraceIsNotBounded(t *testing.T) {
	s := serve(t, grades(t)[0], options{args: []string{"--bound", "1s"}})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{GraceMS: new(patience(time.Minute).Milliseconds())})
	f := files(t, "up", "lock")
	p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", `echo >"$1"; trap 'sleep 2.5; rm "$1"; exit 5' TERM; echo >"$0"; while :; do sleep 0.05; done`, f[0], f[1]}})
	eventually(t, "it is up", func() bool { _, err := os.Stat(f[0]); return err == nil })
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Processes) != 1 || r.Processes[0].ID != p.ID || r.Processes[0].Status.Code != 5 || r.Processes[0].EndedBy == "kill" || !r.Complete {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(f[1]); err == nil {
		t.Error("its lock is still there")
	}
}
