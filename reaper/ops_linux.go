package reaper

import (
	"errors"
	"os"
	"syscall"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

// handle does what a message asks for. The descriptors that came with it are
// closed by the caller afterwards.
func (k *keeper) handle(c *conn, m *wire.Message, fds []int) {
	if !c.greeted && m.Op != wire.OpHello {
		k.refuse(c, m.ID, refusal(wire.ErrProtocol, "hello comes first"))
		c.close(k)
		return
	}
	answered := false
	defer func() {
		if v := recover(); v != nil {
			logLine("panic in ", string(m.Op), ": ", panicText(v), " at ", panicPlace())
			if !answered {
				k.refuse(c, m.ID, refusal(wire.ErrInternal, "panic in the keeper; its log has more"))
			}
		}
	}()
	k.dispatch(c, m, fds)
	answered = true
}

func (k *keeper) dispatch(c *conn, m *wire.Message, fds []int) {
	var err *wire.Error
	switch {
	case m.Op == wire.OpHello && m.Hello != nil:
		k.hello(c, m.ID, m.Hello)
		return
	case m.Op == wire.OpHold && m.Hold != nil:
		err = k.hold(m.Hold)
	case m.Op == wire.OpLaunch && m.Launch != nil:
		if err = k.launch(question{c, m.ID}, m.Launch, fds); err == nil {
			return // answered when it is decided
		}
	case m.Op == wire.OpSignal && m.Signal != nil:
		err = k.signal(m.Signal)
	case m.Op == wire.OpInput && m.Input != nil:
		if err = k.input(question{c, m.ID}, m.Input); err == nil {
			return // answered when it is taken
		}
	case m.Op == wire.OpResize && m.Resize != nil:
		err = k.resize(m.Resize)
	case m.Op == wire.OpCloseTTY && m.Input != nil:
		err = k.hangUp(m.Input)
	case m.Op == wire.OpFence:
		k.fenced = true
		fault.Point("fence.taken")
		k.fences = append(k.fences, question{c, m.ID})
		k.answerFences()
		return
	case m.Op == wire.OpCensus:
		k.censuses = append(k.censuses, newCensus(question{c, m.ID}))
		return // the loop takes it before it waits again
	case m.Op == wire.OpEnd && m.End != nil:
		if err = k.endChildren(question{c, m.ID}, m.End); err == nil {
			return // answered when it is over
		}
	case m.Op == wire.OpQuit:
		k.quitNow(c, m.ID)
		return
	default:
		err = refusal(wire.ErrProtocol, "unknown operation or no body: "+string(m.Op))
	}
	if err != nil {
		k.refuse(c, m.ID, err)
		return
	}
	k.send(c, wire.Message{ID: m.ID}, nil)
}

func (k *keeper) refuse(c *conn, id uint64, err *wire.Error) {
	k.send(c, wire.Message{ID: id, Error: err}, nil)
}

// Protocol is the version of internal/wire's protocol that this keeper speaks.
const Protocol = 4

// hello checks whose service it is, and tells it everything. The first nonce
// ever is the turn's.
func (k *keeper) hello(c *conn, id uint64, h *wire.Hello) {
	why := ""
	switch {
	case h.Version < 1:
		why = "no version"
	case h.Turn != k.opts.Turn:
		why = "another turn's keeper"
	case h.Nonce == "":
		why = "no nonce"
	case k.nonce != "" && k.nonce != h.Nonce:
		why = "wrong nonce"
	case h.Skip < 0:
		why = "negative skip"
	}
	if why != "" {
		k.refuse(c, id, refusal(wire.ErrProtocol, "hello refused: "+why))
		c.close(k)
		return
	}
	k.nonce, c.greeted = h.Nonce, true
	answer := wire.Hello{
		Version: Protocol, Turn: k.opts.Turn, Nonce: k.nonce, PID: os.Getpid(), Build: k.opts.Build,
		Fenced: k.fenced, Held: k.work != nil, Dropped: k.dropped, OutputMaxed: k.outputMaxed,
	}
	fds := k.listProcesses(&answer, h.Skip)
	k.send(c, wire.Message{ID: id, Hello: &answer}, fds)
	fault.Point("hello.answered")
}

// helloBytes bounds the list in one answer, well below wire.MaxFrame even when
// every byte is escaped.
const helloBytes = wire.MaxFrame / 8

// listProcesses fills in the processes from skip on, as many as one frame
// holds, and returns the handles of those alive.
func (k *keeper) listProcesses(h *wire.Hello, skip int) (fds []int) {
	size := 0
	for i := min(skip, len(k.order)); i < len(k.order); i++ {
		p := k.order[i]
		size += p.size()
		if alive := p.pidfd >= 0; len(fds) == wire.MaxFDs && alive || size > helloBytes && len(h.Processes) > 0 {
			h.More = true
			return fds
		}
		w := wire.Process{Started: p.started, Exit: p.exit, HasFD: p.pidfd >= 0}
		if w.HasFD {
			fds = append(fds, p.pidfd)
		}
		h.Processes = append(h.Processes, w)
	}
	return fds
}

// signal goes to a launched process through its handle. Nobody but us reaps it,
// so its number is safe too, where there is no pidfd_send_signal.
func (k *keeper) signal(s *wire.Signal) *wire.Error {
	if s.Foreground {
		return k.signalForeground(s)
	}
	p := k.procs[s.Process]
	if p == nil || p.deciding() || p.pidfd < 0 {
		return refusal(wire.ErrNotFound, "no such process, or it has ended: "+s.Process)
	}
	sig := syscall.Signal(s.Number)
	err := sys.PidfdSendSignal(p.pidfd, sig, 0)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) { // a sandbox may say either
		err = sys.SignalChild(p.started.PID, sig)
	}
	switch {
	case errors.Is(err, syscall.ESRCH):
		return refusal(wire.ErrNotFound, "process has ended: "+s.Process)
	case errors.Is(err, syscall.EINVAL):
		return refusal(wire.ErrProtocol, "no such signal: "+itoa(s.Number))
	case err != nil:
		return refusalOf(wire.ErrInternal, "signal "+s.Process, "", err)
	}
	return nil
}

// answerFences answers once no launch is undecided: nothing starts any more.
func (k *keeper) answerFences() {
	if k.inflight > 0 {
		return
	}
	for _, q := range k.fences {
		k.send(q.c, wire.Message{ID: q.id, Fenced: &wire.Fenced{Launched: k.launched}}, nil)
		fault.Point("fence.told")
	}
	k.fences = nil
}

// quitNow answers, and has the loop end. The peer gets a moment to read.
func (k *keeper) quitNow(c *conn, id uint64) {
	fault.Point("quit.taken")
	for k.reapReady(reapBatch) == reapBatch { // what has ended is written before
	}
	k.closeStdio()
	k.send(c, wire.Message{ID: id}, nil)
	for len(c.out) > 0 && !c.closed && sys.WaitWritable(c.fd, 200) {
		c.flush(k)
	}
	fault.Point("quit.told")
	k.quit = true
}

// sizeOf is about how many bytes a request brought.
func sizeOf(m *wire.Message) int {
	n := 256
	if m.Input != nil {
		n += 3 * len(m.Input.Data) // as text, and decoded
	}
	if l := m.Launch; l != nil {
		for _, list := range [][]string{l.Argv, l.Env} {
			for _, s := range list {
				n += 16 + len(s)
			}
		}
	}
	return n
}
