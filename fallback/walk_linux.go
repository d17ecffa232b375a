package fallback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// Observe holds what is below root, as far as it can be proven: for each
// process, a handle is opened first; what is read by it names a parent that is
// held, too, and that has not been reaped after the reading, so the number meant
// that very process. Whoever reads a Snapshot decides by that one reading.
func (h *Host) Observe(ctx context.Context, root *Process) (*Snapshot, error) {
	w := newWalk(h.k, root, nil, 0)
	for range 100 {
		if err := w.pass(ctx); err != nil {
			w.close()
			return nil, err
		}
		if w.quiet {
			break
		}
	}
	s := &Snapshot{Refused: w.refusals(), Whole: w.quiet && w.whole, Notes: w.notes}
	for _, n := range slices.Sorted(maps.Keys(w.held)) {
		s.Members = append(s.Members, w.held[n].Member)
	}
	return s, nil
}

// node is a member during a walk.
type node struct {
	Member
	Finding
	stopped, killed bool
}

// walk finds what is below root, pass by pass.
type walk struct {
	k     kernel
	root  *Process
	spare func(Member) bool
	most  int // processes held at a time; 0: no bound

	held    map[int]*node // by number: each alive when it was last looked at
	past    []*node       // those seen to have exited, let go of
	refused map[int]Finding
	notes   []string
	quiet   bool // the last pass met nothing that it had not seen before
	whole   bool // and could look at everything
}

func newWalk(k kernel, root *Process, spare func(Member) bool, most int) *walk {
	return &walk{k: k, root: root, spare: spare, most: most, held: map[int]*node{}}
}

func (w *walk) close() {
	for _, n := range w.held {
		_ = n.Close()
	}
}

func (w *walk) note(text string) {
	if !slices.Contains(w.notes, text) {
		w.notes = append(w.notes, text)
	}
}

func (w *walk) refusals() []Finding {
	var out []Finding
	for _, n := range slices.Sorted(maps.Keys(w.refused)) {
		out = append(out, w.refused[n])
	}
	return out
}

// drop lets go of members that have exited. Nobody is below a zombie.
func (w *walk) drop() {
	for pid, n := range w.held {
		if life := n.ref.life(); life == pidfd.Exited || life == pidfd.Reaped {
			n.Ended = true
			_ = n.Close()
			delete(w.held, pid)
			w.past = append(w.past, n)
		}
	}
}

// pass looks once at everything below root. What it meets that it cannot admit
// is in refused until the next.
func (w *walk) pass(ctx context.Context) error {
	w.drop()
	w.refused, w.quiet, w.whole = map[int]Finding{}, true, true
	below, err := w.lister(ctx)
	if err != nil {
		return err
	}
	queue := []*Process{w.root}
	for _, n := range slices.Sorted(maps.Keys(w.held)) {
		queue = append(queue, w.held[n].Process)
	}
	for i := 0; i < len(queue); i++ {
		if ctx.Err() != nil {
			w.quiet, w.whole = false, false
			return nil
		}
		list, err := below(queue[i])
		if err != nil && w.lives(queue[i]) {
			w.whole = false
			w.note(fmt.Sprintf("the children of process %d cannot be listed: %v", queue[i].rec.PID, err))
		}
		for _, pid := range list {
			if n := w.admit(pid); n != nil {
				w.quiet = false
				queue = append(queue, n.Process)
			}
		}
	}
	return nil
}

func (w *walk) lives(p *Process) bool {
	life := p.ref.life()
	return life == pidfd.Alive || life == pidfd.Unknown
}

// lister gives the way to list children: the kernel's lists, or one scan of all
// processes for this pass. A process that is hidden from us (hidepid, proc(5)) may
// have children that are not: those that are seen are returned with the error.
func (w *walk) lister(ctx context.Context) (func(*Process) ([]int, error), error) {
	_, err := w.k.children(w.root.ref)
	if !errors.Is(err, errors.ErrUnsupported) {
		scan := sync.OnceValue(func() map[int][]int { all, _, _ := w.k.parents(ctx); return all })
		return func(p *Process) ([]int, error) {
			list, err := w.k.children(p.ref)
			if err != nil && w.lives(p) {
				list = scan()[p.rec.PID]
			}
			return list, err
		}, nil
	}
	all, blind, err := w.k.parents(ctx)
	if err != nil && all == nil {
		return nil, fmt.Errorf("look below process %d: %w", w.root.rec.PID, err)
	}
	if err != nil || len(blind) > 0 {
		w.whole = false
		w.note(fmt.Sprintf("%d processes cannot be looked at: whether they are below is not known", len(blind)))
	}
	return func(p *Process) ([]int, error) { return all[p.rec.PID], nil }, nil
}

// admit holds a process that was listed, if it is proven to be below root, and
// returns it if it is new.
func (w *walk) admit(pid int) *node {
	if n := w.held[pid]; n != nil {
		if n.ref.life() != pidfd.Reaped {
			return nil // it still has its number
		}
		w.drop()
	}
	if err := w.k.refuse(pid); err != nil {
		w.refuseFor(pid, api.VerdictUnverifiable, err.Error())
		return nil
	}
	if w.most > 0 && len(w.held) >= w.most {
		w.refuseFor(pid, api.VerdictUnverifiable, "more processes than are held at a time")
		return nil
	}
	r, err := w.k.open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		w.refuseFor(pid, api.VerdictUnverifiable, err.Error())
		return nil
	}
	for range 3 { // its parent may go while we look
		n, again := w.prove(pid, r)
		if n != nil {
			w.held[pid] = n
			return n
		}
		if !again {
			break
		}
	}
	_ = r.close()
	return nil
}

// prove tells whether a held process is a child of one that is held.
func (w *walk) prove(pid int, r ref) (n *node, again bool) {
	seen, err := r.read()
	switch life := r.life(); {
	case life == pidfd.Exited || life == pidfd.Reaped:
		return nil, false
	case err != nil:
		w.refuseFor(pid, api.VerdictUnverifiable, err.Error())
		return nil, false
	case seen.Parent == 0:
		w.refuseFor(pid, api.VerdictUnverifiable, "whose child it is cannot be read")
		return nil, false
	}
	parent, spared := w.root, false
	if seen.Parent != w.root.rec.PID {
		p := w.held[seen.Parent]
		if p == nil {
			w.quiet = false
			w.refuseFor(pid, api.VerdictForeign, fmt.Sprintf("its parent is process %d, which is not held", seen.Parent))
			return nil, false
		}
		parent, spared = p.Process, p.Spared
	}
	if life := parent.ref.life(); life == pidfd.Reaped || life == pidfd.Unknown {
		w.quiet = false
		w.refuseFor(pid, api.VerdictUnverifiable, "its parent went while it was looked at")
		return nil, true
	}
	delete(w.refused, pid)
	n = &node{Member: Member{&Process{w.k, r, seen.Identity}, seen.Comm, seen.State, seen.Group, parent}}
	n.Finding = Finding{
		Identity: seen.Identity, Comm: seen.Comm, How: r.how(), Verdict: api.VerdictOwned,
		Evidence: []string{fmt.Sprintf("held by %s, then seen to be a child of process %d, which is held", r.how(), seen.Parent)},
		Spared:   spared,
	}
	if !spared && w.spare != nil {
		n.Spared = w.spare(n.Member)
	}
	return n, false
}

func (w *walk) refuseFor(pid int, v api.Verdict, why string) {
	if v == api.VerdictUnverifiable {
		w.whole = false
	}
	w.refused[pid] = Finding{Identity: api.Identity{PID: pid}, Verdict: v, Evidence: []string{why}}
}
