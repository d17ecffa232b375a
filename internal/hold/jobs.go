package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// The cgroups of a turn, beside the keeper's. A leaf in jobs/ that bears the
// turn's mark is a job. One that does not, was being filled when a service died:
// it says instead from where, below the turn's cgroup.
const (
	workName    = "work"
	jobsName    = "jobs"
	fillingMark = "from "
)

// Bounds of moves. They are made of small steps; these are for a host that does
// not get to them.
const (
	moveTime = 10 * time.Second // to move
	backTime = 10 * time.Second // to move back
)

// jobs are the launches of a turn that outlive it. The lock is the hold's.
type jobs struct {
	moving sync.Mutex      // held by the one Promote or Eject at a time
	dir    *cgroup.Dir     // nil: there never was one
	of     map[string]*job // by launch
}

// job is one of them.
type job struct {
	before api.Usage // of its leaf below work/
	last   api.Usage // of its leaf below jobs/, once that was removed
	gone   bool      // that was removed
}

// isJob tells whether a launch is a job; the hold's lock is not held.
func (x *hold) isJob(process string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.jobs.of[process] != nil
}

// jobsDir is jobs/, or nil.
func (x *hold) jobsDir() *cgroup.Dir {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.jobs.dir
}

// openJob opens a job's leaf.
func (x *hold) openJob(process string) (*cgroup.Dir, error) {
	d := x.jobsDir()
	if d == nil {
		return nil, fmt.Errorf("open the job %s: %w", process, os.ErrNotExist)
	}
	return d.Open(process)
}

// openLeaf opens what a launch lives in.
func (x *hold) openLeaf(process string) (*cgroup.Dir, error) {
	if x.isJob(process) {
		return x.openJob(process)
	}
	return x.work.Open(process)
}

// makeJobs makes jobs/, on first use, with controllers and limits as work/ has
// them.
func (x *hold) makeJobs(limits *api.Limits) (*cgroup.Dir, error) {
	d := x.jobsDir()
	if d == nil {
		var err error
		d, err = x.dir.Make(jobsName)
		if errors.Is(err, os.ErrExist) {
			d, err = x.dir.Open(jobsName)
		}
		if err != nil {
			return nil, fmt.Errorf("make the turn's cgroup for jobs: %w", err)
		}
		x.mu.Lock()
		x.jobs.dir = d
		x.mu.Unlock()
	}
	if _, err := x.limitDir(d, limits); err != nil {
		return nil, err
	}
	return d, nil
}

// Promote moves a launch's leaf to jobs/.
func (x *hold) Promote(ctx context.Context, process string, limits *api.Limits) (int, error) {
	x.jobs.moving.Lock()
	defer x.jobs.moving.Unlock()
	if x.isJob(process) {
		return 0, api.Errorf(api.CodeBadRequest, "%s is a job already", process)
	}
	from, err := x.work.Open(process)
	if isRemoved(err) {
		return 0, noMembers(process)
	}
	if err != nil {
		return 0, fmt.Errorf("open the leaf of %s: %w", process, err)
	}
	defer from.Close()
	if populated, err := from.Populated(); err != nil || !populated {
		return 0, errors.Join(err, errUnless(err != nil, noMembers(process)))
	}
	to, err := x.makeJob(process, limits)
	if err != nil {
		return 0, err
	}
	defer to.Close()
	return x.fill(ctx, process, from, to, func(ctx context.Context) (int, error) { return from.MoveAll(ctx, to) })
}

// errUnless is err, unless cond holds.
func errUnless(cond bool, err error) error {
	if cond {
		return nil
	}
	return err
}

func noMembers(process string) *api.Error {
	return api.Errorf(api.CodeNotFound, "nothing of %s is in the turn's cgroup any more", process)
}

// makeJob makes a job's leaf. It is no job until it bears the turn's mark.
func (x *hold) makeJob(process string, limits *api.Limits) (*cgroup.Dir, error) {
	all, err := x.makeJobs(limits)
	if err != nil {
		return nil, err
	}
	to, err := all.Make(process)
	if errors.Is(err, os.ErrExist) {
		return nil, containment.ErrUsed
	}
	if err != nil {
		return nil, fmt.Errorf("make the job's cgroup: %w", err)
	}
	return to, nil
}

// fill has a job's leaf filled, and makes it a job; or everything goes back.
func (x *hold) fill(ctx context.Context, process string, from, to *cgroup.Dir, move func(context.Context) (int, error)) (int, error) {
	soon, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	if err := to.Mark(fillingMark + strings.TrimPrefix(from.Path(), x.dir.Path()+"/")); err != nil {
		return 0, errors.Join(err, to.Remove(context.WithoutCancel(ctx)))
	}
	j := &job{}
	x.enterJob(process, j) // from its first member on it is none of the turn's
	n, err := move(soon)
	if err == nil && n == 0 {
		err = noMembers(process)
	}
	if err == nil {
		err = to.Mark(x.facts.Nonce)
	}
	if err != nil {
		err = errors.Join(moveRefused(process, err), unfill(context.WithoutCancel(ctx), from, to))
		x.enterJob(process, nil)
		return 0, err
	}
	before := from.Usage()
	x.mu.Lock()
	j.before = before
	x.mu.Unlock()
	return n, nil
}

// enterJob notes that a launch is a job, or, with nil, that it is none.
func (x *hold) enterJob(process string, j *job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if j == nil {
		delete(x.jobs.of, process)
	} else {
		x.jobs.of[process] = j
	}
}

// moveRefused says what kept a launch from becoming a job.
func moveRefused(process string, err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return err
	}
	out := api.Errorf(api.CodeUnavailable, "make %s a job: %v", process, err)
	if errors.Is(err, pidfd.ErrGone) {
		out.Code = api.CodeNotFound
	}
	return out
}

// unfill takes an unfinished job's leaf back.
func unfill(ctx context.Context, from, to *cgroup.Dir) error {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	if _, err := to.MoveAll(ctx, from); err != nil {
		return fmt.Errorf("move back: %w", err)
	}
	return to.Remove(ctx)
}

// Eject makes a job of one member of a launch's leaf and its descendants.
func (x *hold) Eject(ctx context.Context, from, process string, pid int, limits *api.Limits, before func(containment.Started) error) error {
	x.jobs.moving.Lock()
	defer x.jobs.moving.Unlock()
	leaf, err := x.openLeaf(from)
	if isRemoved(err) {
		return noMembers(from)
	}
	if err != nil {
		return fmt.Errorf("open the leaf of %s: %w", from, err)
	}
	defer leaf.Close()
	h, err := x.member(leaf, from, pid)
	if err != nil {
		return err
	}
	s, err := x.eject(ctx, leaf, h, process, limits, before)
	if err != nil {
		h.Close()
		return err
	}
	x.enterJoined(s, h)
	return nil
}

// member opens one that is in a leaf, and is not the launched process.
func (x *hold) member(leaf *cgroup.Dir, from string, pid int) (*pidfd.Handle, error) {
	refused := func(err error) error {
		return api.Errorf(api.CodeNotFound, "process %d is not in the leaf of %s: %v", pid, from, err)
	}
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return nil, refused(err)
	}
	x.mu.Lock()
	p := x.procs[from]
	x.mu.Unlock()
	if p != nil && p.started.PID == pid && x.running(from) {
		return nil, api.Errorf(api.CodeBadRequest, "process %d is %s itself", pid, from).WithRemedy("promote %s", from)
	}
	var out *pidfd.Handle
	hidden, err := leaf.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		if f.PID != pid || out != nil {
			return nil
		}
		fd, err := h.Dup()
		if err != nil {
			return err
		}
		out = pidfd.FromFD(fd, pid)
		return nil
	})
	switch {
	case out != nil:
		return out, nil
	case err == nil && hidden > 0:
		err = errors.New("some of its processes are in a PID namespace that the service cannot see")
	case err == nil:
		err = pidfd.ErrGone
	}
	return nil, refused(err)
}

// eject makes the leaf, has it recorded who is to be in it, and moves.
func (x *hold) eject(ctx context.Context, from *cgroup.Dir, h *pidfd.Handle, process string, limits *api.Limits,
	before func(containment.Started) error) (wire.Started, error) {
	to, err := x.makeJob(process, limits)
	if err != nil {
		return wire.Started{}, err
	}
	defer to.Close()
	s, err := x.joining(process, h, to)
	if err == nil {
		err = before(x.started(s))
	}
	if err != nil {
		return s, errors.Join(err, to.Remove(context.WithoutCancel(ctx)))
	}
	_, err = x.fill(ctx, process, from, to, func(ctx context.Context) (int, error) { return from.MoveTree(ctx, to, h) })
	return s, err
}

// JobMembers lists the processes of a job.
func (x *hold) JobMembers(process string) ([]api.Member, error) {
	d, err := x.openJob(process)
	if isRemoved(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the members of job %s: %w", process, err)
	}
	defer d.Close()
	ms, err := d.Members()
	if err != nil && !isRemoved(err) {
		return nil, fmt.Errorf("list the members of job %s: %w", process, err)
	}
	for i := range ms {
		ms[i].Process = process
	}
	return ms, nil
}

// JobAlive counts the processes of a job.
func (x *hold) JobAlive(process string) (int, error) {
	d, err := x.openJob(process)
	if isRemoved(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return alive(d)
}

// alive counts what is in a cgroup. One that no list of processes shows counts
// as one.
func alive(d *cgroup.Dir) (int, error) {
	seen, hidden, err := d.Count()
	if isRemoved(err) {
		return 0, nil
	}
	n := seen + hidden
	if err == nil && n == 0 {
		var populated bool
		if populated, err = d.Populated(); populated {
			n = 1
		}
	}
	return n, err
}

// WaitJob waits until a job is empty, and the launched process has ended.
func (x *hold) WaitJob(ctx context.Context, process string) error {
	d, err := x.openJob(process)
	if err == nil {
		err = d.Empty(ctx)
		d.Close()
	}
	if err != nil && !isRemoved(err) {
		return err
	}
	if h := x.handleOf(process); h != nil {
		if err := h.Wait(ctx); err != nil && x.running(process) {
			return err
		}
	}
	x.dropJob(process)
	return nil
}

// handleOf is the handle of a launch whose end is not known, or nil.
func (x *hold) handleOf(process string) *pidfd.Handle {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.procs[process]; p != nil {
		return p.handle
	}
	return nil
}

// dropJob removes a job's leaf, once it is empty and the end of the launched
// process was told: until then its counters say whether memory was short.
func (x *hold) dropJob(process string) {
	x.mu.Lock()
	j, p := x.jobs.of[process], x.procs[process]
	over := j != nil && !j.gone && (p == nil || p.exit != nil || p.lost != "")
	x.mu.Unlock()
	if !over {
		return
	}
	d, err := x.openJob(process)
	if err != nil {
		return
	}
	defer d.Close()
	if populated, err := d.Populated(); err != nil || populated {
		return
	}
	usage := d.Usage()
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	if d.Remove(ctx) != nil { // never a populated one
		return
	}
	x.mu.Lock()
	j.last, j.gone = usage, true
	x.mu.Unlock()
}

// JobUsage reads the counters of a launch: what it used below work/, and as a
// job.
func (x *hold) JobUsage(process string) api.Usage {
	x.mu.Lock()
	j := x.jobs.of[process]
	var before, last api.Usage
	gone := false
	if j != nil {
		before, last, gone = j.before, j.last, j.gone
	}
	x.mu.Unlock()
	if gone {
		return sum(before, last)
	}
	d, err := x.openLeaf(process)
	switch {
	case err != nil && j == nil:
		return api.NoUsage()
	case err != nil:
		return before
	}
	defer d.Close()
	if j == nil {
		return d.Usage()
	}
	return sum(before, d.Usage())
}

// sum adds counters; -1 is one that is not known.
func sum(a, b api.Usage) api.Usage {
	add := func(a, b int64) int64 {
		if a < 0 || b < 0 {
			return max(a, b)
		}
		return a + b
	}
	return api.Usage{
		CPUUsec: add(a.CPUUsec, b.CPUUsec), UserUsec: add(a.UserUsec, b.UserUsec), SystemUsec: add(a.SystemUsec, b.SystemUsec),
		MemoryPeak: max(a.MemoryPeak, b.MemoryPeak), PIDsPeak: max(a.PIDsPeak, b.PIDsPeak),
		IOReadBytes: add(a.IOReadBytes, b.IOReadBytes), IOWriteBytes: add(a.IOWriteBytes, b.IOWriteBytes),
		OOMKills: add(a.OOMKills, b.OOMKills), OOMGroupKills: add(a.OOMGroupKills, b.OOMGroupKills),
	}
}

// jobsAlive tells whether somebody lives in jobs/.
func (x *hold) jobsAlive() (bool, error) {
	d := x.jobsDir()
	if d == nil {
		return false, nil
	}
	return d.Populated()
}

// jobOOM is how many processes of a job were ended for want of memory; 0 for
// what is no job.
func (x *hold) jobOOM(process string) int64 {
	if !x.isJob(process) {
		return 0
	}
	return max(0, x.JobUsage(process).OOMKills)
}

// refuseJobs is the error of a hold that is to be let go while its jobs live.
func (x *hold) refuseJobs() error {
	switch live, err := x.jobsAlive(); {
	case err != nil:
		return fmt.Errorf("look for jobs: %w", err)
	case live:
		return fmt.Errorf("let go of the turn: its jobs live: %w", syscall.EBUSY)
	}
	return nil
}

// endBeside ends what has moved itself beside work/ while jobs live: then Release,
// which ends it otherwise, does not come.
func (x *hold) endBeside(deadline time.Time, out *containment.Killed) {
	if live, err := x.jobsAlive(); err != nil || !live || x.Alone() {
		return
	}
	beside := func(f cgroup.Found) bool {
		part, _, _ := strings.Cut(f.Dir, "/")
		return part != workName && part != jobsName && (x.keeper == nil || f.PID != x.keeper.PID())
	}
	n := 0
	for first := true; ; first = false {
		left := 0
		_, err := x.dir.Each(func(h *pidfd.Handle, f cgroup.Found) error {
			if !beside(f) {
				return nil
			}
			if left++; first {
				n++
			}
			if err := h.Signal(syscall.SIGKILL); !errors.Is(err, pidfd.ErrGone) {
				return err
			}
			return nil
		})
		switch {
		case left == 0 && err == nil:
			out.Notes = append(out.Notes, fmt.Sprintf("%d processes were beside the turn's launches and its jobs, and were ended", n))
			return
		case !time.Now().Before(deadline):
			for _, s := range x.dir.Survivors() {
				if beside(cgroup.Found{PID: s.PID, Dir: s.Cgroup}) {
					out.Survivors = append(out.Survivors, s)
				}
			}
			return
		}
		sys.Nanosleep(int64(100 * time.Microsecond))
	}
}
