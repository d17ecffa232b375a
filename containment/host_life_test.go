package containment

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// memLife is the part of a memHold that freezes and looks.
type memLife struct {
	frozen  bool
	freezes int
	err     error // of Freeze
	usage   api.Usage
	served  func(context.Context) ([]api.Served, error) // set up before there is a turn
	// Usage hangs until stuck is closed; stuckOnce lets later calls pass.
	stuck     chan struct{}
	stuckOnce bool
}

func (x *memHold) Freeze(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.life.freezes++
	if x.life.err != nil {
		return x.life.err
	}
	x.life.frozen = true
	return nil
}

func (x *memHold) Thaw(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.life.frozen = false
	return nil
}

func (x *memHold) isFrozen() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.life.frozen
}

func (x *memHold) EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (Killed, error) {
	if x.slow.unseen {
		return Killed{}, nil
	}
	err := x.EndProcess(ctx, process, stop, grace, bound)
	return Killed{EmptyAt: time.Now()}, err
}

func (x *memHold) Targets(ctx context.Context) ([]api.Target, error) { return nil, nil }

func (x *memHold) Uses(ctx context.Context, dir string) ([]api.Use, []string, error) {
	return nil, nil, nil
}

func (x *memHold) Servers(ctx context.Context) ([]api.Server, []api.Served, error) {
	if x.life.served == nil {
		return nil, nil, nil
	}
	served, err := x.life.served(ctx)
	return nil, served, err
}

func (x *memHold) Usage() api.Usage {
	x.mu.Lock()
	defer x.mu.Unlock()
	if stuck := x.life.stuck; stuck != nil && !x.life.stuckOnce {
		x.mu.Unlock()
		<-stuck
		x.mu.Lock()
	}
	u := x.life.usage
	if u == (api.Usage{}) {
		u = api.NoUsage()
	}
	if x.slow.usage != nil {
		x.mu.Unlock()
		x.slow.usage()
		x.mu.Lock()
	}
	return u
}

func (x *memHold) burn(cpu time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.life.usage == (api.Usage{}) {
		x.life.usage = api.NoUsage()
		x.life.usage.CPUUsec = 0
	}
	x.life.usage.CPUUsec += cpu.Microseconds()
}

func (x *memHold) read(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.life.usage.IOReadBytes = max(0, x.life.usage.IOReadBytes) + n
	x.life.usage.IOWriteBytes = max(0, x.life.usage.IOWriteBytes)
}

// memWatch is the processes that a memHost knows of, by number.
type memWatch struct {
	mu    sync.Mutex
	alive map[int]bool
	gone  map[int]map[int]func()
	next  int
	doubt bool // identities cannot be verified
}

func (w *memWatch) start(pid int) *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive == nil {
		w.alive, w.gone = map[int]bool{}, map[int]map[int]func(){}
	}
	w.alive[pid] = true
	f, err := os.Open(os.DevNull)
	if err != nil {
		panic(err)
	}
	return f
}

func (w *memWatch) exit(pid int) {
	w.mu.Lock()
	fs := w.gone[pid]
	w.alive[pid] = false
	delete(w.gone, pid)
	w.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

func (w *memWatch) watchers(pid int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.gone[pid])
}

// caller is a process that asks; Watch is told only a descriptor, so the host
// remembers who it is.
func (h *memHost) caller(pid int) Caller {
	return Caller{UID: 0, PID: pid, Admin: true, Process: func() (*os.File, error) {
		f := h.watch.start(pid)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asking = pid
		return f, nil
	}}
}

func (h *memHost) Watch(c Client, gone func()) (api.Identity, func(), api.Verdict, error) {
	pid := c.Recorded.PID
	if c.FD >= 0 {
		h.mu.Lock()
		pid = h.asking
		h.mu.Unlock()
	}
	w := &h.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.doubt:
		return api.Identity{}, nil, api.VerdictUnverifiable, errors.New("no /proc")
	case !w.alive[pid]:
		return api.Identity{}, nil, api.VerdictGone, nil
	}
	if w.gone[pid] == nil {
		w.gone[pid] = map[int]func(){}
	}
	w.next++
	n := w.next
	w.gone[pid][n] = gone
	stop := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.gone[pid], n)
	}
	return api.Identity{PID: pid}, stop, api.VerdictOwned, nil
}

// endings is how many processes EndProcess was asked to end.
func (x *memHold) endings() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.ended)
}

// killed is how often Kill was called.
func (x *memHold) killed() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.kills
}
