package store

import (
	"cmp"
	"encoding/binary"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"pinfold.dev/api"
)

// Keep bounds the history; whichever bound comes first, the oldest go. Zeros are
// the defaults.
type Keep struct {
	Age   time.Duration // since a turn was saved last; 30 days
	Count int           // turns; 10,000
	Size  int64         // bytes of all records; 256 MiB. The newest stays, however large.
}

func (k Keep) orDefaults() Keep {
	return Keep{Age: cmp.Or(k.Age, 30*24*time.Hour), Count: cmp.Or(k.Count, 10_000), Size: cmp.Or(k.Size, 256<<20)}
}

const (
	trimEvery = 64          // turns that are added between looks at the bounds
	trimMost  = 1000        // that go in one transaction: an ending may wait for it
	lookAgain = time.Minute // at least, between looks at what is too old
)

// measure counts what there is.
func measure(turns, times *bbolt.Bucket) (n int, size int64) {
	c := times.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		n++
		size += sizeOf(turns, k, v)
	}
	return n, size
}

// sizeOf is the size of a record; an earlier version did not write it down.
func sizeOf(turns *bbolt.Bucket, k, v []byte) int64 {
	switch {
	case len(v) == 8:
		return int64(binary.BigEndian.Uint64(v))
	case len(k) > 8:
		return int64(len(turns.Get(k[8:])))
	}
	return 0
}

// when is the time of a key.
func when(k []byte) time.Time {
	if len(k) < 8 {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(k)))
}

// trim drops what is too old and too much, and sees to it that it is done again
// when the next turn is too old; writing is held. What cannot be dropped now is
// looked at again with the next turn.
func (h *history) trim() {
	var oldest []byte
	for more := true; more; {
		var drop [][]byte
		err := h.view(func(turns, times *bbolt.Bucket) error {
			drop, oldest = h.tooMuch(turns, times, time.Now())
			return nil
		})
		if err == nil && len(drop) > 0 {
			err = h.update(func(turns, times *bbolt.Bucket) error { return dropAll(turns, times, drop) },
				func(_, _ *bbolt.Bucket) error { return nil })
		}
		more = err == nil && len(drop) == trimMost
	}
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if oldest != nil {
		h.timer = time.AfterFunc(max(lookAgain, time.Until(when(oldest).Add(h.keep.Age))), h.trimLater)
	}
}

func (h *history) trimLater() {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.RLock()
	closed := h.closed
	h.mu.RUnlock()
	if !closed {
		h.trim()
	}
}

// tooMuch lists keys to drop, trimMost at most, and the oldest that stays.
func (h *history) tooMuch(turns, times *bbolt.Bucket, now time.Time) (drop [][]byte, oldest []byte) {
	n, size := measure(turns, times)
	c := times.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		old := now.Sub(when(k)) > h.keep.Age
		much := n > h.keep.Count || size > h.keep.Size && n > 1
		if !old && !much || len(drop) == trimMost {
			return drop, append([]byte(nil), k...)
		}
		drop = append(drop, append([]byte(nil), k...))
		n, size = n-1, size-sizeOf(turns, k, v)
	}
	return drop, nil
}

func dropAll(turns, times *bbolt.Bucket, keys [][]byte) error {
	for _, k := range keys {
		if len(k) > 8 {
			if err := turns.Delete(k[8:]); err != nil {
				return err
			}
		}
		if err := times.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// History describes the history.
func (s *Store) History() api.HistoryInfo {
	h := s.hist
	i := api.HistoryInfo{Path: h.path, MaxAgeMS: h.keep.Age.Milliseconds(), MaxTurns: h.keep.Count, MaxBytes: h.keep.Size}
	err := h.view(func(turns, times *bbolt.Bucket) error {
		i.Turns, i.Bytes = measure(turns, times)
		if k, _ := times.Cursor().First(); k != nil {
			at := when(k).UTC()
			i.Oldest = &at
		}
		return nil
	})
	i.Problem = h.told()
	if err != nil && i.Problem == "" {
		i.Problem = err.Error()
	}
	if fi, err := os.Lstat(h.path); err == nil {
		i.FileSize = fi.Size()
	}
	return i
}
