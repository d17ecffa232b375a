package store

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/internal/ownfile"
)

// reserve is a file that keeps room for the records of endings: where there is
// none left it is given up, so that a turn that was ended is not found open by
// the next service.
type reserve struct {
	path string
	mu   sync.Mutex
	have bool
	next time.Time // when it is tried to have it again
}

const (
	reserveSize  = 64 << 10
	reserveAgain = 5 * time.Second
)

func openReserve(runtimeDir string) *reserve {
	r := &reserve{path: filepath.Join(runtimeDir, "reserve")}
	r.refill()
	return r
}

// refill has the room again, where there is some.
func (r *reserve) refill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.have || time.Now().Before(r.next) {
		return
	}
	f, err := ownfile.Create(r.path)
	if err == nil {
		_, err = f.Write(make([]byte, reserveSize))
		err = errors.Join(err, f.Close())
	}
	if r.have = err == nil; !r.have {
		_ = os.Remove(r.path)
		r.next = time.Now().Add(reserveAgain)
	}
}

// spend gives the room up, if err says that there is none; then what failed may
// be tried again.
func (r *reserve) spend(err error) bool {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have, r.next = false, time.Now().Add(reserveAgain)
	return os.Remove(r.path) == nil
}
