//go:build linux

package hold

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
	"pinfold.dev/pidfd"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A keeper that ends before it has begun was never had, so it is not lost: the turn
// does not begin, and that says it all. So it is with each grade that a self-test
// tries in vain.
func TestKeeperThatNeverBegan(t *testing.T) {
	s := begin(t)
	var log logged
	s.host.log = slog.New(slog.NewTextHandler(&log, nil))
	script := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 0.1\necho not here >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.host.cfg.Init = script
	var lost atomic.Int64
	hooks := containment.Hooks{Save: func(containment.Facts) error { return nil }, Exit: func(containment.Exit) {},
		KeeperLost: func(string) { lost.Add(1) }}
	for i := range 5 {
		x, err := s.host.beginAt(t.Context(), containment.Spec{Turn: selfTestID()}, hooks, []api.Grade{s.host.Grade(), api.GradeSubreaper}[i%2], nil)
		if err == nil || !strings.Contains(err.Error(), "it said: not here") {
			t.Errorf("%v, %v", x, err)
		}
	}
	time.Sleep(500 * time.Millisecond) // for whoever would still be at it
	if said := log.String(); lost.Load() > 0 || strings.Contains(said, "lost") {
		t.Errorf("lost %d times: %s", lost.Load(), said)
	}
	s.endTurn()
}

// A connection that breaks is no keeper that is gone: as long as that lives it is
// greeted again, also when it cannot be reached for a while. What ended meanwhile is
// told, and the turn goes on.
func TestConnectionThatBreaks(t *testing.T) {
	s := begin(t)
	sock := filepath.Join(s.hold.facts.Dir, "keeper.sock")
	st := s.start("p1", "sleep", "1000")
	if err := os.Rename(sock, sock+".away"); err != nil {
		t.Fatal(err)
	}
	for range 17 { // it lets go of the oldest, ours, when there are too many
		c, err := net.Dial("unix", sock+".away")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	systest.Until(t, "the end of the connection", func() bool { s.hold.mu.Lock(); defer s.hold.mu.Unlock(); return s.link == nil })
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil { // our own sleeper, which nobody has reaped
		t.Fatal(err)
	}
	systest.Until(t, "that it is given up for now", s.unreached.Load)
	_, err := s.Launch(t.Context(), containment.Launch{Process: "p2", Argv: []string{"true"}, Env: os.Environ(), Cwd: "/",
		Stdio: api.Stdio{Stdin: null, Stdout: null, Stderr: null}}, nil)
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a launch meanwhile: %v", err)
	}
	if err := os.Rename(sock+".away", sock); err != nil {
		t.Fatal(err)
	}
	if e := s.exit("p1"); e.State != api.ProcessSignaled {
		t.Errorf("%+v", e)
	}
	systest.Until(t, "that it is reached", func() bool { return !s.unreached.Load() })
	s.start("p3", "true")
	s.exit("p3")
	s.mu.Lock()
	if s.lost != "" {
		t.Errorf("a keeper that lives is lost: %s", s.lost)
	}
	s.mu.Unlock()
	s.endTurn()
}

// One that dies while it cannot be reached is lost, and its journal is read, whoever
// sees it first.
func TestKeeperThatDiesUnreached(t *testing.T) {
	s := begin(t)
	sock := filepath.Join(s.hold.facts.Dir, "keeper.sock")
	if err := os.Rename(sock, sock+".away"); err != nil {
		t.Fatal(err)
	}
	for range 17 {
		c, err := net.Dial("unix", sock+".away")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	systest.Until(t, "that it is given up for now", s.unreached.Load)
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "that it is lost", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.lost != "" })
	s.endTurn()
}

// An answer that comes just as nobody waits any more is either the caller's or an
// event: a launch that nobody hears of would run all the same.
func TestAnswerAtTheEnd(t *testing.T) {
	const calls = 3000
	path := filepath.Join(t.TempDir(), "sock")
	ls, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ls.Close()
	var cancel atomic.Pointer[context.CancelFunc]
	var peers sync.WaitGroup
	defer peers.Wait()
	peers.Go(func() {
		c, err := ls.Accept()
		if err != nil {
			return
		}
		peer := wire.NewConn(wirenet.FromUnixConn(c.(*net.UnixConn)))
		defer peer.Close()
		for {
			m, _, err := peer.Recv()
			if err != nil {
				return
			}
			if peer.Send(wire.Message{ID: m.ID, Started: &wire.Started{Process: "p1"}}, nil) != nil {
				return
			}
			(*cancel.Load())()
		}
	})
	var events atomic.Int64
	l, err := dial(t.Context(), path, func(wire.Message, []int) { events.Add(1) }, func(*link, error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	answered := int64(0)
	for range calls {
		ctx, done := context.WithCancel(t.Context())
		cancel.Store(&done)
		m, _, err := l.call(ctx, wire.Message{Op: wire.OpLaunch}, nil)
		if err == nil && m.Started != nil {
			answered++
		}
		done()
	}
	systest.Until(t, "the last of the answers", func() bool { return answered+events.Load() >= calls-1 }) // one may be on its way
	if n := answered + events.Load(); n > calls {
		t.Errorf("%d answers to %d calls", n, calls)
	}
}

// A keeper is reaped, whether a handle can be had for that or not.
func TestKeeperIsReaped(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	reap(h)
	defer func() { _ = cmd.Process.Release() }()
	if err := cmd.Wait(); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("it is there to be reaped: %v", err)
	}
}
