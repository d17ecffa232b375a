package containment

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
)

// JobRecord is a job on disk, in the record of the turn that launched it.
type JobRecord struct {
	Process   string            `json:"process"` // the launch; the job's id is the turn's with it
	Origin    api.JobOrigin     `json:"origin"`
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Session   string            `json:"session,omitempty"`
	Listed    string            `json:"listed,omitempty"` // the turn that it was given to
	Moving    bool              `json:"moving,omitempty"` // its promotion is not known to be whole
	CreatedAt time.Time         `json:"created_at"`
	MaxMS     int64             `json:"max_ms,omitempty"`
	Due       time.Duration     `json:"due,omitempty"` // on the monotonic clock; a started job has its turn's clock
	EndedAt   *time.Time        `json:"ended_at,omitempty"`
	Reason    api.Reason        `json:"reason,omitempty"`
	Actor     *api.Actor        `json:"actor,omitempty"`
	Survivors []api.Survivor    `json:"survivors,omitempty"`
	Notes     []string          `json:"notes,omitempty"`
}

// job is a job in memory, below its turn's lock.
type job struct {
	JobRecord
	timer *time.Timer
	ended chan struct{} // closed when it has ended
}

func newJob(r JobRecord) *job {
	j := &job{JobRecord: r, ended: make(chan struct{})}
	if r.EndedAt != nil {
		close(j.ended)
	}
	return j
}

// jobID names a job by its launch: both are random enough, and found again
// without an index.
func jobID(turn, process string) string { return turn + "-" + process }

// JobTurn takes a job's id apart; ok is false for what is none.
func JobTurn(id string) (turn, process string, ok bool) {
	turn, process, ok = strings.Cut(id, "-")
	return turn, process, ok && turn != "" && strings.HasPrefix(process, "p")
}

func noJob(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "no job %q", id).WithRemedy("list jobs with `pinfold jobs -a`")
}

// job finds the job of a launch; the lock is held.
func (t *turn) job(process string) *job {
	for _, j := range t.jobs {
		if j.Process == process {
			return j
		}
	}
	return nil
}

// liveJobs tells whether a job of this turn's launches has not ended, which is
// why the turn's keeper and cgroup stay when the turn is over; the lock is held.
func (t *turn) liveJobs() bool {
	return t.view.Kind != api.KindJob && slices.ContainsFunc(t.jobs, func(j *job) bool { return j.EndedAt == nil })
}

// keepsJobs is liveJobs, with the lock not held.
func (t *turn) keepsJobs() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.liveJobs()
}

// showJob is the job without what only the kernel knows; the lock is held.
func (t *turn) showJob(j *job) api.Job {
	v := api.Job{ID: jobID(t.id, j.Process), Name: j.Name, Labels: j.Labels, Session: j.Session, Owner: t.owner, Origin: j.Origin,
		Turn: t.id, Process: j.Process, Listed: j.Listed, CreatedAt: j.CreatedAt, EndedAt: j.EndedAt, Reason: j.Reason, Actor: j.Actor,
		Grade: t.view.Grade, Cgroup: t.view.Cgroup, Unit: t.view.Unit, Limits: t.view.Limits, MaxMS: j.MaxMS,
		Survivors: slices.Clone(j.Survivors), Notes: slices.Clone(j.Notes), Argv: []string{}, State: api.JobEnded}
	if p := t.byID[j.Process]; p != nil {
		v.PID, v.Argv, v.Cwd, v.Status, v.StartedAt, v.Identity = p.view.PID, p.view.Argv, p.view.Cwd, p.view.Status, p.view.StartedAt, p.view.Identity
		v.Output = p.view.Output
	}
	switch {
	case j.EndedAt != nil:
	case v.Status.State == api.ProcessRunning:
		v.State = api.JobRunning
	default:
		v.State = api.JobLingering
	}
	if v.State != api.JobEnded {
		v.Clocks = t.jobClocks(j)
	}
	if v.Cgroup != "" {
		v.Cgroup = filepath.Join(v.Cgroup, map[bool]string{true: "work", false: "jobs"}[j.Origin == api.JobStarted], j.Process)
	}
	return v
}

// jobClocks is how long the job may live; the lock is held.
func (t *turn) jobClocks(j *job) []api.Clock {
	if j.Due == 0 {
		return nil
	}
	left := max(0, j.Due-t.clock())
	at := time.Now().Add(left).UTC()
	return []api.Clock{{Name: api.ClockJob, LimitMS: j.MaxMS, LeftMS: left.Milliseconds(), Running: true, DueAt: &at}}
}

// lookJob is the job with a fresh count of what is alive, and its output.
func (m *Manager) lookJob(t *turn, j *job) api.Job {
	t.mu.Lock()
	v, h := t.showJob(j), t.hold
	started := j.Origin == api.JobStarted
	var p api.Process
	if q := t.byID[j.Process]; q != nil {
		p = q.view
	}
	t.mu.Unlock()
	v.Output = m.withOutput(p).Output
	switch {
	case v.State == api.JobEnded:
		return v
	case h == nil:
		v.Alive = -1
		return v
	}
	n, err := h.JobAlive(j.Process)
	if started {
		n, err = h.Alive()
	}
	if err != nil {
		n = -1
	}
	v.Alive = n
	return v
}

// findJob finds a job that this Manager holds in memory.
func (m *Manager) findJob(id string) (*turn, *job, bool) {
	turn, process, ok := JobTurn(id)
	if !ok {
		return nil, nil, false
	}
	t, ok := m.live(turn)
	if !ok {
		return nil, nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.job(process)
	return t, j, j != nil
}

// Job returns one job, from memory or from the history.
func (m *Manager) Job(ctx context.Context, id string) (api.Job, error) {
	if t, j, ok := m.findJob(id); ok {
		return m.lookJob(t, j), nil
	}
	turn, process, ok := JobTurn(id)
	if !ok {
		return api.Job{}, noJob(id)
	}
	r, ok, err := m.cfg.Records.Ended(turn)
	if err != nil {
		return api.Job{}, api.Errorf(api.CodeInternal, "read history of turn %s: %v", turn, err)
	}
	for _, v := range endedJobs(r) {
		if ok && v.Process == process {
			return v, nil
		}
	}
	return api.Job{}, noJob(id)
}

// endedJobs are the jobs of a turn in the history.
func endedJobs(r Record) []api.Job {
	t := newTurn(r.Turn)
	for _, v := range r.Turn.Processes {
		t.byID[v.ID] = &process{view: v}
	}
	out := make([]api.Job, 0, len(r.Jobs))
	for _, j := range r.Jobs {
		out = append(out, t.showJob(newJob(j)))
	}
	return out
}

// Jobs lists jobs, oldest first.
func (m *Manager) Jobs(ctx context.Context, f JobFilter) ([]api.Job, error) {
	if f.Cwd != "" && !filepath.IsAbs(f.Cwd) {
		return nil, api.Errorf(api.CodeBadRequest, "cwd %q is not absolute", f.Cwd)
	}
	var out []api.Job
	seen := map[string]bool{}
	for _, t := range m.all() {
		t.mu.Lock()
		jobs := slices.Clone(t.jobs)
		t.mu.Unlock()
		for _, j := range jobs {
			v := m.lookJob(t, j)
			if seen[v.ID] = true; f.match(v) {
				out = append(out, v)
			}
		}
	}
	if f.All {
		old, err := m.cfg.Records.EndedTurns(f.Owner, historyShown)
		if err != nil {
			return nil, api.Errorf(api.CodeInternal, "read history: %v", err)
		}
		for _, r := range old {
			for _, v := range endedJobs(r) {
				if !seen[v.ID] && f.match(v) {
					out = append(out, v)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b api.Job) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

// all are the turns in memory.
func (m *Manager) all() []*turn {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]*turn, 0, len(m.turns))
	for _, t := range m.turns {
		out = append(out, t)
	}
	return out
}

func (f JobFilter) match(v api.Job) bool {
	return (f.Owner == nil || *f.Owner == v.Owner) &&
		(f.Session == "" || f.Session == v.Session) &&
		(f.Turn == "" || f.Turn == cmp.Or(v.Listed, v.Turn)) &&
		(f.Cwd == "" || below(v.Cwd, f.Cwd) || below(resolved(v.Cwd), resolved(f.Cwd))) &&
		(f.All || v.State != api.JobEnded) &&
		hasLabels(v.Labels, f.Labels)
}

// resolved is a path without its symbolic links, as far as it is there.
func resolved(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// below tells whether a path is dir or in it.
func below(path, dir string) bool {
	path, dir = filepath.Clean(path), filepath.Clean(dir)
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// hasLabels tells whether all that are wanted are there.
func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// WaitJob returns once the job has ended.
func (m *Manager) WaitJob(ctx context.Context, id string) (api.Job, error) {
	_, j, ok := m.findJob(id)
	if !ok {
		return m.Job(ctx, id)
	}
	select {
	case <-j.ended:
		return m.Job(ctx, id)
	case <-ctx.Done():
		v, _ := m.Job(ctx, id)
		return v, api.Errorf(api.CodeTimeout, "job %s is still %s", id, v.State)
	}
}
