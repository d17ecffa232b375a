package spool

import (
	"context"
	"slices"
	"time"
)

// Pauses between looks at a spool that nobody waits to be woken for, and, in
// case a wake-up was missed (a network file system), at one that somebody does.
const (
	pollLeast = 2 * time.Millisecond
	pollMost  = 128 * time.Millisecond
	pollSlow  = time.Second
)

// bell is rung once, when the file it is for is written. It may be nil.
type bell struct {
	w  *Watcher
	wd int
	ch chan struct{}
}

// pause is how long to wait at most before the next look.
func (b *bell) pause(last time.Duration) time.Duration {
	if b != nil {
		return pollSlow
	}
	return min(max(2*last, pollLeast), pollMost)
}

// wait waits until the bell has rung, or for a pause, and returns it if it may
// still ring.
func (b *bell) wait(ctx context.Context, pause time.Duration) *bell {
	var ch chan struct{}
	if b != nil {
		ch = b.ch
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ch:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	return b
}

// bells are those that are armed, by watch descriptor.
type bells map[int][]*bell

func (bs bells) ring(wd int) {
	for _, b := range bs[wd] {
		close(b.ch)
	}
	delete(bs, wd)
}

// remove tells whether b was the last one of its file.
func (bs bells) remove(b *bell) (last bool) {
	i := slices.Index(bs[b.wd], b)
	if i < 0 {
		return false
	}
	bs[b.wd] = slices.Delete(bs[b.wd], i, i+1)
	if len(bs[b.wd]) > 0 {
		return false
	}
	delete(bs, b.wd)
	return true
}
