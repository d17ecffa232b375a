package reaper

import (
	"os"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
)

// source is what the loop waits for.
type source interface {
	ready(k *keeper, events uint32)
}

// poll is an epoll instance. A registration has a token, never used twice, so
// that an event that was fetched before a descriptor was closed cannot reach
// its successor.
type poll struct {
	fd     int
	next   int64
	tokens map[int]int64 // by descriptor
	what   map[int64]source
}

func (p *poll) open() (err error) {
	p.tokens, p.what = make(map[int]int64), make(map[int64]source)
	p.fd, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	return os.NewSyscallError("epoll_create1", err)
}

func (p *poll) add(fd int, events uint32, s source) error {
	p.next++
	ev := event(events, p.next)
	if err := syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.tokens[fd], p.what[p.next] = p.next, s
	return nil
}

func (p *poll) change(fd int, events uint32) {
	if token, ok := p.tokens[fd]; ok {
		ev := event(events, token)
		_ = syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_MOD, fd, &ev)
	}
}

// remove must come before the descriptor is closed: a child that has not
// executed yet has a copy, and closing alone would leave the registration.
func (p *poll) remove(fd int) {
	if token, ok := p.tokens[fd]; ok {
		_ = syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_DEL, fd, &syscall.EpollEvent{})
		delete(p.tokens, fd)
		delete(p.what, token)
	}
}

func event(events uint32, token int64) syscall.EpollEvent {
	return syscall.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
}

func (p *poll) source(ev *syscall.EpollEvent) source {
	return p.what[int64(uint32(ev.Fd))|int64(ev.Pad)<<32]
}

// unclaimedTime is how long a keeper without a turn's cgroup waits for a
// service: one that was killed while it began a turn may have left no record
// by which the next would find its keeper.
const unclaimedTime = 5 * time.Second

// loop serves until it is told to quit, or is nobody's.
func (k *keeper) loop() {
	var events [32]syscall.EpollEvent
	timeout, claimed := 0, time.Now()
	for {
		n, err := syscall.EpollWait(k.poll.fd, events[:], timeout)
		if err != nil && err != syscall.EINTR {
			logLine("epoll_wait: ", err.Error())
			return
		}
		if timeout = k.turn(events[:max(n, 0)]); k.quit {
			return
		}
		switch {
		case k.work != nil:
			continue // it lives as long as its turn
		case len(k.conns) > 0:
			claimed = time.Now()
		case time.Since(claimed) > unclaimedTime:
			k.leave()
			return
		}
		if timeout < 0 {
			timeout = int(time.Second.Milliseconds())
		}
	}
}

// leave removes what a turn that did not begin has left. Its directory stays
// where there is a record in it; half a record is none.
func (k *keeper) leave() {
	fault.Point("keeper.leaving")
	for _, name := range []string{"keeper.sock", "journal.jsonl", "keeper.log", "record.json.new"} {
		_ = syscall.Unlink(k.opts.Dir + "/" + name)
	}
	_ = syscall.Rmdir(k.opts.Dir)
}

// turn handles events and says how long the loop may wait for the next, in ms.
// Without events something is due that had to wait.
func (k *keeper) turn(events []syscall.EpollEvent) (timeout int) {
	for i := range events {
		if s := k.poll.source(&events[i]); s != nil {
			guard("loop", func() { s.ready(k, events[i].Events) })
		}
	}
	switch {
	case k.reapDue:
		guard("reap", k.reap)
	case len(events) > 0:
	case k.sweepPause() > 0:
		guard("sweep", k.sweepAgain)
	case k.garbage.pause() > 0:
		k.buf = nil
		k.garbage.collect()
	}
	if len(k.endings) > 0 {
		guard("end", k.runEndings)
	}
	if len(k.censuses) > 0 {
		guard("census", k.runCensuses)
	}
	switch {
	case k.reapDue:
		return 0
	case len(k.endings) > 0 && k.scan > 0:
		return 0
	case len(k.endings) > 0:
		return endPause
	case len(k.censuses) > 0:
		return censusPause
	case k.sweepPause() > 0:
		return k.sweepPause()
	}
	return k.garbage.pause()
}
