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

// Servers lists processes of work/ whose sockets others are connected to.
func (x *hold) Servers(ctx context.Context) ([]api.Server, error) {
	var members []*pidfd.Handle
	of := map[int]string{}
	defer func() {
		for _, h := range members {
			h.Close()
		}
	}()
	_, err := x.work.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		fd, err := h.Dup()
		if err != nil {
			return err
		}
		members = append(members, pidfd.FromFD(fd, f.PID))
		of[f.PID] = launchOf(f.Dir)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for servers: %w", err)
	}
	return x.servers(ctx, members, of)
}

// servers lists those of members whose sockets others are connected to; of tells
// which launches they are of.
func (x *keeping) servers(ctx context.Context, members []*pidfd.Handle, of map[int]string) ([]api.Server, error) {
	found, notes, err := inspect.Servers(ctx, members)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		x.host.log.Debug("look for servers", "turn", x.turn, "note", n)
	}
	out := make([]api.Server, 0, len(found))
	for _, s := range found {
		one := api.Server{PID: s.PID, Process: of[s.PID], Comm: comm(s.PID), Socket: s.Socket}
		for _, c := range s.Clients {
			one.Clients = append(one.Clients, client(c))
		}
		out = append(out, one)
	}
	return out, nil
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
