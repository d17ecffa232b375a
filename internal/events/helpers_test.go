package events

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"pinfold.dev/api"
)

type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Minute)
}

// opened is a log in a state directory, with small segments. A machine that is busy
// is no disk that hangs: only tests of one have little patience.
func opened(t tester, dir string, change ...func(*Config)) *Log {
	t.Helper()
	cfg := Config{StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), Boot: "b1", Segment: 4000, Patience: time.Hour,
		Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	for _, d := range []string{cfg.StateDir, cfg.RuntimeDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatalf("%v", err)
		}
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func shut(t tester, l *Log) {
	t.Helper()
	ctx, cancel := within()
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func flushed(t tester, l *Log) {
	t.Helper()
	ctx, cancel := within()
	defer cancel()
	if err := l.Flush(ctx); err != nil {
		t.Fatalf("flush: %v", err)
	}
}

// written is flushed for a log with so little patience that a disk may seem to hang
// at any moment.
func written(t tester, l *Log) {
	t.Helper()
	ctx, cancel := within()
	defer cancel()
	for l.Flush(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatalf("not written: %v", l.Trouble())
		}
		time.Sleep(time.Millisecond)
	}
}

// copyDir copies a directory that may be written to, as it was at one moment: what
// is written to a newer file comes after all that the older ones have.
func copyDir(t tester, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	if err != nil {
		t.Fatalf("copy: %v", err)
	}
	for _, e := range slices.Backward(entries) {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			copyDir(t, src, dst)
			continue
		}
		b, err := os.ReadFile(src)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it had no name yet that counts
		}
		if err == nil {
			err = os.WriteFile(dst, b, 0o600)
		}
		if err != nil {
			t.Fatalf("copy: %v", err)
		}
	}
}

// event is the nth one of a turn: its parts follow from that.
func event(turn string, n int) (key string, e api.Event) {
	e = api.Event{At: time.Unix(int64(n), 0).UTC(), Kind: api.EventLaunch, Owner: 7, Turn: turn, Epoch: int64(n), Session: "s\x00\"é",
		Process: fmt.Sprintf("p%d", n), Message: fmt.Sprintf("event %d of %s", n, turn), Grade: api.GradeCgroup}
	if n%3 == 0 {
		e.Kind, e.Status = api.EventExit, &api.Status{State: api.ProcessExited}
	}
	return fmt.Sprintf("%s/%s/p%d", turn, e.Kind, n), e
}

// from reads everything after a number, n at a time.
func from(t tester, l *Log, seq int64, n int) (all []api.Event) {
	t.Helper()
	for {
		es, next, err := l.After(context.Background(), seq, n)
		if err != nil {
			t.Fatalf("after %d: %v", seq, err)
		}
		if next == seq && len(es) == 0 {
			return all
		}
		all, seq = append(all, es...), next
	}
}

// same compares but for the number.
func same(a, b api.Event) bool {
	a.Seq, b.Seq = 0, 0
	return reflect.DeepEqual(a, b)
}

// contiguous fails where numbers are missing that no gap tells of.
func contiguous(t tester, seq int64, es []api.Event) {
	t.Helper()
	for _, e := range es {
		if e.Seq <= seq || e.Kind != api.EventGap && e.Seq != seq+1 {
			t.Fatalf("after %d comes %+v", seq, e)
		}
		seq = e.Seq
	}
}
