package server

import (
	"context"
	"sync"
)

// What one party can use up. A party is a uid; what runs inside a turn is a
// party of its own, so that it cannot shut out the gateway that shares its uid.
const (
	maxConnsUser = 256
	maxConnsTurn = 64   // also of peers that nobody can place
	maxConnsAll  = 4096 // root outside a turn is not counted
	maxFDs       = 64   // descriptors of one request
	maxFDsParty  = 512  // descriptors held for a party, of all its requests
	maxHeavy     = 8    // large bodies and long lists at a time
)

// party is the key of what is shared out.
type party struct {
	uid  uint32
	turn string // "?" for a peer that nobody can place
}

func partyOf(p Peer) party {
	if !p.Known {
		return party{p.UID, "?"}
	}
	return party{p.UID, p.InTurn}
}

func (k party) conns() int {
	if k.turn == "" {
		return maxConnsUser
	}
	return maxConnsTurn
}

func (k party) counted() bool { return k != party{} }

// limits is the account of all parties that have something in use.
type limits struct {
	mu    sync.Mutex
	by    map[party]*share
	total int
}

// share is what one party has in use.
type share struct {
	of    *limits
	key   party
	conns int
	fds   int
	heavy chan struct{}
}

// connect takes in a connection; nil means that there are too many.
func (l *limits) connect(k party) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.by[k]
	if s == nil {
		s = &share{of: l, key: k, heavy: make(chan struct{}, maxHeavy)}
	}
	if s.conns >= k.conns() || (k.counted() && l.total >= maxConnsAll) {
		return nil
	}
	if l.by == nil {
		l.by = map[party]*share{}
	}
	l.by[k] = s
	s.conns++
	if k.counted() {
		l.total++
	}
	return s
}

// disconnect gives a connection back.
func (s *share) disconnect() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.conns--
	if s.key.counted() {
		s.of.total--
	}
	s.tidy()
}

// hold takes in n descriptors and tells whether the party may have them.
func (s *share) hold(n int) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.fds+n > maxFDsParty {
		return false
	}
	s.fds += n
	return true
}

// free gives n descriptors back, once they are closed.
func (s *share) free(n int) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.fds -= n
	s.tidy()
}

// tidy forgets a party that has nothing left; the lock is held.
func (s *share) tidy() {
	if s.conns == 0 && s.fds == 0 && s.of.by[s.key] == s {
		delete(s.of.by, s.key)
	}
}

// begin waits for leave to use much memory; the caller ends it with done.
func (s *share) begin(ctx context.Context) error {
	select {
	case s.heavy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *share) done() { <-s.heavy }
