package hold

import (
	"context"
	"fmt"
	"path"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
)

// openDirs opens what there is of a turn's cgroup.
func (x *hold) openDirs(ctx context.Context) error {
	if err := x.openJobs(); err != nil {
		return err
	}
	live, err := x.jobsAlive()
	if err != nil {
		return err
	}
	x.work, err = x.dir.Open(workName)
	if isRemoved(err) && live { // never the whole for it: that has the jobs
		x.work, err = x.dir.Make(workName)
	}
	if isRemoved(err) { // an ending was cut short after it had removed work/
		x.work, err = cgroup.Open(x.facts.Cgroup)
	}
	if err != nil {
		return err
	}
	x.finishMoves(ctx)
	return nil
}

// openJobs finds out which launches are jobs: those whose leaf bears the turn's
// mark.
func (x *hold) openJobs() error {
	d, err := x.dir.Open(jobsName)
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the turn's jobs: %w", err)
	}
	x.jobs.dir = d
	return eachLeaf(d, func(leaf *cgroup.Dir, name string) error {
		if mark, err := leaf.Nonce(); err != nil || mark != x.facts.Nonce {
			return nil
		}
		j := &job{before: api.NoUsage()}
		if old, err := x.dir.Open(workName); err == nil {
			if was, err := old.Open(name); err == nil {
				j.before = was.Usage()
				was.Close()
			}
			old.Close()
		}
		x.jobs.of[name] = j
		return nil
	})
}

// eachLeaf opens each cgroup that is directly in one.
func eachLeaf(d *cgroup.Dir, fn func(leaf *cgroup.Dir, name string) error) error {
	names, err := d.Children()
	if err != nil {
		return err
	}
	for _, name := range names {
		leaf, err := d.Open(name)
		if isRemoved(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = fn(leaf, name)
		leaf.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// finishMoves undoes what an earlier service was at when it died: who was moved
// to a leaf that did not become a job goes back, and leaves that it had frozen
// for a moment are thawed. The turn's own freeze, which is on work/, stays.
func (x *hold) finishMoves(ctx context.Context) {
	jobs := x.jobsDir()
	if jobs == nil && x.work.ID() == x.dir.ID() {
		return
	}
	warn := func(what string, err error) {
		if err != nil {
			x.host.log.Error(what, "turn", x.turn, "error", err)
		}
	}
	if jobs != nil {
		warn("undo an unfinished move", eachLeaf(jobs, func(leaf *cgroup.Dir, name string) error {
			if x.isJob(name) {
				return nil
			}
			return x.undoMove(ctx, leaf)
		}))
		warn("thaw jobs", eachLeaf(jobs, thaw))
	}
	warn("thaw launches", eachLeaf(x.work, thaw))
}

func thaw(leaf *cgroup.Dir, _ string) error {
	if asked, err := leaf.FreezeAsked(); err != nil || !asked {
		return nil // before Linux 5.2 nobody froze it
	}
	return leaf.Freeze(false)
}

// undoMove moves back to where a leaf says that its members are from.
func (x *hold) undoMove(ctx context.Context, leaf *cgroup.Dir) error {
	mark, err := leaf.Nonce()
	if err != nil {
		mark = "" // it died before it had moved anybody
	}
	rel, ok := strings.CutPrefix(mark, fillingMark)
	if populated, perr := leaf.Populated(); perr == nil && !populated {
		return leaf.Remove(ctx)
	}
	above, name := path.Split(rel)
	parent := x.work
	if above == jobsName+"/" {
		parent = x.jobsDir()
	} else if !ok || above != workName+"/" {
		return fmt.Errorf("move back what is in %s: it says %q of where that is from", leaf.Path(), mark)
	}
	from, err := parent.Open(name)
	if isRemoved(err) {
		from, err = parent.Make(name)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	return unfill(ctx, from, leaf)
}
