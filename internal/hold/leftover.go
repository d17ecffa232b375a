package hold

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
)

// LeftOver lists the cgroups and directories that have a turn's name and belong
// to no turn, those of other instances too whose service does not run, and removes, when it is told to, those that are ours and empty. It
// signals nobody.
func (h *Host) LeftOver(ctx context.Context, standing func(turn string) api.Standing, remove bool) (out []api.LeftOver) {
	seen := map[string]bool{} // turns that have a cgroup
	for _, place := range h.places() {
		entries, err := os.ReadDir(place)
		if err != nil {
			continue
		}
		for _, e := range entries {
			m := turnDirs().FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			seen[m[1]] = true
			if s := standing(m[1]); s == "" || s == api.StandingUnread || s == api.StandingNewer {
				if l := h.leftCgroup(ctx, filepath.Join(place, e.Name()), m[1], s, remove); l.Path != "" {
					l.Kind, l.Turn = api.LeftOverCgroup, m[1]
					out = append(out, l)
				}
			}
		}
	}
	out = append(out, h.leftByOthers()...)
	return append(out, h.leftDirs(ctx, standing, seen, remove)...)
}

// places are the directories that turns' cgroups are made in.
func (h *Host) places() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	if h.scopes != "" {
		out = append(out, h.scopes)
	}
	if h.parent != nil {
		out = append(out, h.parent.Path())
	}
	return out
}

// leftCgroup tells of one cgroup; without a path: it has gone meanwhile, or is
// looked after by another service.
func (h *Host) leftCgroup(ctx context.Context, path, turn string, s api.Standing, remove bool) (l api.LeftOver) {
	d, err := cgroup.Open(path)
	if err != nil {
		return l
	}
	defer d.Close()
	l.Path = path
	live, err := d.Populated()
	v := h.whose(d)
	if s == "" && v == api.VerdictForeign {
		if l.Why = otherWhy(d, turn); l.Why == "" {
			l.Path = ""
		}
		return l
	}
	switch {
	case s != "":
		l.Why = "the turn has a record that cannot be used, so it is left alone"
	case err != nil:
		l.Why = fmt.Sprintf("whether it is empty cannot be told: %v", err)
	case live && v == api.VerdictOwned:
		l.Why = "it bears our mark, has no record, and is not empty: the next start of the service ends what is in it"
	case live:
		l.Why = "it is not empty, and bears no mark"
	case v == api.VerdictOwned:
		l.Remove, l.Why = true, "it bears our mark, has no record, and is empty"
	case h.inOwn(path):
		l.Remove, l.Why = true, "it is in our own directory, was never marked, and is empty"
	default:
		l.Why = "it bears no mark"
	}
	if l.Remove && remove {
		err := d.Remove(ctx) // never a populated one
		if l.Removed = err == nil; err != nil {
			l.Why += fmt.Sprintf("; it cannot be removed: %v", err)
		}
	}
	return l
}

// leftDirs tells of directories of turns that never had a record, and of those
// whose record cannot be read while nothing of the turn is left.
func (h *Host) leftDirs(ctx context.Context, standing func(turn string) api.Standing, seen map[string]bool, remove bool) (out []api.LeftOver) {
	all := filepath.Join(h.cfg.RuntimeDir, "turns")
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		id := e.Name()
		s := standing(id)
		if m := turnDirs().FindStringSubmatch(id); m == nil || m[1] != id || s == api.StandingLive {
			continue
		}
		l := api.LeftOver{Kind: api.LeftOverDirectory, Turn: id, Path: filepath.Join(all, id)}
		_, err := os.Lstat(filepath.Join(l.Path, "record.json"))
		switch {
		case s == api.StandingNewer:
			l.Kind, l.Why = api.LeftOverRecord, "its record is of a newer version of the service"
		case listens(ctx, l.Path):
			l.Why = "its keeper is there"
		case s == "" && err == nil:
			l.Why = "it has a record that came to be after the service started"
		case s == "":
			l.Remove, l.Why = true, "it has no record, and no keeper"
		case seen[id] || len(h.places()) == 0:
			l.Kind, l.Why = api.LeftOverRecord, "its record cannot be read, and there is a cgroup of its name"
		default:
			l.Kind, l.Remove, l.Why = api.LeftOverRecord, true, "its record cannot be read, and neither keeper nor cgroup of the turn is there"
		}
		if l.Remove && remove {
			err := os.RemoveAll(l.Path)
			if l.Removed = err == nil; err != nil {
				l.Why += fmt.Sprintf("; it cannot be removed: %v", err)
			}
		}
		out = append(out, l)
	}
	return out
}
