package main

import (
	"io"
	"sync/atomic"
	"time"
)

// queued is how many lines may wait for whoever takes the log.
const queued = 1024

// behind is a stream that is written to behind the back of who writes: it may
// be slow, stuck or gone, and holds up nobody. What does not fit is counted.
type behind struct {
	lines chan line
	lost  atomic.Int64
}

// line is what is to be written, or a mark that tells how far that is.
type line struct {
	text []byte
	mark chan struct{}
}

// newBehind writes to w. told is called with the number of writes that were
// lost, before what comes after them; nil: nobody asks.
func newBehind(w io.Writer, told func(lost int64)) *behind {
	b := &behind{lines: make(chan line, queued)}
	go func() {
		for l := range b.lines {
			if n := b.lost.Swap(0); n > 0 && told != nil {
				told(n)
			}
			if l.mark != nil {
				close(l.mark)
				continue
			}
			_, _ = w.Write(l.text) // there is nobody to whom that could be told
		}
	}()
	return b
}

// Write never blocks and never fails.
func (b *behind) Write(p []byte) (int, error) {
	select {
	case b.lines <- line{text: append([]byte(nil), p...)}:
	default:
		b.lost.Add(1)
	}
	return len(p), nil
}

// flush waits until all was written, or that long.
func (b *behind) flush(within time.Duration) {
	end := time.NewTimer(within)
	defer end.Stop()
	mark := make(chan struct{})
	select {
	case b.lines <- line{mark: mark}:
	case <-end.C:
		return
	}
	select {
	case <-mark:
	case <-end.C:
	}
}
