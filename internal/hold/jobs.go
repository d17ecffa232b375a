package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
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

// livesIn is the cgroup of a launch that was moved to jobs/.
func (x *hold) livesIn(process string) uint64 {
	leaf, err := x.openJob(process)
	if err != nil {
		return 0
	}
	defer leaf.Close()
	return leaf.ID()
}

// openLeaf opens what a launch lives in.
func (x *hold) openLeaf(process string) (*cgroup.Dir, error) {
	if x.isJob(process) {
		return x.openJob(process)
	}
	return x.work.Open(process)
}

// leafPath is where openLeaf looks; there may be nothing any more.
func (x *hold) leafPath(process string) string {
	if d := x.jobsDir(); d != nil && x.isJob(process) {
		return filepath.Join(d.Path(), process)
	}
	return filepath.Join(x.work.Path(), process)
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

// alive counts what is in a cgroup. One that no list of processes shows counts as
// one, and a main thread that stayed behind, dead, as none.
func alive(d *cgroup.Dir) (int, error) {
	populated, err := d.Populated()
	if err != nil || !populated {
		return 0, err
	}
	seen, hidden, err := d.Living()
	if n := len(seen) + hidden; err != nil || n > 0 {
		return n, err
	}
	if populated, err = d.Populated(); err != nil || !populated {
		return 0, err
	}
	return 1, nil
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
func (x *keeping) handleOf(process string) *pidfd.Handle {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.procs[process]; p != nil {
		return p.handle
	}
	return nil
}

// endless tells of a launch of whose end nobody has told, or that nobody will.
func (x *keeping) endless(process string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.procs[process]
	return p != nil && p.exit == nil && p.lost == ""
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
