package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
)

func TestEventsAreReadFromMemoryAndFromDisk(t *testing.T) {
	const many = 5000
	dir := t.TempDir()
	l := opened(t, dir)
	var want []api.Event
	for n := range many {
		key, e := event("t1", n)
		l.Add(key, e)
		want = append(want, e)
		if n%1000 == 0 {
			flushed(t, l)
		}
	}
	check := func(l *Log) {
		t.Helper()
		for _, page := range []int{1, 7, 5000} {
			start := int64(0)
			if page == 1 {
				start = many - 1500 // across the edge of memory
			}
			got := from(t, l, start, page)
			contiguous(t, start, got)
			if len(got) != many-int(start) {
				t.Fatalf("%d events after %d", len(got), start)
			}
			for i, e := range got {
				if !same(e, want[int(start)+i]) {
					t.Fatalf("event %d: %+v, want %+v", e.Seq, e, want[int(start)+i])
				}
			}
		}
	}
	flushed(t, l)
	check(l)
	shut(t, l)
	l = opened(t, dir)
	check(l)
	for n := range many { // a service that is told everything again
		key, e := event("t1", n)
		l.Add(key, e)
	}
	flushed(t, l)
	check(l)
	shut(t, l)
	files, _ := filepath.Glob(dir + "/state/events/*.log")
	if len(files) < 10 {
		t.Errorf("%d segments", len(files))
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", fi.Mode(), err)
		}
	}
}

func TestKeysAreForgottenWithTheirTurn(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir)
	again := func(turn string, n int, added bool) {
		t.Helper()
		key, e := event(turn, n)
		last := l.last
		l.Add(key, e)
		if l.last > last != added {
			t.Errorf("%s %d: added %v", turn, n, !added)
		}
	}
	for n := range 300 {
		again("t1", n, true)
		again("t2", n, true)
	}
	again("t1", 0, false)
	l.Forget("t1")
	again("t1", 0, true)
	l.Forget("t1")
	shut(t, l)
	l = opened(t, dir)
	again("t2", 0, false)
	again("t1", 1, true)
	l.Retain(func(turn string) bool { return turn == "t1" })
	shut(t, l)
	l = opened(t, dir)
	again("t1", 1, false)
	again("t2", 0, true)
	l.Add("", api.Event{Turn: "t2"})
	l.Add("", api.Event{Turn: "t2"}) // "" is no key
	shut(t, l)
}

func TestTurnsOfAnEarlierBootAreToldUntilForgotten(t *testing.T) {
	dir := t.TempDir()
	boot := func(id string) func(*Config) { return func(c *Config) { c.Boot = id } }
	gone := func(l *Log, want map[string]string) *Log {
		t.Helper()
		if got := l.Gone(); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		return l
	}
	l := opened(t, dir, boot("a"))
	for _, turn := range []string{"t1", "t2", "t3"} {
		l.Add("begun", api.Event{Turn: turn})
	}
	l.Forget("t3")
	shut(t, gone(l, nil))
	l = gone(opened(t, dir, boot("a")), nil)
	shut(t, l)
	l = gone(opened(t, dir, boot("b")), map[string]string{"t1": "a", "t2": "a"})
	l.Add("begun", api.Event{Turn: "t4"})
	l.Forget("t1")
	shut(t, l)
	l = gone(opened(t, dir, boot("b")), map[string]string{"t2": "a"}) // what was not dealt with then
	shut(t, l)
	l = gone(opened(t, dir, boot("c")), map[string]string{"t2": "a", "t4": "b"})
	l.Retain(func(string) bool { return false })
	shut(t, gone(l, nil))
	shut(t, gone(opened(t, dir, boot("d")), nil))
}

func TestWaitIsWoken(t *testing.T) {
	l := opened(t, t.TempDir())
	defer shut(t, l)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := l.Wait(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ctx, stop := within()
	defer stop()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for seq := int64(0); seq < 200; {
				if err := l.Wait(ctx, seq); err != nil {
					t.Error(err)
					return
				}
				es, next, err := l.After(ctx, seq, 10)
				if err != nil || len(es) == 0 {
					t.Errorf("woken for nothing after %d: %v", seq, err)
					return
				}
				seq = next
			}
		})
	}
	for n := range 200 {
		key, e := event("t1", n)
		l.Add(key, e)
	}
	wg.Wait()
}

func TestOldSegmentsGo(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir, func(c *Config) { c.Bytes = 40_000 })
	for n := range 3000 {
		key, e := event("t1", n)
		l.Add(key, e)
		if n%100 == 0 {
			flushed(t, l)
		}
	}
	flushed(t, l)
	var sum int64
	files, _ := filepath.Glob(dir + "/state/events/*.log")
	for _, f := range files {
		fi, _ := os.Stat(f)
		sum += fi.Size()
	}
	if sum > 60_000+int64(len(l.keys["t1"]))*20*int64(len(files)) {
		t.Errorf("%d bytes in %d segments", sum, len(files))
	}
	shut(t, l)
	l = opened(t, dir, func(c *Config) { c.Bytes = 40_000 })
	got := from(t, l, 5, 100)
	contiguous(t, 5, got)
	if got[0].Kind != api.EventGap || got[0].Message == "" || got[1].Kind == api.EventGap || got[len(got)-1].Seq != 3000 {
		t.Errorf("%+v … %+v", got[:2], got[len(got)-1])
	}
	key, e := event("t1", 1) // its event has gone, its turn has not
	l.Add(key, e)
	if l.last != 3000 {
		t.Error("a key went with its event")
	}
	shut(t, l)
}

func TestSegmentsGoByAge(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir)
	for n := range 300 {
		key, e := event("t1", n)
		l.Add(key, e)
	}
	shut(t, l)
	old := time.Now().Add(-8 * 24 * time.Hour)
	files, _ := filepath.Glob(dir + "/state/events/*.log")
	for _, f := range files {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	l = opened(t, dir)
	key, e := event("t2", 1)
	l.Add(key, e)
	flushed(t, l)
	if got := from(t, l, 0, 10); len(got) != 2 || got[0].Kind != api.EventGap || got[0].Seq != 300 || got[1].Seq != 301 {
		t.Errorf("%+v", got)
	}
	if files, _ := filepath.Glob(dir + "/state/events/*.log"); len(files) != 1 {
		t.Errorf("%v", files)
	}
	shut(t, l)
}

// A cursor of a log that is lost is answered, and what the new one has is read.
func TestLostLog(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir)
	key, e := event("t1", 1)
	l.Add(key, e)
	flushed(t, l)
	ctx, stop := within()
	defer stop()
	if err := l.Wait(ctx, 5000); err != nil {
		t.Fatal(err)
	}
	es, next, err := l.After(ctx, 5000, 10)
	if err != nil || len(es) != 1 || es[0].Kind != api.EventGap || es[0].Seq != 0 || next != 0 {
		t.Fatalf("%+v %d %v", es, next, err)
	}
	if got := from(t, l, next, 10); len(got) != 1 || !same(got[0], e) {
		t.Errorf("%+v", got)
	}
	shut(t, l)
}

// After a crash of the host, numbers that may have been told are not used again.
func TestNumbersLeapAfterACrashOfTheHost(t *testing.T) {
	dir := t.TempDir()
	other := func(c *Config) { c.Boot = "b2" }
	fill := func(l *Log, n int) {
		key, e := event("t1", n)
		l.Add(key, e)
		flushed(t, l)
	}
	l := opened(t, dir)
	fill(l, 1)
	crashed := crash(t, l, dir)
	l = opened(t, crashed, other)
	fill(l, 2)
	got := from(t, l, 0, 10)
	contiguous(t, 0, got)
	if len(got) != 3 || got[1].Kind != api.EventGap || got[2].Seq != leap+2 {
		t.Errorf("%+v", got)
	}
	shut(t, l)
	l = opened(t, crashed) // another boot again, and nothing is missing
	fill(l, 3)
	if got := from(t, l, leap+2, 10); len(got) != 1 || got[0].Seq != leap+3 {
		t.Errorf("%+v", got)
	}
	shut(t, l)
}

// crash is what a service that is killed leaves: a copy of the directories as they
// are at this moment.
func crash(t tester, l *Log, dir string) string {
	t.Helper()
	to, err := os.MkdirTemp(filepath.Dir(dir), "crashed")
	if err != nil {
		t.Fatalf("%v", err)
	}
	copyDir(t, dir, to)
	shut(t, l)
	return to
}

func TestTornLineIsCutOff(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir)
	for n := range 5 {
		key, e := event("t1", n)
		l.Add(key, e)
	}
	flushed(t, l)
	dir = crash(t, l, dir)
	files, _ := filepath.Glob(dir + "/state/events/*.log")
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	fifth := bytes.LastIndexByte(b[:len(b)-1], '\n') + 1
	for end := fifth; end < len(b); end += 17 {
		if err := os.WriteFile(files[0], b[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		l := opened(t, dir)
		if l.last != 4 {
			t.Fatalf("cut at %d: %d", end, l.last)
		}
		key, e := event("t1", 4)
		l.Add(key, e)
		flushed(t, l)
		got := from(t, l, 0, 3)
		contiguous(t, 0, got)
		if len(got) != 5 || !same(got[4], e) {
			t.Fatalf("cut at %d: %+v", end, got)
		}
		shut(t, l)
	}
}

func TestAckIsDurableAndOnce(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, dir)
	var mu sync.Mutex
	first := map[int64]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for seq := int64(1); seq <= 20; seq++ {
				now, repeated, err := l.Ack(7, "c", seq)
				if err != nil || now < seq {
					t.Error(now, err)
				}
				mu.Lock()
				if !repeated {
					first[seq]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for seq, n := range first {
		if n != 1 {
			t.Errorf("%d was acknowledged first %d times", seq, n)
		}
	}
	if first[20] != 1 {
		t.Error("the last was nobody's")
	}
	l2 := opened(t, crash(t, l, dir))
	if n, err := l2.Acked(7, "c"); n != 20 || err != nil {
		t.Error(n, err)
	}
	if n, _ := l2.Acked(8, "c"); n != 0 {
		t.Error("another user's", n)
	}
	if now, repeated, err := l2.Ack(7, "c", 3); now != 20 || !repeated || err != nil {
		t.Error(now, repeated, err)
	}
	if l2.Last() != 20 {
		t.Error("numbers that were acknowledged are given again", l2.Last())
	}
	for i := range consumersUser - 1 {
		if _, _, err := l2.Ack(7, fmt.Sprint("more", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var e *api.Error
	if _, _, err := l2.Ack(7, "too-many", 1); !errors.As(err, &e) || e.Code != api.CodeTooLarge {
		t.Error(err)
	}
	if _, _, err := l2.Ack(8, "another-users", 1); err != nil {
		t.Error(err)
	}
	shut(t, l2)
}

// BenchmarkAdd is what whoever tells of something waits for.
func BenchmarkAdd(b *testing.B) {
	l := opened(b, b.TempDir(), func(c *Config) { c.Segment, c.Pending = 1<<20, 1<<30 })
	defer shut(b, l)
	_, e := event("t1", 3)
	for n := 0; b.Loop(); n++ {
		l.Add("", e)
	}
}

// What was added just before the log is closed is written, wherever the writer is
// just then.
func TestWhatIsAddedLastIsWritten(t *testing.T) {
	dir := t.TempDir()
	const rounds, each = 100, 2
	for i := range rounds {
		l := opened(t, dir)
		l.Add(event("t1", each*i))
		for at := time.Now(); time.Since(at) < time.Duration(2*i)*time.Microsecond; { // until the writer is about to wait
		}
		l.Add(event("t1", each*i+1))
		shut(t, l)
	}
	l := opened(t, dir)
	defer shut(t, l)
	if n := len(from(t, l, 0, 1000)); n != rounds*each {
		t.Errorf("%d events of %d are there", n, rounds*each)
	}
}
