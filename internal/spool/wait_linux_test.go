package spool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func newWatcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// watched is how many files an inotify instance watches.
func (w *Watcher) watched(t *testing.T) (n int) {
	t.Helper()
	var info []byte
	err := w.conn.Control(func(fd uintptr) {
		var err error
		if info, err = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(fd))); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(info), "inotify wd:")
}

// TestWait: writes, gaps and ends wake those that wait, with a watcher and
// without; also when the file has lost its name.
func TestWait(t *testing.T) {
	for _, watch := range []*Watcher{nil, newWatcher(t)} {
		path := filepath.Join(testDir(t), "x")
		w := create(t, path, MinMax)
		r, err := open(path, watch)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		steps := []func(){func() { say(t, w, 1) }, func() { say(t, w, 9000) }, func() { _ = w.Drop(5) }, func() { _ = w.Close(true) }}
		for i, step := range steps {
			before := w.Status()
			stepped := make(chan struct{})
			time.AfterFunc(20*time.Millisecond, func() { step(); close(stepped) })
			st, err := r.Wait(t.Context(), before.Total)
			<-stepped
			if err != nil || (i < 3) != (st.Total > before.Total) || (i == 3) != st.Closed {
				t.Errorf("step %d: %+v, %v", i, st, err)
			}
		}
		if st, err := r.Wait(t.Context(), 1<<40); err != nil || !st.EOF {
			t.Errorf("after the end: %+v, %v", st, err)
		}
		r.Close()
		if _, err := r.Wait(t.Context(), 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("on a closed reader: %v", err)
		}
	}
}

// TestWaitIsOver: contexts end waiting, and a watcher that is closed turns it
// into polling.
func TestWaitIsOver(t *testing.T) {
	watch, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, MinMax)
	defer w.Close(false)
	r, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := r.Wait(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if n := watch.watched(t); n != 0 {
		t.Errorf("%d watches are left", n)
	}
	time.AfterFunc(20*time.Millisecond, func() { watch.Close() })
	said := make(chan struct{})
	time.AfterFunc(60*time.Millisecond, func() { say(t, w, 1); close(said) })
	if st, err := r.Wait(t.Context(), 0); err != nil || st.Total != 1 {
		t.Errorf("with the watcher closed: %+v, %v", st, err)
	}
	<-said
}

// TestManyWaiters: a watcher serves more readers than a user may have inotify
// instances, and is left with no watch.
func TestManyWaiters(t *testing.T) {
	const spools, each, rounds = 40, 10, 5
	watch := newWatcher(t)
	dir := testDir(t)
	var ready, done sync.WaitGroup
	var writers []*Writer
	for i := range spools {
		path := file(dir, i)
		writers = append(writers, create(t, path, MinMax))
		for range each {
			r, err := watch.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			ready.Add(1)
			done.Go(func() {
				defer r.Close()
				ready.Done()
				if got, missed, err := follow(t.Context(), r, 5000); err != nil || got+missed != 2000*rounds {
					t.Errorf("%d and %d: %v", got, missed, err)
				}
			})
		}
	}
	ready.Wait()
	for range rounds {
		time.Sleep(10 * time.Millisecond)
		for _, w := range writers {
			say(t, w, 2000)
		}
	}
	for _, w := range writers {
		if err := w.Close(true); err != nil {
			t.Fatal(err)
		}
	}
	done.Wait()
	if n := watch.watched(t); n != 0 || len(watch.bells) != 0 {
		t.Errorf("%d watches and %d bells are left", n, len(watch.bells))
	}
}

// TestWokenAtOnce: somebody who waits with a watcher is not woken by the poll.
func TestWokenAtOnce(t *testing.T) {
	watch := newWatcher(t)
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, MinMax)
	defer w.Close(false)
	r, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const times = 20
	soon := 0 // on a busy machine not each time
	for i := range int64(times) {
		begun, said := time.Now(), make(chan struct{})
		time.AfterFunc(time.Millisecond, func() { say(t, w, 1); close(said) })
		if _, err := r.Wait(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		if time.Since(begun) < pollSlow/2 {
			soon++
		}
		<-said
	}
	if soon < times/4 {
		t.Errorf("woken %d times of %d before the next look, one of which is each %v", soon, times, pollSlow)
	}
}
