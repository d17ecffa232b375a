package events

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pinfold.dev/internal/ownfile"
)

// Times of the writer.
const (
	retryFirst = 100 * time.Millisecond // after an error
	retryMost  = 5 * time.Second
	lookAt     = time.Hour // at what is too old
)

// disk is the segment that is written to. Only the writer has to do with it.
type disk struct {
	dir  string
	path string // empty: the next write begins one
	file *os.File
	size int64 // of its whole lines
	head int64 // of the first of them
	torn bool  // something may follow them
	buf  []byte
}

// run writes what is added until the log is closed.
func (l *Log) run() {
	defer close(l.stopped)
	defer l.disk.close()
	look := time.NewTicker(lookAt)
	defer look.Stop()
	l.retire(time.Now())
	for wait := retryFirst; ; {
		batch := l.batch()
		if len(batch) == 0 {
			select {
			case <-l.wake:
			case now := <-look.C:
				l.retire(now)
			case <-l.closing:
				if len(l.batch()) == 0 { // else it came just before
					l.finish()
					return
				}
			}
			continue
		}
		err := l.store(batch)
		l.settle(batch, err)
		if err == nil {
			wait = retryFirst
			continue
		}
		l.goOn()
		select {
		case <-time.After(wait):
			wait = min(2*wait, retryMost)
		case <-l.closing:
			return // it was tried
		}
	}
}

// batch is what is to be written next.
func (l *Log) batch() []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := batchMost
	if l.trouble != nil {
		most = batchLeast // there may be a little room
	}
	return slices.Clone(l.recent[l.done:min(len(l.recent), l.done+most)])
}

// store writes a batch, all of it or, as far as anybody can tell, nothing.
func (l *Log) store(batch []entry) (err error) {
	d := &l.disk
	if d.path != "" && d.size-d.head >= l.cfg.Segment {
		d.close()
		d.path = ""
	}
	if d.file != nil && !d.isThere() { // what is written to it would go with us
		d.close()
		d.path = ""
	}
	if d.path == "" {
		if err := l.rotate(batch[0]); err != nil {
			return err
		}
	}
	d.buf = d.buf[:0]
	for _, e := range batch {
		if d.buf, err = appendLine(d.buf, lineOf(e)); err != nil {
			l.cfg.Log.Error("an event is left out of the log", "event", e.event.Seq, "turn", e.event.Turn, "error", err)
		}
	}
	return d.write(l.cfg.open)
}

// write appends the buffer to the segment; one that fails is opened anew, and one
// that is not there any more, or has become something else, is left.
func (d *disk) write(open func(string) (*os.File, error)) (err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.file == nil {
		if d.file, err = open(d.path); err != nil {
			if errors.Is(err, ownfile.ErrStrange) || errors.Is(err, fs.ErrNotExist) {
				d.path = "" // it is begun anew, elsewhere
			}
			return fmt.Errorf("write events: %w", err)
		}
	}
	if d.torn {
		if err := d.file.Truncate(d.size); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
	}
	d.torn = true
	if _, err := d.file.WriteAt(d.buf, d.size); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	d.torn = false
	d.size += int64(len(d.buf))
	if cap(d.buf) > maxLine*4 {
		d.buf = nil
	}
	return nil
}

// isThere tells whether the open segment is still the file at its path.
func (d *disk) isThere() bool {
	own, err := d.file.Stat()
	now, nerr := os.Lstat(d.path)
	return err == nil && nerr == nil && os.SameFile(own, now)
}

func (d *disk) close() {
	if d.file != nil {
		d.file.Close()
		d.file = nil
	}
}

// rotate begins a segment with an entry. It gets its name with its head in it.
func (l *Log) rotate(e entry) (err error) {
	d := &l.disk
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for events: %w", err)
	}
	b, err := appendLine(nil, line{Head: l.head(e)})
	if err != nil {
		return err
	}
	s := segment{first: e.first(), at: time.Now(), size: int64(len(b))}
	s.path = segmentPath(d.dir, s.first)
	tmp := filepath.Join(d.dir, "next")
	f, err := ownfile.Create(tmp)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("begin a segment of events: %w", err)
	}
	if err := os.Rename(tmp, s.path); err != nil {
		return fmt.Errorf("begin a segment of events: %w", err)
	}
	d.path, d.size, d.head, d.torn = s.path, s.size, s.size, false
	l.mu.Lock()
	l.segs = append(slices.DeleteFunc(l.segs, func(o segment) bool { return o.path == s.path }), s)
	l.mu.Unlock()
	l.retire(s.at)
	return nil
}

// first is the smallest number that a segment can have which begins with e.
func (e entry) first() int64 {
	if e.forget != "" {
		return e.event.Seq + 1
	}
	return e.event.Seq
}

// head is that of a segment that begins with an entry: it has the keys that are
// on disk and not forgotten.
func (l *Log) head(e entry) *head {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &head{Boot: l.cfg.Boot, Base: e.first() - 1, Keys: map[string][]string{}, Gone: maps.Clone(l.gone)}
	type key struct{ turn, key string }
	waiting := map[key]bool{}
	for _, p := range l.recent[l.done:] {
		waiting[key{p.event.Turn, p.key}] = true
	}
	for turn, keys := range l.keys {
		for k := range keys {
			if !waiting[key{turn, k}] {
				h.Keys[turn] = append(h.Keys[turn], k)
			}
		}
	}
	return h
}

// settle notes how a write went.
func (l *Log) settle(batch []entry, err error) {
	l.mu.Lock()
	l.since = time.Now()
	was, dropped := l.trouble, l.dropped
	l.trouble = err
	if err != nil {
		l.mu.Unlock()
		if was == nil {
			l.cfg.Log.Warn("events cannot be written: they are kept in memory", "error", err)
		}
		return
	}
	l.done += len(batch)
	l.written = batch[len(batch)-1].event.Seq
	l.show(l.written)
	n := len(l.segs) - 1
	l.segs[n].size, l.segs[n].at = l.disk.size, l.since
	l.trim()
	l.broadcast()
	again := l.done == len(l.recent) && (l.stuck || l.reserved > 0)
	l.mu.Unlock()
	if was != nil {
		l.cfg.Log.Info("events are written again", "dropped", dropped)
	}
	if again {
		l.giveBack()
	}
}

// trim drops what is on disk from memory, but for the newest; the lock is held.
func (l *Log) trim() {
	if l.done <= 2*keptRecent {
		return
	}
	n := l.done - keptRecent
	l.floor = l.recent[n-1].event.Seq
	l.recent = append(make([]entry, 0, len(l.recent)-n+batchMost), l.recent[n:]...)
	l.done -= n
}

// finish makes the end of the log durable: the next service knows that nothing is
// missing, whatever became of the host.
func (l *Log) finish() {
	d := &l.disk
	if d.path == "" || d.size == 0 {
		return
	}
	var err error
	if d.buf, err = appendLine(d.buf[:0], line{Closed: true}); err == nil {
		err = d.write(l.cfg.open)
	}
	if err == nil {
		err = d.file.Sync()
	}
	l.mu.Lock()
	l.trouble = err
	l.mu.Unlock()
}

// retire removes segments that are too old, and the oldest while there is too
// much. The newest stays: it has the numbers.
func (l *Log) retire(now time.Time) {
	l.mu.Lock()
	var sum int64
	for _, s := range l.segs {
		sum += s.size
	}
	var out []segment
	for len(l.segs) > 1 && (sum > l.cfg.Bytes || now.Sub(l.segs[0].at) > l.cfg.Age) {
		out = append(out, l.segs[0])
		sum -= l.segs[0].size
		l.segs = l.segs[1:]
	}
	old := len(l.segs) == 1 && l.segs[0].size > 0 && now.Sub(l.segs[0].at) > l.cfg.Age
	l.mu.Unlock()
	for _, s := range out {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.cfg.Log.Warn("remove old events", "error", err)
		}
	}
	if old { // it goes when another has been begun
		l.disk.close()
		l.disk.path = ""
	}
}
