package events

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/ownfile"
)

// Config says where the log is, and how much of it is kept.
type Config struct {
	StateDir   string
	RuntimeDir string       // on another file system; empty: none
	Boot       string       // this boot's id
	Log        *slog.Logger // nil: nothing is logged

	Bytes    int64         // of all segments; 0: 64 MiB
	Age      time.Duration // of a segment's last event; 0: 7 days
	Segment  int64         // bytes of one, about; 0: 1 MiB
	Pending  int           // events that wait for the disk, at most; 0: 8192
	Patience time.Duration // with the disk, before readers are told from memory; 0: 1 s

	open func(segment string) (*os.File, error) // to go on with it; nil: only what is ours, see ownfile
}

const (
	keptRecent = 1024 // events on disk that are in memory, too
	batchMost  = 512  // events of one write
	batchLeast = 16   // while the disk takes nothing
)

// Log is the events of one state directory. Its methods may be called at the same
// time.
type Log struct {
	cfg  Config
	acks *acks
	disk disk // the writer's alone

	mu      sync.Mutex
	last    int64 // the newest number
	queued  int64 // the newest that was not dropped
	written int64 // the newest that is on disk
	visible int64 // the newest that readers may see
	floor   int64 // recent has what is kept of the numbers above
	recent  []entry
	done    int // so many of them are on disk
	keys    map[string]map[string]struct{}
	gone    map[string]string // turns of earlier boots that were not forgotten, and their boots
	segs    []segment         // oldest first
	changed chan struct{}     // closed and replaced when visible or written rise
	dropped int64

	trouble error     // why the disk takes nothing; nil: it does
	since   time.Time // when it last did, or had nothing to
	minding bool      // the timer runs that looks after it
	stuck   bool      // the disk takes nothing: readers are told from memory

	reserveMu sync.Mutex // orders the next and its file
	reserved  int64      // up to here numbers may be shown that are on no disk

	wake    chan struct{}
	closing chan struct{}
	stopped chan struct{} // closed by the writer
}

// entry is a line to be: an event, or that a turn is forgotten.
type entry struct {
	key    string
	event  api.Event // Seq is the newest number, also where a turn is forgotten
	forget string
}

// Open opens the log, and makes it where there is none. A state directory that
// takes nothing is no error, see Trouble; one of somebody else is.
func Open(cfg Config) (*Log, error) {
	cfg.Bytes = cmp.Or(cfg.Bytes, 64<<20)
	cfg.Age = cmp.Or(cfg.Age, 7*24*time.Hour)
	cfg.Segment = cmp.Or(cfg.Segment, 1<<20)
	cfg.Pending = cmp.Or(cfg.Pending, 8192)
	cfg.Patience = cmp.Or(cfg.Patience, time.Second)
	if cfg.open == nil {
		cfg.open = func(segment string) (*os.File, error) { return ownfile.OpenTo(segment, os.O_WRONLY) }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, keys: map[string]map[string]struct{}{}, gone: map[string]string{}, changed: make(chan struct{}), wake: make(chan struct{}, 1),
		closing: make(chan struct{}), stopped: make(chan struct{})}
	if err := l.load(); err != nil {
		return nil, err
	}
	l.queued, l.written, l.visible, l.floor = l.last, l.last, l.last, l.last
	if l.trouble != nil {
		cfg.Log.Warn("the log of events cannot be written: they are kept in memory, a few thousand of them", "error", l.trouble)
	}
	go l.run()
	return l, nil
}

// Close writes what is left, and syncs it, as long as ctx lasts.
func (l *Log) Close(ctx context.Context) error {
	close(l.closing)
	select {
	case <-l.stopped:
		return l.Trouble()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Trouble is why the disk takes no events at present; nil: it does.
func (l *Log) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// Last is the newest number that readers may see; 0: there was none.
func (l *Log) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.visible
}

// Dropped is how many events found no room.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Add numbers an event and keeps it; it waits for nothing. A key is one of the
// event's turn: what has one that was added before is dropped.
func (l *Log) Add(key string, e api.Event) {
	clip(&e)
	key = strings.TrimPrefix(key, e.Turn+"/")
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.keys[e.Turn][key]; known {
		return
	}
	l.last++
	e.Seq = l.last
	if len(l.recent)-l.done >= l.cfg.Pending {
		l.dropped++
	} else {
		l.queued = l.last
		l.enterKey(e.Turn, key)
		l.push(entry{key: key, event: e})
	}
	l.showReserved()
}

// push has an entry written; the lock is held.
func (l *Log) push(e entry) {
	if len(l.recent) == l.done {
		l.since = time.Now()
	}
	l.recent = append(l.recent, e)
	if !l.minding {
		l.minding = true
		time.AfterFunc(l.cfg.Patience, l.mind)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// enterKey remembers a key; the lock is held.
func (l *Log) enterKey(turn, key string) {
	if key == "" || turn == "" {
		return
	}
	if l.keys[turn] == nil {
		l.keys[turn] = map[string]struct{}{}
	}
	l.keys[turn][key] = struct{}{}
}

// Forget drops the keys that belong to a turn which is over.
func (l *Log) Forget(turn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys[turn] == nil {
		return
	}
	delete(l.keys, turn)
	delete(l.gone, turn)
	l.push(entry{forget: turn, event: api.Event{Seq: l.queued}})
}

// Gone are the turns of earlier boots that were not forgotten, and their boots:
// their service ended with the host.
func (l *Log) Gone() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.gone)
}

// Retain forgets every turn that is not known any more: one whose service ended
// before it could say so.
func (l *Log) Retain(known func(turn string) bool) {
	l.mu.Lock()
	var turns []string
	for turn := range l.keys {
		turns = append(turns, turn)
	}
	l.mu.Unlock()
	for _, turn := range turns {
		if !known(turn) {
			l.Forget(turn)
		}
	}
}

// show lets readers see events up to a number; the lock is held.
func (l *Log) show(seq int64) {
	if seq > l.visible {
		l.visible = seq
		l.broadcast()
	}
}

// broadcast wakes who waits; the lock is held.
func (l *Log) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Wait returns when there is an event after seq, or ctx ends.
func (l *Log) Wait(ctx context.Context, seq int64) error {
	return l.await(ctx, func() bool { return l.visible > seq || seq > l.last })
}

// Flush returns when all that was added is written, or ctx ends. It does not wait
// for a disk that takes nothing.
func (l *Log) Flush(ctx context.Context) error {
	l.mu.Lock()
	to := l.queued
	l.mu.Unlock()
	var trouble error
	err := l.await(ctx, func() bool {
		if trouble = nil; l.written < to {
			trouble = l.trouble
		}
		return l.written >= to || trouble != nil
	})
	return cmp.Or(err, trouble)
}

// await waits until a condition holds, which is asked under the lock.
func (l *Log) await(ctx context.Context, so func() bool) error {
	for {
		l.mu.Lock()
		ok, changed := so(), l.changed
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// clip bounds what an event takes.
func clip(e *api.Event) {
	const most = 1024
	short := func(s string) string {
		if len(s) <= most {
			return s
		}
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	e.Message, e.Session = short(e.Message), short(e.Session)
	if e.Status != nil {
		st := *e.Status
		st.Why = short(st.Why)
		e.Status = &st
	}
}
