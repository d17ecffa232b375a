package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/ownfile"
)

// Bounds of consumers.
const (
	consumersUser = 100
	consumersAll  = 10000
	maxAcks       = 1 << 20             // bytes of one user's file
	unused        = 30 * 24 * time.Hour // after which another may take its place
)

// acked is how far a consumer is, and since when.
type acked struct {
	Seq int64     `json:"seq"`
	At  time.Time `json:"at"`
}

// acks is how far all consumers are: a file for each user.
type acks struct {
	dir string
	mu  sync.Mutex
	by  map[uint32]*user
	all int
}

type user struct {
	write sync.Mutex // one write at a time; it waits for the disk
	bad   error      // what it had cannot be read
	at    map[string]acked
}

func openAcks(dir string) (*acks, error) {
	a := &acks{dir: dir, by: map[uint32]*user{}}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	} else if err != nil {
		return nil, fmt.Errorf("read what was acknowledged: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		uid, err := strconv.ParseUint(name, 10, 32)
		if !ok || err != nil {
			continue
		}
		u := a.user(uint32(uid))
		b, err := ownfile.Read(filepath.Join(dir, e.Name()), maxAcks)
		if err == nil {
			err = json.Unmarshal(b, &u.at)
		}
		if err != nil {
			u.bad = api.Errorf(api.CodeUnavailable, "read what uid %d has acknowledged: %v", uid, err).
				WithRemedy("remove events/acks/%s of the state directory: all is new to its consumers then", e.Name())
		}
		if u.at == nil {
			u.at = map[string]acked{}
		}
		a.all += len(u.at)
	}
	return a, nil
}

// user finds one, or makes it.
func (a *acks) user(uid uint32) *user {
	if a.by[uid] == nil {
		a.by[uid] = &user{at: map[string]acked{}}
	}
	return a.by[uid]
}

// highest is the newest number that anybody has acknowledged.
func (a *acks) highest() (n int64) {
	for _, u := range a.by {
		for _, c := range u.at {
			n = max(n, c.Seq)
		}
	}
	return n
}

// Acked is how far a consumer is; 0 for a new one.
func (l *Log) Acked(owner uint32, consumer string) (int64, error) {
	a := l.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.by[owner]
	if u == nil {
		return 0, nil
	}
	return u.at[consumer].Seq, u.bad
}

// Ack notes durably that a consumer has dealt with everything up to seq; repeated:
// it had before. An error tells that nothing is known, also not to later calls.
func (l *Log) Ack(owner uint32, consumer string, seq int64) (now int64, repeated bool, err error) {
	a := l.acks
	a.mu.Lock()
	u := a.user(owner)
	a.mu.Unlock()
	u.write.Lock()
	defer u.write.Unlock()
	next, grown, err := a.with(u, owner, consumer, seq)
	if err != nil || next == nil {
		return u.at[consumer].Seq, err == nil, err
	}
	if err = a.save(owner, next); err != nil {
		err = api.Errorf(api.CodeUnavailable, "store the acknowledgement: %v", err).
			WithRemedy("ask again; `pinfold doctor` tells whether the state directory can be written")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.all -= grown
		return 0, false, err
	}
	u.at = next
	return seq, false, nil
}

// with is what a user's consumers come to; nil: nothing changes. The user's write
// lock is held. The place of a new one is taken.
func (a *acks) with(u *user, owner uint32, consumer string, seq int64) (next map[string]acked, grown int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u.bad != nil {
		return nil, 0, u.bad
	}
	was, known := u.at[consumer]
	if known && was.Seq >= seq {
		return nil, 0, nil
	}
	next = maps.Clone(u.at)
	next[consumer] = acked{seq, time.Now().UTC()}
	if known {
		return next, 0, nil
	}
	grown = 1
	for name, c := range u.at {
		if len(u.at) >= consumersUser && time.Since(c.At) > unused {
			delete(next, name)
			grown--
		}
	}
	if len(next) > consumersUser || a.all+grown > consumersAll {
		return nil, 0, api.Errorf(api.CodeTooLarge, "uid %d has %d consumers, all have %d: there is no room for %q", owner, len(u.at), a.all, consumer).
			WithRemedy("use fewer names: one that has acknowledged nothing for 30 days makes room")
	}
	a.all += grown
	return next, grown, nil
}

// save replaces a user's file, durably.
func (a *acks) save(owner uint32, all map[string]acked) error {
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(a.dir, strconv.FormatUint(uint64(owner), 10)+".json")
	if err := ownfile.Replace(path, append(b, '\n'), true); err != nil {
		return err
	}
	d, err := os.Open(a.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
