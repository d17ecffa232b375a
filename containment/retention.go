package containment

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// How output that nobody has acknowledged goes.
const (
	sweepPause  = 30 * time.Second // between looks at how much there is
	defaultRoom = 4 << 30
)

// retention removes output in its time. Its timer runs only while there is
// some.
type retention struct {
	mu    sync.Mutex
	timer *time.Timer
	at    time.Time // when it fires
	last  time.Time // when it was looked through
}

// sweepIn has the outputs looked through soon; the earliest wish counts.
func (m *Manager) sweepIn(d time.Duration) {
	r := &m.outputs
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Now().Add(d)
	if r.timer != nil && r.at.Before(at) {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.at, r.timer = at, time.AfterFunc(d, m.sweep)
}

// sweepSoon is for when there may be too much.
func (m *Manager) sweepSoon() {
	m.outputs.mu.Lock()
	d := max(0, sweepPause-time.Since(m.outputs.last))
	m.outputs.mu.Unlock()
	m.sweepIn(d)
}

// sweep removes the output of turns that ended longer ago than the retention,
// then, oldest first, what is too much.
func (m *Manager) sweep() {
	select {
	case <-m.stop:
		return
	default:
	}
	r := &m.outputs
	r.mu.Lock()
	r.timer, r.last = nil, time.Now()
	r.mu.Unlock()
	all, err := m.cfg.Outputs.List()
	if err != nil {
		m.log.Warn("look through kept output", "error", err)
		return
	}
	var sum int64
	next := time.Duration(-1)
	var over, live []Kept
	for _, k := range all {
		if m.Knows(k.Turn) {
			live = append(live, k)
			sum += k.Bytes
			continue
		}
		if left := time.Until(k.At.Add(m.cfg.Retention)); left <= 0 {
			m.removeOutput(k.Turn, "")
			continue
		} else if next < 0 || left < next {
			next = left
		}
		over = append(over, k)
		sum += k.Bytes
	}
	m.makeRoom(sum-m.cfg.OutputRoom, over, live)
	if next >= 0 {
		m.sweepIn(next)
	}
}

// makeRoom removes output until there is less by too much: of turns that are
// over first, then of processes that have ended.
func (m *Manager) makeRoom(tooMuch int64, over, live []Kept) {
	slices.SortFunc(over, func(a, b Kept) int { return a.At.Compare(b.At) })
	for _, k := range over {
		if tooMuch <= 0 {
			return
		}
		m.removeOutput(k.Turn, "")
		tooMuch -= k.Bytes
	}
	for _, e := range m.endedOutputs(live, tooMuch) {
		if tooMuch <= 0 {
			return
		}
		m.removeOutput(e.turn, e.process)
		tooMuch -= e.bytes
	}
}

type endedOutput struct {
	turn, process string
	at            time.Time
	bytes         int64
}

// endedOutputs lists the output of processes that have ended, in turns that have
// not, oldest first.
func (m *Manager) endedOutputs(live []Kept, tooMuch int64) (out []endedOutput) {
	if tooMuch <= 0 {
		return nil
	}
	for _, k := range live {
		t, ok := m.live(k.Turn)
		if !ok {
			continue
		}
		m.noteOutputs(t)
		sizes, err := m.cfg.Outputs.Sizes(k.Turn)
		if err != nil {
			continue
		}
		t.mu.Lock()
		for _, p := range t.procs {
			if p.view.EndedAt != nil && sizes[p.view.ID] > 0 {
				out = append(out, endedOutput{k.Turn, p.view.ID, *p.view.EndedAt, sizes[p.view.ID]})
			}
		}
		t.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b endedOutput) int { return a.at.Compare(b.at) })
	return out
}

func (m *Manager) removeOutput(turn, process string) {
	if err := m.cfg.Outputs.Remove(turn, process); err != nil {
		m.log.Warn("remove kept output", "turn", turn, "process", process, "error", err)
	}
}

// outputsOver is told that a turn is over and goes to the history.
func (m *Manager) outputsOver(t *turn) {
	if !m.noteOutputs(t) {
		return
	}
	if err := m.keep(t); err != nil {
		m.log.Warn("save the record of a turn that is over", "turn", t.id, "error", err)
	}
	if err := m.cfg.Outputs.Ended(t.id); err != nil {
		m.log.Warn("keep the output of a turn that is over", "turn", t.id, "error", err)
	}
	fault.Point("output.over")
	m.sweepIn(cmp.Or(m.cfg.Retention, time.Millisecond))
	m.sweepSoon()
}

// outputMaxed is the hold's hook: the turn's output has come to its bound.
func (m *Manager) outputMaxed(t *turn) {
	t.mu.Lock()
	first := !t.view.OutputMaxed
	t.view.OutputMaxed = true
	t.tell(api.EventLimit, "output", func(e *api.Event) { e.Message = "kept output is at its bound" })
	stop := t.view.OnOutputMax == api.OutputStop
	t.touch()
	t.mu.Unlock()
	if !first {
		return
	}
	m.log.Info("turn's output is at its bound", "turn", t.id, "stop", stop)
	m.stopIfMaxed(t)
}

// stopIfMaxed ends a turn that is to end at its output's bound; one that is
// just being found again is told of later.
func (m *Manager) stopIfMaxed(t *turn) {
	t.mu.Lock()
	stop := t.view.OutputMaxed && t.view.OnOutputMax == api.OutputStop && t.hold != nil
	t.mu.Unlock()
	if stop {
		if err := m.startEnding(t, m.ownEnd(t, api.ReasonLimit)); err != nil {
			m.log.Warn("end a turn at its output's bound", "turn", t.id, "error", err)
		}
	}
}
