package hold

import (
	"errors"
	"os"
	"path"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// mostAbove bounds how far up ancestors are looked for.
const mostAbove = 1 << 12

// mayTake refuses what nobody may adopt, and asks about the rest.
func (x *keeping) mayTake(a containment.Adopting, f *found, along bool) error {
	if err := pidfd.RefusePID(f.id.PID, os.Getpid()); err != nil {
		return api.AdoptPinfold.Refuse(f.id.PID, "process %d cannot be adopted: %v", f.id.PID, err)
	}
	k := containment.Candidate{Identity: f.id, Comm: f.comm, UIDs: f.uids, Cgroup: f.line, Along: along}
	if !along {
		if err := aboveUs(f); err != nil {
			return err
		}
		var err error
		if k.Above, err = above(f.h); err != nil {
			return api.AdoptAmbiguous.Refuse(f.id.PID, "nobody can tell whose child process %d is: %v", f.id.PID, err)
		}
		if k.Caller, err = aboveCaller(a, f); err != nil {
			return api.Errorf(api.CodePeerUnverifiable, "nobody can tell whether process %d is an ancestor of the caller: %v", f.id.PID, err).
				WithRemedy("ask from a process that stays alive and that the service can see, or say ancestor (--ancestor)")
		}
	}
	if err := a.May(k); err != nil {
		return err
	}
	if err := x.othersTurn(f); err != nil {
		return err
	}
	return othersKeeper(f, k.Above)
}

// othersTurn refuses what a turn of another service holds, its keeper, too: it
// would be taken from it. A turn that we are in ourselves is around us both.
func (x *keeping) othersTurn(f *found) error {
	m, _, err := sys.FindCgroup2()
	if err != nil || f.line == "" {
		return nil // no cgroup holds it
	}
	own, _ := pidfd.OwnCgroups()
	for at := f.line; at != "/" && at != "."; at = path.Dir(at) {
		name := turnDirs().FindStringSubmatch(path.Base(at))
		if name == nil {
			continue
		}
		dir, err := m.Dir(at)
		if err != nil {
			return nil // what is above is not to be seen either
		}
		d, err := cgroup.Open(dir)
		if err != nil {
			continue
		}
		nonce, err := d.Nonce()
		id := d.ID()
		d.Close()
		if mark, ok := markOf(nonce); err == nil && ok && mark != x.host.instance && !slices.Contains(own, id) {
			return api.AdoptHeld.Refuse(f.id.PID, "process %d (%s) is in turn %s of another service: %s", f.id.PID, f.comm, name[1], dir).With("turn", name[1]).
				WithRemedy("a process is in one turn: end it there")
		}
	}
	return nil
}

// aboveUs refuses the ancestors of this service.
func aboveUs(f *found) error {
	if os.Getpid() == 1 {
		return nil // there is none
	}
	self, err := pidfd.Open(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	is, err := isAbove(f.id, self)
	switch {
	case err != nil:
		return api.AdoptPinfold.Refuse(f.id.PID, "nobody can tell whether process %d is an ancestor of the service: %v", f.id.PID, err)
	case is:
		return api.AdoptPinfold.Refuse(f.id.PID, "process %d (%s) is an ancestor of the service: to end the turn would end the service", f.id.PID, f.comm)
	}
	return nil
}

// aboveCaller tells whether it is the caller or an ancestor of the caller. Whoever
// has connected and cannot be opened has no ancestors that anybody knows.
func aboveCaller(a containment.Adopting, f *found) (bool, error) {
	if a.Peer == nil || a.Ancestor {
		return false, nil
	}
	peer, err := openPeer(a)
	if err != nil {
		return false, err
	}
	defer peer.Close()
	is, err := peer.Identity()
	if err == nil && is.PID == f.id.PID && is.Ino == f.id.Ino {
		return true, nil
	}
	if err == nil {
		return isAbove(f.id, peer)
	}
	return false, err
}

// isAbove tells whether a process is an ancestor of one that is open.
func isAbove(id api.Identity, h *pidfd.Handle) (bool, error) {
	up, err := above(h)
	for _, one := range up {
		if one.PID == id.PID && one.Ino == id.Ino {
			return true, nil
		}
	}
	return false, err
}

// above lists the ancestors of a process, the nearest first, as far as they have a
// number here. One whose parent ends meanwhile gets another: that one is looked
// for then.
func above(h *pidfd.Handle) ([]api.Identity, error) {
	var out []api.Identity
	here := pidfd.ReadHere()
	at := h
	defer func() {
		if at != h {
			at.Close()
		}
	}()
	for tries := 0; len(out) < mostAbove; {
		up, err := at.Parent()
		if errors.Is(err, pidfd.ErrGone) && tries < 10 {
			tries++
			if lives, lerr := at.Lives(); lerr == nil && lives {
				continue
			}
		}
		if err != nil {
			return out, err
		}
		if up == nil {
			return out, nil
		}
		if at != h {
			at.Close()
		}
		at, tries = up, 0
		id, err := up.IdentityIn(here)
		if err != nil {
			return out, err
		}
		out = append(out, id)
	}
	return out, errors.New("it has too many ancestors")
}
