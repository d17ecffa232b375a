package server

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"pinfold.dev/internal/sys"
)

// rights are the descriptors that came in on a connection and that no request
// has taken yet. Whatever nobody takes is closed.
//
// Which request do they belong to? The reader is ahead of the requests: the
// next one's first byte may be read while this one's answer is on its way. But
// a client sends a request after it has seen the whole answer to the one
// before, and net/http reads a request to its end before it answers. So what
// came before the last write of an answer is this request's, and what came
// later is the next one's.
type rights struct {
	share *share

	mu     sync.Mutex
	fds    []int
	cut    int // fds[:cut] came before the last write
	lost   int // reads that brought some that could not be kept
	old    int // of those, before the last write
	closed bool
}

// add takes in what one read brought along. Lost tells that the kernel had
// more than there was room for, and has closed the rest.
func (r *rights) add(fds []int, lost bool) {
	r.mu.Lock()
	if len(fds) > 0 && !r.closed && len(r.fds)+len(fds) <= maxFDs && r.share.hold(len(fds)) {
		r.fds = append(r.fds, fds...)
		fds = nil
	}
	if lost || len(fds) > 0 {
		r.lost++
	}
	r.mu.Unlock()
	closeAll(fds)
}

// waiting tells whether some are there that no request has taken.
func (r *rights) waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.fds) > 0
}

// mark says that an answer is being written.
func (r *rights) mark() {
	r.mu.Lock()
	r.cut, r.old = len(r.fds), r.lost
	r.mu.Unlock()
}

// answered closes what the request that was answered had left.
func (r *rights) answered() {
	r.mu.Lock()
	fds := slices.Clone(r.fds[:r.cut])
	r.fds = slices.Delete(r.fds, 0, r.cut)
	r.lost -= r.old
	r.cut, r.old = 0, 0
	r.mu.Unlock()
	r.drop(fds)
}

// take hands everything to a request, with whether something is missing.
func (r *rights) take() (fds []int, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.empty()
}

func (r *rights) empty() (fds []int, lost bool) {
	fds, lost = r.fds, r.lost > 0
	r.fds, r.cut, r.lost, r.old = nil, 0, 0, 0
	return fds, lost
}

// close closes everything, and whatever still comes. Closing can take as long
// as the file's server likes (FUSE, a lingering socket), so nobody waits for
// it; the party's share is given back when it is done.
func (r *rights) close() {
	r.mu.Lock()
	fds, _ := r.empty()
	r.closed = true
	r.mu.Unlock()
	if len(fds) > 0 {
		go r.drop(fds)
	}
}

// drop closes descriptors that were taken and gives them back to the share.
func (r *rights) drop(fds []int) {
	if len(fds) > 0 {
		closeAll(fds)
		r.share.free(len(fds))
	}
}

// files makes files of taken descriptors; the caller calls done once, also
// after an error.
func (r *rights) files(fds []int) (files []*os.File, done func(), err error) {
	var made []*os.File
	done = func() {
		for _, f := range made {
			f.Close()
		}
		if len(fds) > 0 {
			r.share.free(len(fds))
		}
	}
	for i, fd := range fds {
		f, err := sys.PlainFile(fd, fmt.Sprintf("descriptor %d", i))
		if err != nil {
			closeAll(fds[i+1:])
			return nil, done, fmt.Errorf("take over descriptor %d: %w", i, err)
		}
		made = append(made, f)
	}
	return made, done, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = sys.Close(fd)
	}
}
