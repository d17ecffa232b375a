package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// world is a small model of a process table, in which something happens before
// and after whatever is asked of it: fork, exit, reaping, a number handed out
// again, other groups and sessions, an inspection that is refused. It keeps the
// rules that a kernel keeps: a number is free when no process, living or zombie,
// has it, and no group or session; orphans go to the nearest subreaper; a parent is
// never a zombie.
type world struct {
	rng       *rand.Rand
	procs     map[int]*mproc // by number, zombies included
	order     []*mproc       // the same, for choosing
	root      *mproc
	made      int // processes
	last      int // number that was handed out last
	tick      uint64
	ended     map[int]uint64 // number → tick in which it became free
	steps     int
	time      time.Time
	exact     bool // handles, or numbers that are verified
	inodes    bool
	lists     bool      // children files
	blind     int       // of 100 inspections, how many are refused
	calm      bool      // nothing happens by itself
	fenced    bool      // root starts nothing any more
	hangs     time.Time // until then a kill ends nobody
	aim       int       // a group that is emptied, and whose number a stranger's gets
	allowed   func(*mproc) bool
	violation string
}

type mproc struct {
	uid, pid       int
	parent         *mproc
	born           *mproc // of whom
	group, session int
	groupUID       int
	was            map[int]int // groups that it ever was in, and their numbers
	ours           bool        // root's, or descended from it
	zombie, reaped bool
	stopped, dying bool
	tick           uint64
}

const numbers = 40 // so that they come back soon

func newWorld(rng *rand.Rand) *world {
	w := &world{rng: rng, procs: map[int]*mproc{}, ended: map[int]uint64{}, last: 1, tick: 100, time: time.Unix(1e9, 0)}
	w.exact, w.lists = rng.IntN(3) > 0, rng.IntN(2) == 0
	w.inodes = w.exact && rng.IntN(2) == 0
	w.blind = []int{0, 0, 5, 30}[rng.IntN(4)]
	init := w.make(nil, 1)
	for range 3 {
		w.fork(init)
	}
	w.root = w.fork(init)
	w.root.ours = true
	w.newGroup(w.root)
	w.fork(w.root)
	for range rng.IntN(40) {
		w.event()
	}
	return w
}

func (w *world) make(parent *mproc, pid int) *mproc {
	w.made++
	p := &mproc{uid: w.made, pid: pid, parent: parent, born: parent, tick: w.tick, was: map[int]int{}}
	if parent != nil {
		p.group, p.session, p.groupUID, p.ours = parent.group, parent.session, parent.groupUID, parent.ours
		p.was[p.groupUID] = p.group
	} else {
		p.session = pid
		w.newGroup(p)
	}
	w.procs[pid] = p
	w.order = append(w.order, p)
	return p
}

// newGroup makes p the leader of a group. Its number is what the kernel knows a
// group by, with whoever first had it: one that comes back is in the same again.
func (w *world) newGroup(p *mproc) {
	p.group, p.groupUID = p.pid, p.uid+1
	p.was[p.groupUID] = p.group
}

// free tells whether a number may be handed out.
func (w *world) free(n int) bool {
	if w.procs[n] != nil || w.ended[n] == w.tick && !w.inodes && w.ended[n] != 0 {
		return false // without an inode, one tick would not tell them apart
	}
	for _, p := range w.order {
		if p.group == n || p.session == n {
			return false
		}
	}
	return true
}

func (w *world) fork(parent *mproc) *mproc {
	for i := 1; i <= numbers; i++ {
		n := 2 + (w.last+i-2)%numbers
		if w.free(n) {
			w.last = n
			return w.make(parent, n)
		}
	}
	return nil
}

func (w *world) exit(p *mproc) {
	if p.zombie {
		return
	}
	p.zombie = true
	heir := w.procs[1]
	if p.ours && p != w.root && !w.root.zombie {
		heir = w.root
	}
	for _, c := range w.order {
		if c.parent == p {
			c.parent = heir
		}
	}
}

func (w *world) reap(p *mproc) {
	if !p.zombie || p.reaped {
		return
	}
	p.reaped = true
	delete(w.procs, p.pid)
	w.ended[p.pid] = w.tick
	for i, q := range w.order {
		if q == p {
			w.order[i] = w.order[len(w.order)-1]
			w.order = w.order[:len(w.order)-1]
			break
		}
	}
}

// event is one thing that happens by itself.
func (w *world) event() {
	w.steps++
	if w.aim != 0 && w.rng.IntN(3) == 0 {
		w.usurp(w.aim)
		return
	}
	p := w.order[w.rng.IntN(len(w.order))]
	if p.dying {
		w.exit(p)
	}
	if p.pid == 1 || p == w.root && w.rng.IntN(400) > 0 {
		return
	}
	if p.zombie {
		w.reap(p)
		return
	}
	switch n := w.rng.IntN(20); {
	case p.stopped && n < 19: // but somebody may kill it
	case n < 6 && len(w.order) < 24 && !(p == w.root && w.fenced):
		w.fork(p)
	case n < 8 && p.group != p.pid:
		w.newGroup(p)
	case n < 9 && p.group != p.pid:
		w.newGroup(p)
		p.session = p.pid
	case n < 11: // into another group of its session
		if q := w.order[w.rng.IntN(len(w.order))]; q.session == p.session && p.session != p.pid && !q.zombie && !p.returns(q) {
			p.group, p.groupUID = q.group, q.groupUID
			p.was[p.groupUID] = p.group
		}
	case n < 13:
		w.tick++
	case n < 18:
		w.exit(p)
		if w.rng.IntN(2) == 0 {
			w.reap(p)
		}
	case p == w.root:
		w.exit(p)
	}
}

// usurp takes a member out of a group, or makes a stranger's of its number once
// that is free.
func (w *world) usurp(pgid int) {
	if w.free(pgid) {
		w.last = pgid - 1
		if p := w.fork(w.procs[1]); p != nil && p.pid == pgid {
			w.newGroup(p)
			w.fork(p)
			w.fork(p)
		}
		return
	}
	p := w.order[w.rng.IntN(len(w.order))]
	switch {
	case p.group != pgid || p == w.root || p.pid == 1:
	case p.pid == pgid || w.rng.IntN(3) == 0:
		w.exit(p)
		w.reap(p)
	default:
		w.newGroup(p)
	}
}

// returns tells whether p was once in another group of the number that q's has: who
// joins such a one vouches for it. See docs/identity.md.
func (p *mproc) returns(q *mproc) bool {
	for uid, n := range p.was {
		if n == q.group && uid != q.groupUID {
			return true
		}
	}
	return false
}

// churn lets a few things happen.
func (w *world) churn() {
	w.steps++
	for n := w.rng.IntN(4); n > 0 && !w.calm; n-- {
		w.event()
	}
}

var errDenied = errors.New("denied")

func (w *world) denied() bool { return w.blind > 0 && w.rng.IntN(100) < w.blind }

func (w *world) here() pidfd.Here { return pidfd.Here{Boot: "b", PIDNS: 7, TimeNS: 8, Proc: true} }

func (w *world) open(pid int) (ref, error) {
	w.churn()
	p := w.procs[pid]
	if p == nil {
		return nil, pidfd.ErrGone
	}
	if w.denied() {
		return nil, errDenied
	}
	return &mref{w, p}, nil
}

func (w *world) children(r ref) ([]int, error) {
	w.churn()
	if !w.lists {
		return nil, errors.ErrUnsupported
	}
	if w.denied() {
		return nil, errDenied
	}
	var out []int
	for _, p := range w.order {
		if p.parent == r.(*mref).p {
			out = append(out, p.pid)
		}
	}
	return out, nil
}

func (w *world) parents(context.Context) (map[int][]int, []int, error) {
	out := map[int][]int{}
	for n := 2; n < numbers+2; n++ { // piece by piece, as /proc is read
		if n%8 == 0 {
			w.churn()
		}
		if p := w.procs[n]; p != nil && p.parent != nil {
			out[p.parent.pid] = append(out[p.parent.pid], n)
		}
	}
	return out, nil, nil
}

func (w *world) members(pgid int) ([]int, error) {
	w.churn()
	var out []int
	for _, p := range w.order {
		if p.group == pgid {
			out = append(out, p.pid)
		}
	}
	w.churn()
	return out, nil
}

func (w *world) groupEmpty(pgid int) (bool, error) {
	w.churn()
	for _, p := range w.order {
		if p.group == pgid {
			return false, nil
		}
	}
	return true, nil
}

func (w *world) refuse(pid int) error { return pidfd.RefusePID(pid, 0) }

func (w *world) ownGroup() int { return 1 }

func (w *world) waitChannel(int) string { return "" }

func (w *world) now() time.Time { return w.time }

func (w *world) sleep(_ context.Context, d time.Duration) {
	w.time = w.time.Add(d + time.Millisecond)
	for range 3 {
		w.churn()
	}
	for _, p := range w.order {
		if p.dying && !w.time.Before(w.hangs) {
			w.exit(p)
		}
	}
}

// mref is a reference to a process of the model.
type mref struct {
	w *world
	p *mproc
}

func (r *mref) how() How {
	if r.w.exact {
		return ByPidfd
	}
	return ByToken
}

func (r *mref) pid() int { return r.p.pid }

func (r *mref) read() (pidfd.Seen, error) {
	w, p := r.w, r.p
	w.churn()
	defer w.churn()
	s := pidfd.Seen{Identity: api.Identity{PID: p.pid, Boot: "b", PIDNS: 7, TimeNS: 8}}
	if w.inodes {
		s.Ino = uint64(p.uid) + 1
	}
	switch {
	case p.reaped:
		return s, nil
	case w.denied() && w.rng.IntN(2) == 0:
		return pidfd.Seen{}, errDenied
	case w.denied():
		return s, nil // hidden
	}
	s.StartTicks, s.Group, s.Session, s.Parent, s.State = p.tick, p.group, p.session, 1, 'S'
	if p.parent != nil {
		s.Parent = p.parent.pid
	}
	return s, nil
}

// life is the last thing that is asked before a signal: where that goes by number,
// nothing happens in between, as the model has it. See docs/identity.md.
func (r *mref) life() pidfd.Life {
	r.w.churn()
	switch {
	case r.p.reaped:
		return pidfd.Reaped
	case r.w.denied():
		return pidfd.Unknown
	case r.p.zombie:
		return pidfd.Exited
	}
	return pidfd.Alive
}

func (r *mref) signal(sig syscall.Signal) error {
	w, p := r.w, r.p
	if w.exact {
		w.churn()
	} else {
		w.steps++
		p = w.procs[p.pid] // whoever has it
	}
	if p == nil || p.reaped {
		return pidfd.ErrGone
	}
	if !p.zombie && !w.allowed(p) {
		w.violation = fmt.Sprintf("a stranger was signalled: %d (held as %d), exact %v, inodes %v, lists %v, signal %v, %+v", p.uid, r.p.uid, w.exact, w.inodes, w.lists, sig, *p)
	}
	switch sig {
	case syscall.SIGKILL:
		if p.dying = true; !w.time.Before(w.hangs) && w.rng.IntN(2) == 0 {
			w.exit(p)
		}
	case syscall.SIGSTOP:
		p.stopped = true
	case syscall.SIGCONT:
		p.stopped = false
	case syscall.SIGTERM:
		if w.rng.IntN(2) == 0 {
			w.exit(p)
		}
	}
	return nil
}

func (r *mref) wait(context.Context) error {
	for range 1000 {
		if r.p.zombie {
			return nil
		}
		r.w.sleep(context.Background(), 0)
	}
	return errDenied
}

func (r *mref) close() error { return nil }
