package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
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
	db   *bbolt.DB
	keep int
	puts atomic.Uint64
}

// trimEvery is how many turns are added between looks at the bound: counting
// the keys reads the whole index.
const trimEvery = 64

// lockWait is how long to wait for another service to let go of the file.
const lockWait = 3 * time.Second

func openHistory(path string) (*history, error) {
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

func (h *history) close() error { return h.db.Close() }

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
	err = h.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(byTurn).Get([]byte(turn))
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
	err = h.db.View(func(tx *bbolt.Tx) error {
		turns, c := tx.Bucket(byTurn), tx.Bucket(byTime).Cursor()
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
