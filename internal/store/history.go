package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"pinfold.dev/containment"
)

// The buckets: records by turn id; the records' sizes by time of their last
// saving, so that the newest and the oldest are found without reading all; and
// what is to be known of the file.
var (
	byTurn  = []byte("turns")
	byTime  = []byte("by_time")
	about   = []byte("about")
	version = []byte("schema")
)

// historySchema is the version of the file's format.
const historySchema = 1

// history is the file of turns that are over. What a service holds must be
// endable without it, so a file that cannot be used is an error of those who
// use it, not of who opens the store.
type history struct {
	path string
	keep Keep

	mu     sync.RWMutex // held for writing while db is replaced
	db     *bbolt.DB    // nil: it cannot even be read
	why    error        // nothing can be written; nil: all is well
	file   os.FileInfo  // what is open; nil: nothing
	note   string
	failed string // why the last write failed; empty: it did not
	closed bool

	queueMu sync.Mutex
	queue   []*entry
	writing sync.Mutex
	puts    int         // below writing, since the bounds were looked at
	timer   *time.Timer // below writing: of what is too old
}

// entry is a turn on its way into the file.
type entry struct {
	id   string
	when []byte
	data []byte
	done bool // below writing
	err  error
}

func (h *history) told() string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return cmp.Or(h.note, h.failed)
}

// timeKey orders by the time the record was last saved, then by id.
func timeKey(r containment.Record) []byte {
	k := binary.BigEndian.AppendUint64(nil, uint64(r.SavedAt.UnixNano()))
	return append(k, r.Turn.ID...)
}

// put writes a turn. Many at once share one transaction: whoever is first writes
// for those who have come meanwhile.
func (h *history) put(r containment.Record) error {
	b, err := seal(r)
	if err != nil {
		return err
	}
	e := &entry{id: r.Turn.ID, when: timeKey(r), data: b}
	h.queueMu.Lock()
	h.queue = append(h.queue, e)
	h.queueMu.Unlock()
	h.writing.Lock()
	defer h.writing.Unlock()
	if !e.done {
		h.writeQueue()
	}
	return e.err
}

// writeQueue writes all that wait; writing is held.
func (h *history) writeQueue() {
	h.queueMu.Lock()
	batch := h.queue
	h.queue = nil
	h.queueMu.Unlock()
	err := h.update(func(turns, times *bbolt.Bucket) error {
		for _, e := range batch {
			if err := e.write(turns, times); err != nil {
				return err
			}
		}
		return nil
	}, func(turns, _ *bbolt.Bucket) error {
		for _, e := range batch {
			if !bytes.Equal(turns.Get([]byte(e.id)), e.data) {
				return fmt.Errorf("%w: what was written is not there", errDamaged)
			}
		}
		return nil
	})
	h.mu.Lock()
	if h.failed = ""; err != nil {
		err = fmt.Errorf("write history: %w", err)
		h.failed = err.Error()
	}
	h.mu.Unlock()
	for _, e := range batch {
		e.done, e.err = true, err
	}
	if h.puts += len(batch); err == nil && (h.puts >= trimEvery || h.timer == nil) {
		h.puts = 0
		h.trim()
	}
}

func (e *entry) write(turns, times *bbolt.Bucket) error {
	if old := turns.Get([]byte(e.id)); old != nil {
		var was containment.Record
		if unseal(old, &was) == nil {
			if err := times.Delete(timeKey(was)); err != nil {
				return err
			}
		}
	}
	if err := turns.Put([]byte(e.id), e.data); err != nil {
		return err
	}
	return times.Put(e.when, binary.BigEndian.AppendUint64(nil, uint64(len(e.data))))
}

// update writes, and sees whether that is there; writing is held. A file that
// turns out to be damaged is replaced: the next one who writes has a new one.
func (h *history) update(f, see func(turns, times *bbolt.Bucket) error) error {
	if err := h.revive(); err != nil {
		return err
	}
	h.mu.RLock()
	err := guarded(func() error {
		return h.db.Update(func(tx *bbolt.Tx) error {
			turns, times := tx.Bucket(byTurn), tx.Bucket(byTime)
			if turns == nil || times == nil {
				return fmt.Errorf("%w: it has no turns", errDamaged)
			}
			return f(turns, times)
		})
	})
	h.mu.RUnlock()
	if err == nil {
		err = h.view(see)
	} else {
		h.mapAgain()
	}
	if errors.Is(err, errDamaged) {
		h.mu.Lock()
		defer h.mu.Unlock()
		err = errors.Join(err, h.setAside(err))
	}
	return err
}

// mapAgain opens the file again where a write that failed has left it unmapped, so
// that it can at least be read; writing is held.
func (h *history) mapAgain() {
	if !errors.Is(h.view(func(_, _ *bbolt.Bucket) error { return nil }), bbolterrors.ErrInvalidMapping) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.closeFile()
	h.open()
}

// view reads, what there is.
func (h *history) view(f func(turns, times *bbolt.Bucket) error) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.db == nil {
		return nil
	}
	return guarded(func() error {
		return h.db.View(func(tx *bbolt.Tx) error {
			turns, times := tx.Bucket(byTurn), tx.Bucket(byTime)
			if turns == nil || times == nil {
				return nil
			}
			return f(turns, times)
		})
	})
}

func (h *history) get(turn string) (r containment.Record, ok bool, err error) {
	err = h.view(func(turns, _ *bbolt.Bucket) error {
		b := turns.Get([]byte(turn))
		if b == nil {
			return nil
		}
		ok = true
		return readEntry(b, &r)
	})
	if err != nil {
		return r, false, fmt.Errorf("read history of turn %s: %w", turn, err)
	}
	return r, ok, nil
}

// readEntry reads what the history has of a turn.
func readEntry(b []byte, r *containment.Record) error {
	if err := unseal(b, r); err != nil {
		return err
	}
	if r.Schema > containment.RecordSchema {
		return fmt.Errorf("it has schema %d, this service knows %d: %w", r.Schema, containment.RecordSchema, containment.ErrNewer)
	}
	return nil
}

func (h *history) list(owner *uint32, limit int) (out []containment.Record, err error) {
	err = h.view(func(turns, times *bbolt.Bucket) error {
		c := times.Cursor()
		for k, _ := c.Last(); k != nil && len(out) < limit; k, _ = c.Prev() {
			var r containment.Record
			if len(k) < 8 || readEntry(turns.Get(k[8:]), &r) != nil || string(timeKey(r)) != string(k) {
				continue // one bad entry hides no other
			}
			if owner == nil || *owner == r.Turn.Owner {
				out = append(out, r)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return out, nil
}

func (h *history) close() error {
	h.writing.Lock()
	defer h.writing.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.closeFile()
}

// closeFile closes what is open; mu is held.
func (h *history) closeFile() error {
	if h.db == nil {
		return nil
	}
	db := h.db
	h.db = nil
	return guarded(db.Close)
}
