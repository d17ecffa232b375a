package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"pinfold.dev/containment"
)

// keptTurns bounds the history; the oldest go first.
const keptTurns = 10_000

// The buckets: records by turn id, and turn ids by time of their ending, so
// that the newest and the oldest are found without reading all.
var (
	byTurn = []byte("turns")
	byTime = []byte("by_time")
)

type history struct {
	db   *bbolt.DB // nil: it could not even be read
	why  error     // nothing can be written
	keep int
	puts atomic.Uint64
}

// trimEvery is how many turns are added between looks at the bound: counting
// the keys reads the whole index.
const trimEvery = 64

// lockWait is how long to wait for another service to let go of the file.
const lockWait = 3 * time.Second

// openHistory opens the file. What a service holds must be endable without it:
// where nothing can be written it is read, if there is one, and every put fails;
// one that is damaged is set aside. The note says so.
func openHistory(path string) (h *history, note string, err error) {
	h, err = openWritable(path)
	switch {
	case errors.Is(err, syscall.EROFS):
		h = &history{keep: keptTurns, why: err}
		if db, rerr := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true}); rerr == nil {
			h.db = db
		}
		return h, "the history cannot be written: turns that end stay in the runtime directory", nil
	case errors.Is(err, bbolterrors.ErrInvalid) || errors.Is(err, bbolterrors.ErrChecksum):
		aside := fmt.Sprintf("%s.damaged-%d", path, time.Now().Unix())
		if rerr := os.Rename(path, aside); rerr != nil {
			return nil, "", errors.Join(err, rerr)
		}
		note = fmt.Sprintf("the history was damaged (%v); it begins anew, the old one is %s", err, aside)
		h, err = openWritable(path)
	}
	return h, note, err
}

func openWritable(path string) (*history, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open history %s: another service has it open", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open history %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{byTurn, byTime} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("prepare history %s: %w", path, err)
	}
	return &history{db: db, keep: keptTurns}, nil
}

func (h *history) close() error {
	if h.db == nil {
		return nil
	}
	return h.db.Close()
}

// view reads, what there is.
func (h *history) view(f func(turns, times *bbolt.Bucket) error) error {
	if h.db == nil {
		return nil
	}
	return h.db.View(func(tx *bbolt.Tx) error {
		turns, times := tx.Bucket(byTurn), tx.Bucket(byTime)
		if turns == nil || times == nil {
			return nil
		}
		return f(turns, times)
	})
}

// timeKey orders by the time the record was last saved, then by id.
func timeKey(r containment.Record) []byte {
	k := binary.BigEndian.AppendUint64(nil, uint64(r.SavedAt.UnixNano()))
	return append(k, r.Turn.ID...)
}

func (h *history) put(r containment.Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode history: %w", err)
	}
	if h.why != nil {
		return fmt.Errorf("write history: %w", h.why)
	}
	look := h.puts.Add(1)%trimEvery == 0
	err = h.db.Batch(func(tx *bbolt.Tx) error { // many endings at once share one sync
		turns, times := tx.Bucket(byTurn), tx.Bucket(byTime)
		if old := turns.Get([]byte(r.Turn.ID)); old != nil {
			var was containment.Record
			if json.Unmarshal(old, &was) == nil {
				if err := times.Delete(timeKey(was)); err != nil {
					return err
				}
			}
		}
		if err := turns.Put([]byte(r.Turn.ID), b); err != nil {
			return err
		}
		if err := times.Put(timeKey(r), nil); err != nil {
			return err
		}
		if !look {
			return nil
		}
		return h.trim(turns, times)
	})
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// trim drops the oldest turns above the bound.
func (h *history) trim(turns, times *bbolt.Bucket) error {
	for n := times.Stats().KeyN; n > h.keep; n-- {
		k, _ := times.Cursor().First()
		if k == nil {
			return nil
		}
		if err := turns.Delete(k[8:]); err != nil {
			return err
		}
		if err := times.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) get(turn string) (r containment.Record, ok bool, err error) {
	err = h.view(func(turns, _ *bbolt.Bucket) error {
		b := turns.Get([]byte(turn))
		if b == nil {
			return nil
		}
		ok = true
		return json.Unmarshal(b, &r)
	})
	if err != nil {
		return r, false, fmt.Errorf("read history of turn %s: %w", turn, err)
	}
	return r, ok, nil
}

func (h *history) list(owner *uint32, limit int) (out []containment.Record, err error) {
	err = h.view(func(turns, times *bbolt.Bucket) error {
		c := times.Cursor()
		for k, _ := c.Last(); k != nil && len(out) < limit; k, _ = c.Prev() {
			var r containment.Record
			if json.Unmarshal(turns.Get(k[8:]), &r) != nil {
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
