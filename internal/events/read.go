package events

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/ownfile"
)

// After reads at most n events after seq, in order, with gaps among them, and
// tells the number to go on after. A seq of a log that was lost is answered with
// a gap and a next below it.
func (l *Log) After(ctx context.Context, seq int64, n int) (events []api.Event, next int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, seq, err
	}
	n = max(n, 1)
	l.mu.Lock()
	switch {
	case seq > l.last:
		next := l.oldest() - 1
		l.mu.Unlock()
		return []api.Event{lostLog(seq, next)}, next, nil
	case seq >= l.visible:
		l.mu.Unlock()
		return nil, seq, nil
	case seq >= l.floor:
		events, all := l.fromMemory(seq, n)
		to := l.visible
		l.mu.Unlock()
		events, next = withGaps(seq, events, to, all)
		return events, next, nil
	}
	segs, to := slices.Clone(l.segs), min(l.visible, l.floor)
	l.mu.Unlock()
	events, all, err := fromDisk(ctx, segs, seq, to, n)
	if err != nil {
		return nil, seq, err
	}
	events, next = withGaps(seq, events, to, all)
	return events, next, nil
}

// oldest is the smallest number that may be kept; the lock is held.
func (l *Log) oldest() int64 {
	if len(l.segs) > 0 {
		return min(l.segs[0].first, l.last+1)
	}
	return l.floor + 1
}

// fromMemory finds events that readers may see; all: there are no more. The lock
// is held.
func (l *Log) fromMemory(seq int64, n int) (events []api.Event, all bool) {
	i := sort.Search(len(l.recent), func(i int) bool { return l.recent[i].event.Seq > seq })
	for _, e := range l.recent[i:] {
		switch {
		case e.event.Seq > l.visible:
			return events, true
		case e.forget != "":
		case len(events) == n:
			return events, false
		default:
			events = append(events, e.event)
		}
	}
	return events, true
}

// fromDisk reads events after seq and up to another number; all: there are no
// more.
func fromDisk(ctx context.Context, segs []segment, seq, to int64, n int) (events []api.Event, all bool, err error) {
	from := sort.Search(len(segs), func(i int) bool { return segs[i].first > seq+1 })
	for i := max(0, from-1); i < len(segs) && segs[i].first <= to; i++ {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		found, err := readSegment(segs[i].path, seq, to, n+1-len(events))
		events = append(events, found...)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EIO): // what is missing is told as a gap
		case err != nil:
			return nil, false, fmt.Errorf("read events: %w", err)
		}
		if len(events) > n {
			return events[:n], false, nil
		}
		if k := len(events); k > 0 {
			seq = events[k-1].Seq
		}
	}
	return events, true, nil
}

func readSegment(path string, seq, to int64, n int) (events []api.Event, err error) {
	f, err := ownfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for in := bufio.NewReaderSize(f, maxLine); len(events) < n; {
		b, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) { // a long head, or damage
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
			b = nil
		}
		if errors.Is(err, io.EOF) {
			return events, nil
		} else if err != nil {
			return events, err
		}
		if s := seqOf(b); s == 0 || s <= seq {
			continue
		}
		if v, ok := parseLine(chop(b)); ok && v.Event != nil && v.Seq > seq {
			if v.Seq > to {
				return events, nil
			}
			seq = v.Seq
			events = append(events, *v.Event)
		}
	}
	return events, nil
}

// withGaps puts a gap wherever numbers are missing after seq; all: there are no
// more events up to a number.
func withGaps(seq int64, events []api.Event, to int64, all bool) (out []api.Event, next int64) {
	for _, e := range events {
		if e.Seq > seq+1 {
			out = append(out, gap(seq, e.Seq-1))
		}
		out = append(out, e)
		seq = e.Seq
	}
	if all && to > seq {
		out = append(out, gap(seq, to))
		seq = to
	}
	return out, seq
}

func gap(after, to int64) api.Event {
	return api.Event{Seq: to, At: time.Now().UTC(), Kind: api.EventGap,
		Message: fmt.Sprintf("events %d to %d are not kept", after+1, to)}
}

func lostLog(seq, next int64) api.Event {
	return api.Event{Seq: next, At: time.Now().UTC(), Kind: api.EventGap,
		Message: fmt.Sprintf("event %d was of a log that is lost: this one begins after %d", seq, next)}
}
