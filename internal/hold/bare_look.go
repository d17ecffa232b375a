package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/inspect"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// view is who is in a bare turn at one time, each held.
type view struct {
	members []seenMember
	refused []fallback.Finding
	whole   bool
	notes   []string
	done    []func()
}

// seenMember is one of them. launch is the launched process that it is, or that it
// is seen to descend from; empty: whom it descends from has ended.
type seenMember struct {
	*fallback.Process
	comm   string
	state  byte
	launch string
	parent int
}

func (v *view) close() {
	for _, f := range v.done {
		f()
	}
}

// look finds who is below the keeper. Where there is none any more, or it cannot be
// held, it finds the launched processes that are held, and who is below them.
func (x *bare) look(ctx context.Context) (*view, error) {
	v := &view{whole: true}
	launches := x.launchPIDs()
	root, err := x.root()
	if err == nil {
		v.done = append(v.done, func() { root.Close() })
		err = x.observe(ctx, root, launches, v)
	}
	if err == nil {
		if !v.whole { // a launched process may be hidden from us (hidepid), its handle is not
			x.addHeld(ctx, launches, v)
		}
		return v, nil
	}
	if !x.keeperDead() {
		v.close()
		return nil, err
	}
	v.whole = false
	v.notes = append(v.notes, "the keeper is gone: only launched processes, and who is below them, can be found")
	x.addHeld(ctx, launches, v)
	x.addWards(v)
	return v, nil
}

// addHeld adds the launched processes that were not seen, and who is below them.
func (x *bare) addHeld(ctx context.Context, launches map[int]string, v *view) {
	seen := map[int]bool{}
	for _, m := range v.members {
		seen[m.Identity().PID] = true
	}
	for id, h := range x.held() {
		if over, err := h.Exited(); err == nil && over || seen[h.PID()] {
			continue
		}
		p, err := x.host.fb.HoldHandle(h)
		if err != nil {
			v.notes = append(v.notes, fmt.Sprintf("%s: %v", id, err))
			continue
		}
		v.done = append(v.done, func() { p.Close() })
		v.members = append(v.members, seenMember{p, comm(h.PID()), 0, id, 0})
		if err := x.observe(ctx, p, launches, v); err != nil {
			v.notes = append(v.notes, fmt.Sprintf("below %s: %v", id, err))
		}
	}
}

// addWards adds those that were seen below launches before, and live.
func (x *bare) addWards(v *view) {
	seen := map[int]bool{}
	for _, m := range v.members {
		seen[m.Identity().PID] = true
	}
	x.mu.Lock()
	wards := slices.Clone(x.wards)
	x.mu.Unlock()
	for _, m := range wards {
		if verdict, _ := m.Verify(); verdict == api.VerdictOwned && !seen[m.Identity().PID] {
			v.members = append(v.members, m)
		}
	}
}

// root holds the keeper.
func (x *bare) root() (*fallback.Process, error) {
	if x.keeper == nil {
		return nil, keeperGone(x.turn)
	}
	if h, ok := x.keeper.(*pidfd.Handle); ok {
		return x.host.fb.HoldHandle(h)
	}
	p, v, why := x.host.fb.Recall(x.facts.Keeper)
	if p == nil {
		return nil, fmt.Errorf("hold the keeper: it is %s: %s", v, join(why))
	}
	return p, nil
}

// observe adds who is below root.
func (x *bare) observe(ctx context.Context, root *fallback.Process, launches map[int]string, v *view) error {
	s, err := x.host.fb.Observe(ctx, root)
	if err != nil {
		return err
	}
	v.done = append(v.done, s.Close)
	v.whole = v.whole && s.Whole
	v.notes = append(v.notes, s.Notes...)
	v.refused = append(v.refused, s.Refused...)
	above := map[*fallback.Process]*fallback.Process{}
	for _, m := range s.Members {
		above[m.Process] = m.Parent
	}
	for _, m := range s.Members {
		id := ""
		for p := m.Process; p != nil && id == ""; p = above[p] {
			id = launches[p.Identity().PID]
		}
		if m.State == 'Z' || m.State == 'X' {
			if v, _ := m.Verify(); v != api.VerdictOwned { // else only its main thread has ended
				continue
			}
		}
		v.members = append(v.members, seenMember{m.Process, m.Comm, m.State, id, m.Parent.Identity().PID})
	}
	return nil
}

// launchPIDs are the launches that run, by their numbers, which they have as long
// as their handles are held and they have not been reaped.
func (x *bare) launchPIDs() map[int]string {
	out := map[int]string{}
	for id, h := range x.held() {
		out[h.PID()] = id
	}
	return out
}

// Members lists who is in the turn.
func (x *bare) Members() ([]api.Member, error) {
	v, err := x.look(context.Background())
	if err != nil {
		return x.unseenMembers(err)
	}
	defer v.close()
	out := make([]api.Member, 0, len(v.members))
	for _, s := range v.members {
		m, err := memberOf(s.Identity().PID)
		if err != nil {
			m = api.Member{PID: s.Identity().PID, PPID: s.parent, Comm: s.comm, State: letter(s.state)}
		}
		m.Process = s.launch
		out = append(out, m)
	}
	return out, nil
}

// unseenMembers are the launched processes, where nobody can look below them.
func (x *bare) unseenMembers(why error) ([]api.Member, error) {
	held := x.held()
	if len(held) == 0 && !x.Alone() {
		return nil, fmt.Errorf("list members: %w", why)
	}
	out := []api.Member{}
	for id, h := range held {
		if over, err := h.Exited(); err != nil || !over {
			out = append(out, api.Member{PID: h.PID(), Process: id, State: "?"})
		}
	}
	return out, nil
}

func letter(b byte) string {
	if b == 0 {
		return "?"
	}
	return string(b)
}

// memberOf describes a process, for people.
func memberOf(pid int) (api.Member, error) {
	b, err := sys.ProcFile(pid, "stat")
	if err != nil {
		return api.Member{}, err
	}
	s, err := sys.ParseStat(b)
	if err != nil {
		return api.Member{}, err
	}
	m := api.Member{PID: pid, PPID: s.PPID, State: string(s.State), Comm: s.Comm, RSS: s.RSSPages * int64(os.Getpagesize())}
	if now := sys.BootTicks(); now > s.StartTicks {
		m.AgeMS = int64(now-s.StartTicks) * (1000 / sys.TicksPerSecond)
	}
	if b, err := sys.ProcFile(pid, "status"); err == nil {
		if st, err := sys.ParseStatus(b); err == nil {
			m.UID = st.UID
		}
	}
	return m, nil
}

// Alive counts who is in the turn: one at least, unless the keeper says that
// nobody is below it.
func (x *bare) Alive() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), quitTime)
	defer cancel()
	if over, err := x.over(ctx); err == nil && over {
		return 0, nil
	}
	ms, err := x.Members()
	if err != nil {
		return 0, err
	}
	if len(ms) == 0 && !x.keeperDead() {
		return 1, nil
	}
	return len(ms), nil
}

// Targets lists what an ending would deal with.
func (x *bare) Targets(ctx context.Context) ([]api.Target, error) {
	v, err := x.look(ctx)
	if err != nil {
		out := []api.Target{{Verdict: api.VerdictUnverifiable, Would: wouldSignal, Evidence: "the keeper signals its own children, orphans among them",
			Why: fmt.Sprintf("they cannot be listed: %v", err)}}
		for id, h := range x.held() {
			out = append(out, api.Target{PID: h.PID(), Process: id, Verdict: api.VerdictOwned, Would: wouldSignal,
				Evidence: "launched by Pinfold and held by its pidfd ever since"})
		}
		return out, nil
	}
	defer v.close()
	l := &looking{now: sys.BootTicks()}
	for _, m := range v.members {
		_, why := m.Verify()
		t := api.Target{PID: m.Identity().PID, Process: m.launch, Comm: m.comm, Verdict: api.VerdictOwned, Would: wouldSignal,
			Evidence: fmt.Sprintf("seen below the turn's keeper, %d, as a child of %d (%s)", x.facts.Keeper.PID, m.parent, join(why))}
		l.describeByNumber(&t)
		l.out = append(l.out, t)
	}
	for _, f := range v.refused {
		l.out = append(l.out, api.Target{PID: f.Identity.PID, Comm: f.Comm, Verdict: f.Verdict, Would: wouldRefuse, Evidence: join(f.Evidence),
			Why: "it was seen where a member would be, and is not proved to be one"})
	}
	if !v.whole {
		l.out = append(l.out, api.Target{Verdict: api.VerdictUnverifiable, Would: wouldRefuse, Evidence: "not all could be looked at: " + join(v.notes),
			Why: "who cannot be found cannot be signalled"})
	}
	return l.out, nil
}

// handle opens a member by its number, once more, and proves it.
func (m seenMember) handle() (*pidfd.Handle, error) {
	h, v, why := pidfd.OpenVerified(m.Identity())
	if v != api.VerdictOwned {
		return nil, errors.New(string(v) + ": " + join(why))
	}
	return h, nil
}

// Uses tells how the turn's processes use a directory.
func (x *bare) Uses(ctx context.Context, dir string) ([]api.Use, []string, error) {
	look, err := inspect.NewUses(dir)
	if err != nil {
		return nil, nil, err
	}
	s := &seeing{x: &x.keeping, ctx: ctx, look: look, seen: map[int]bool{}}
	v, err := x.look(ctx)
	if err != nil {
		s.unseen = append(s.unseen, fmt.Sprintf("turn %s: %v", x.turn, err))
		v = &view{whole: true}
	}
	defer v.close()
	for _, m := range v.members {
		h, err := m.handle()
		if err != nil {
			s.unseen = append(s.unseen, fmt.Sprintf("process %d (%s) of turn %s: %v", m.Identity().PID, m.comm, x.turn, err))
			continue
		}
		err = s.one(h, api.Use{Turn: x.turn, Process: m.launch})
		h.Close()
		if err != nil {
			return s.uses, s.unseen, err
		}
	}
	if !v.whole {
		s.unseen = append(s.unseen, fmt.Sprintf("turn %s: not all of its processes can be found: %s", x.turn, join(v.notes)))
	}
	return s.uses, s.unseen, ctx.Err()
}

// Servers lists those of the turn whose sockets others are connected to, and those
// that are connected to others'.
func (x *bare) Servers(ctx context.Context) ([]api.Server, []api.Served, error) {
	v, err := x.look(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("look for servers: %w", err)
	}
	defer v.close()
	look, of := inspect.NewSockets(), map[int]string{}
	for _, m := range v.members {
		h, err := m.handle()
		if err != nil {
			continue
		}
		of[h.PID()] = m.launch
		err = look.Add(ctx, h)
		h.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("look for servers: %w", err)
		}
	}
	look.Late = func() (pids []int) {
		v, err := x.look(ctx)
		if err != nil {
			x.host.log.Debug("look for servers", "turn", x.turn, "error", err)
			return nil
		}
		defer v.close()
		for _, m := range v.members {
			pids = append(pids, m.Identity().PID)
		}
		return pids
	}
	return x.servers(ctx, look, of)
}
