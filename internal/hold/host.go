package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/feature"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
	"pinfold.dev/systemd"
)

// Config says how turns are to be held.
type Config struct {
	Grade        api.Grade    // auto, or the only one to use
	CgroupParent string       // grade cgroup: an absolute directory; empty: our own cgroup
	Init         string       // absolute path of pinfold-init
	AllowPIDNS   bool         // turns may have a PID namespace of their own
	RuntimeDir   string       // turns keep their sockets and journals below it
	StateDir     string       // shown by Info
	Version      string       // shown by Info
	PIDs         int64        // default pids.max of a turn; 0: chosen from the host's pid_max
	Keep         Keep         // keeps handles for the next service; nil: nobody does
	Kept         []Kept       // what it had kept, by names that IsKeptHandle knows; Open takes them over
	Log          *slog.Logger // nil: silent
}

// verdictFor is how long a grade that failed is not tried again: as long as
// makes the trying cheap, and a minute at most.
func verdictFor(took time.Duration) time.Duration {
	return min(max(10*took, time.Second), time.Minute)
}

// Host begins turns. It implements containment.Host.
type Host struct {
	cfg      Config
	log      *slog.Logger
	instance string // marks what is ours; as old as the runtime directory
	boot     string
	mount    cgroup.Mount
	mountErr error
	mgr      *systemd.Manager // nil: no grade scope
	scopeErr error            // why there is none
	parent   *cgroup.Dir      // nil: no grade cgroup
	groupErr error            // why there is none
	moves    bool             // keepers are moved into their cgroup: they die at birth in it
	gate     bool             // children cloned into a cgroup die at birth here
	notes    []string         // what the host could not give at grade cgroup, in words
	weak     []string         // and at any grade
	fb       *fallback.Host   // for hosts, and turns, without cgroups or handles
	bare     api.Grade        // what is left where there is no cgroup
	opening  bool             // Open has not returned
	proving  sync.Mutex
	tried    map[api.Grade]verdict // of the grades without a cgroup; below proving
	unproven map[api.Grade]string  // what an earlier self-test speaks for, and why
	ctrls    []string              // controllers that turns at grade cgroup get

	opener  *pidfd.Opener // of recorded processes; thousands, when the service starts
	tending sync.Mutex
	place   sys.Place // of the runtime directory; below tending

	telling sync.WaitGroup // systemd of scopes that are over
	waited  atomic.Bool    // a keeper did not answer in time when it was found again

	mu        sync.Mutex
	scopes    string // the directory that scopes are made in, once one was
	kept      map[string]int
	keepers   map[string]api.Identity // of the turns that are held
	mechanism string                  // how the self-test's turn was ended
	marked    []string                // what is to be told of the instance and its runtime directory
	homeBad   error                   // why that is not this service's; nil: it is
	scopeBad  time.Time               // until when scope is not tried
	badWhy    error
}

// Open finds out what this host offers, by trying: it begins a turn, launches
// in it and ends it, at each grade that Config allows, best first. It fails
// when there is none, and says for each why and what to do.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h := &Host{cfg: cfg, opener: pidfd.NewOpener(), log: cfg.Log, boot: bootID(), unproven: map[api.Grade]string{}, fb: fallback.NewHost(), tried: map[api.Grade]verdict{}}
	h.takeKept()
	if err := h.checkInit(); err != nil {
		return nil, err
	}
	in, err := openInstance(cfg.RuntimeDir, h.boot)
	if err != nil {
		return nil, err
	}
	h.instance, h.place, h.marked = in.mark, in.place, in.notes
	for _, n := range in.notes {
		cfg.Log.Warn("the mark of what is ours", "note", n)
	}
	h.mount, h.mountErr = cgroup.FindMount()
	if h.mountErr != nil {
		h.scopeErr, h.groupErr = h.mountErr, h.mountErr
	} else {
		h.openScope(ctx)
		h.openGroup()
	}
	h.noteHandles()
	h.selfTest(ctx)
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if h.mgr == nil && h.parent == nil {
		h.opening = true
		h.bare, err = h.bestBare(ctx, "", false)
		h.opening = false
		if err != nil {
			err = h.refuse(h.scopeErr, h.groupErr, err)
			return nil, errors.Join(err, h.Close())
		}
		h.log.Warn("no cgroup holds turns here: they are held less well", "grade", h.bare, "scope", h.scopeErr, "cgroup", h.groupErr)
	}
	return h, nil
}

// noteHandles tells where handles cannot be opened: cgroup.kill needs none, the
// rest of an ending does.
func (h *Host) noteHandles() {
	if err := feature.New("").Check(feature.PidfdOpen); errors.Is(err, feature.ErrNotSupported) {
		h.weak = append(h.weak, fmt.Sprintf("no handle can be opened on a process (%v): nothing is asked to stop before it is killed, "+
			"and what cgroup.kill does not reach, such as a process without its main thread, survives and is told", err))
	}
}

// checkInit finds a wrong path before the first turn does.
func (h *Host) checkInit() error {
	fi, err := os.Stat(h.cfg.Init)
	switch {
	case err != nil:
		return fmt.Errorf("find pinfold-init: %w", err)
	case !filepath.IsAbs(h.cfg.Init):
		return fmt.Errorf("find pinfold-init: %q is not an absolute path", h.cfg.Init)
	case fi.IsDir() || fi.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("find pinfold-init: %s is not an executable file", h.cfg.Init)
	}
	return nil
}

// refuse is the answer of a host that can hold nothing.
func (h *Host) refuse(scope, group, bare error) error {
	e := api.Errorf(api.CodeGradeUnavailable, "this host cannot hold turns; scope: %v; cgroup: %v; %s", scope, group, oneLine(bare))
	switch {
	case h.cfg.Grade == api.GradeScope:
		e.Message = fmt.Sprintf("grade scope was demanded and is not to be had: %v", scope)
	case h.cfg.Grade == api.GradeCgroup:
		e.Message = fmt.Sprintf("grade cgroup was demanded and is not to be had: %v", group)
	case !h.allows(api.GradeScope):
		e.Message = fmt.Sprintf("grade %s was demanded and is not to be had: %s", h.cfg.Grade, oneLine(bare))
	}
	if errors.Is(scope, errNoRoom) || errors.Is(group, errNoRoom) || errors.Is(bare, errNoRoom) {
		return e.WithRemedy("make room in %s", h.cfg.RuntimeDir)
	}
	if errors.Is(scope, errFull) || errors.Is(group, errFull) || errors.Is(bare, errFull) {
		return e.WithRemedy("end what takes them, or raise the service's and the host's limits, and start it again")
	}
	if errors.Is(scope, errSlow) || errors.Is(group, errSlow) || errors.Is(bare, errSlow) {
		return e.WithRemedy("start it again; if the host is not busy, look for a frozen cgroup above the one that turns are to be held in")
	}
	return e.WithRemedy("run under systemd, or give the service a writable cgroup v2 directory with --cgroup-parent; see docs/grades.md")
}

func (h *Host) allows(g api.Grade) bool {
	return h.cfg.Grade == "" || h.cfg.Grade == api.GradeAuto || h.cfg.Grade == g
}

// openScope reaches the service manager.
func (h *Host) openScope(ctx context.Context) {
	if !h.allows(api.GradeScope) {
		h.scopeErr = fmt.Errorf("not asked for (--grade %s)", h.cfg.Grade)
		return
	}
	m, err := systemd.Connect(ctx, systemd.Config{User: os.Geteuid() != 0, Log: h.log})
	if err != nil {
		h.scopeErr = err
		return
	}
	h.mgr = m
}

// openGroup makes the directory below which turns at grade cgroup live.
func (h *Host) openGroup() {
	if !h.allows(api.GradeCgroup) {
		h.groupErr = fmt.Errorf("not asked for (--grade %s)", h.cfg.Grade)
		return
	}
	path := h.cfg.CgroupParent
	if path == "" {
		own, err := h.mount.Own()
		if err != nil {
			h.groupErr = err
			return
		}
		path = own
	}
	h.parent, h.groupErr = h.makeParent(path)
}

func (h *Host) makeParent(path string) (*cgroup.Dir, error) {
	above, err := cgroup.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the parent cgroup: %w", err)
	}
	defer above.Close()
	name := "pinfold-" + h.instance
	d, err := above.Make(name)
	if errors.Is(err, os.ErrExist) {
		d, err = above.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("make a cgroup below %s: %w", path, err)
	}
	h.ctrls = h.delegate(above, d)
	return d, nil
}

// delegate hands the parent's controllers down. A cgroup with processes of its
// own cannot (no-internal-process rule, cgroups(7)): where those are only us,
// we move to a leaf; else turns are held without limits, and that is told.
func (h *Host) delegate(above, d *cgroup.Dir) []string {
	names, err := useful(above)
	if err != nil || len(names) == 0 {
		h.notes = append(h.notes, "no cgroup v2 controllers here: turns are held, but without limits and memory figures")
		return nil
	}
	got, derr := above.Delegate(names)
	if len(got) < len(names) && h.stepAside(above) {
		got, derr = above.Delegate(names)
	}
	if len(got) == 0 {
		h.notes = append(h.notes, fmt.Sprintf("controllers cannot be handed down (%v): turns are held, but without limits", derr))
		return nil
	}
	got, _ = d.Delegate(got)
	return got
}

// useful lists the controllers that bound or count what turns do; all others are
// none of our business.
func useful(d *cgroup.Dir) ([]string, error) {
	names, err := d.Controllers()
	return slices.DeleteFunc(names, func(name string) bool { return !slices.Contains([]string{"cpu", "io", "memory", "pids"}, name) }), err
}

// stepAside moves this service into a leaf when it is alone in above.
func (h *Host) stepAside(above *cgroup.Dir) bool {
	own, err := h.mount.Own()
	if err != nil || filepath.Clean(own) != filepath.Clean(above.Path()) {
		return false
	}
	pids, err := above.Pids()
	if err != nil {
		return false
	}
	for _, p := range pids {
		if p.Dir == "" && p.PID != os.Getpid() {
			return false
		}
	}
	leaf, err := above.Make("service-" + h.instance)
	if errors.Is(err, os.ErrExist) {
		leaf, err = above.Open("service-" + h.instance)
	}
	if err != nil {
		return false
	}
	defer leaf.Close()
	return leaf.Add(os.Getpid()) == nil
}

// Close lets go of the bus and of descriptors; turns go on.
func (h *Host) Close() error {
	told := make(chan struct{})
	go func() { h.telling.Wait(); close(told) }()
	select { // else empty scopes stay for the next service
	case <-told:
	case <-time.After(tellTime):
	}
	var err error
	if h.mgr != nil {
		err = h.mgr.Close()
	}
	if h.parent != nil {
		err = errors.Join(err, h.parent.Close())
		_ = os.Remove(h.parent.Path()) // rmdir: refused while there is a turn in it
	}
	return err
}

// Grade is what the next turn gets.
func (h *Host) Grade() api.Grade {
	if h.mgr != nil && (h.parent == nil || h.scopeTrusted() == nil) {
		return api.GradeScope
	}
	if h.parent == nil {
		return h.bare
	}
	return api.GradeCgroup
}

// scopeTrusted is nil, or why scope failed not long enough ago.
func (h *Host) scopeTrusted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.scopeBad) {
		return h.badWhy
	}
	return nil
}

// distrustScope is told that a scope failed, and how long that took.
func (h *Host) distrustScope(why error, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scopeBad, h.badWhy = time.Now().Add(verdictFor(took)), why
}
