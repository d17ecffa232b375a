package hold

import (
	"context"
	"fmt"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/internal/inspect"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Uses tells how the turn's processes use a directory. What is in the turn's
// cgroup beside work/ and jobs/ counts, the keeper apart; so does a launched
// process that has left it.
func (x *hold) Uses(ctx context.Context, dir string) ([]api.Use, []string, error) {
	look, err := inspect.NewUses(dir)
	if err != nil {
		return nil, nil, err
	}
	s := &seeing{x: &x.keeping, ctx: ctx, look: look, seen: map[int]bool{}}
	if x.keeper != nil {
		s.seen[x.keeper.PID()] = true
	}
	hidden, err := x.dir.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		part, rest, _ := strings.Cut(f.Dir, "/")
		u := api.Use{Turn: x.turn}
		if part == workName || part == jobsName {
			u.Process = launchOf(rest)
		}
		return s.one(h, u)
	})
	if ctx.Err() != nil {
		return s.uses, s.unseen, ctx.Err()
	}
	if err != nil {
		s.unseen = append(s.unseen, err.Error())
	}
	if hidden > 0 {
		s.unseen = append(s.unseen, fmt.Sprintf("turn %s: %d processes of a PID namespace that the service cannot see", x.turn, hidden))
	}
	for id, h := range x.handles() {
		if !s.seen[h.PID()] {
			_ = s.one(h, api.Use{Turn: x.turn, Process: id})
		}
	}
	return s.uses, s.unseen, ctx.Err()
}

// handles are those of all launches, jobs too, whose end is not known.
func (x *keeping) handles() map[string]*pidfd.Handle {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]*pidfd.Handle{}
	for id, p := range x.procs {
		if p.handle != nil {
			out[id] = p.handle
		}
	}
	return out
}

// seeing is one Uses under way.
type seeing struct {
	x      *keeping
	ctx    context.Context
	look   *inspect.Uses
	seen   map[int]bool
	uses   []api.Use
	unseen []string
}

func (s *seeing) one(h *pidfd.Handle, u api.Use) error {
	u.PID = h.PID()
	if s.seen[u.PID] {
		return nil
	}
	s.seen[u.PID] = true
	found, err := s.look.Of(s.ctx, h)
	if len(found) > 0 || err != nil {
		u.Comm = comm(u.PID)
	}
	for _, f := range found {
		u.How, u.Path = f.How, f.Path
		s.uses = append(s.uses, u)
	}
	if err != nil {
		s.unseen = append(s.unseen, fmt.Sprintf("process %d (%s) of turn %s: %v", u.PID, u.Comm, s.x.turn, err))
	}
	return s.ctx.Err()
}

func comm(pid int) string {
	b, err := sys.ProcFile(pid, "comm")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// Servers lists processes of work/ whose sockets others are connected to, and those
// that are connected to others'.
func (x *hold) Servers(ctx context.Context) ([]api.Server, []api.Served, error) {
	look, of := inspect.NewSockets(), map[int]string{}
	_, err := x.work.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		of[f.PID] = launchOf(f.Dir)
		return look.Add(ctx, h)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for servers: %w", err)
	}
	look.Late = func() (pids []int) {
		all, err := x.work.Pids()
		if err != nil {
			x.host.log.Debug("look for servers", "turn", x.turn, "error", err)
		}
		for _, p := range all {
			pids = append(pids, p.PID)
		}
		return pids
	}
	return x.servers(ctx, look, of)
}

// servers describes what a look has found; of tells which launches its members are of.
func (x *keeping) servers(ctx context.Context, look *inspect.Sockets, of map[int]string) ([]api.Server, []api.Served, error) {
	found, err := look.Look(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range found.Notes {
		x.host.log.Debug("look for servers", "turn", x.turn, "note", n)
	}
	out := make([]api.Server, 0, len(found.Servers))
	for _, s := range found.Servers {
		one := api.Server{PID: s.PID, Process: of[s.PID], Comm: comm(s.PID), Socket: s.Socket}
		for _, c := range s.Clients {
			one.Clients = append(one.Clients, client(c))
		}
		out = append(out, one)
	}
	var served []api.Served
	for _, s := range found.Served {
		one := api.Served{PID: s.PID, Process: of[s.PID], Comm: s.Comm, Socket: s.Socket, By: []api.Member{}}
		for _, pid := range s.By {
			one.By = append(one.By, client(inspect.Client{PID: pid}))
		}
		served = append(served, one)
	}
	return out, served, nil
}

// client describes one that is connected. One that is no process of this host, or
// that cannot be looked at, has only an address.
func client(c inspect.Client) api.Member {
	if c.PID == 0 {
		return api.Member{Comm: c.From}
	}
	m, err := memberOf(c.PID)
	if err != nil {
		return api.Member{PID: c.PID, Comm: c.From}
	}
	if b, err := sys.ProcFile(c.PID, "cgroup"); err == nil {
		m.Cgroup, _ = sys.ParseCgroup(b)
	}
	return m
}
