package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// Recover finds a recorded hold again: its cgroup by path, id and nonce, its
// keeper by identity and by what it says in its hello.
func (h *Host) Recover(ctx context.Context, turn string, facts containment.Facts, hooks containment.Hooks) (containment.Hold, api.Verdict, error) {
	if why := h.another(turn, facts); why != nil {
		v, err := leaveToOther(facts, why)
		return nil, v, err
	}
	if err := h.room(); err != nil {
		return nil, api.VerdictUnverifiable, err
	}
	h.settle(turn, &facts)
	if facts.Bare {
		return h.recoverBare(ctx, turn, facts, hooks)
	}
	x := h.newHold(turn, facts, hooks)
	keeper, kv, why := h.openKeeper(ctx, turn, facts.Keeper)
	if containment.RuleFor(containment.FoundKeeper, kv).Do == containment.DeedAdopt {
		x.keeper = keeper
		h.mind(turn, facts)
	}
	if !facts.Begun() { // it had not begun: nothing was ever launched in it
		kv, _ = x.doubt(kv, why)
		if containment.RuleFor(containment.FoundUnbegun, kv).Do != containment.DeedDiscard {
			return nil, kv, errors.Join(errors.New("the turn had not begun, and its keeper cannot be verified"), x.Close())
		}
		return nil, api.VerdictGone, x.endUnbegun(ctx)
	}
	dir, verdict, err := cgroup.OpenVerified(facts.Cgroup, facts.CgroupID, facts.Nonce)
	switch verdict {
	case api.VerdictOwned:
	case api.VerdictGone:
		x.readJournal() // how its processes ended is still to be known
		return x, verdict, errors.Join(err, x.Close())
	default:
		x.Close()
		return nil, verdict, err
	}
	x.dir = dir
	if err := x.openDirs(ctx); err != nil {
		x.Close()
		return nil, api.VerdictUnverifiable, err
	}
	x.told = x.whatToHold()
	if kv, why = x.doubt(kv, why); x.keeper == nil {
		x.loseKeeper(fmt.Sprintf("it is %s: %s", kv, join(why)))
		return x, api.VerdictOwned, nil
	}
	if err := x.meet(ctx, x.reachSoon); err != nil {
		x.loseKeeper(fmt.Sprintf("it does not answer: %v", err))
	}
	return x, api.VerdictOwned, nil
}

// openKeeper opens the recorded keeper, if that is what it is: a keeper will be
// killed, and a record could name any process, with everything that identifies it.
func (h *Host) openKeeper(ctx context.Context, turn string, rec api.Identity) (leader, api.Verdict, []string) {
	p, v, why := h.openLeader(rec)
	if p == nil && v != api.VerdictUnverifiable {
		return nil, v, why
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", rec.PID))
	if p != nil && err == nil && bytes.Contains(line, []byte("\x00--turn\x00"+turn+"\x00")) {
		return p, v, why
	}
	if p == nil || err != nil {
		soon, cancel := context.WithTimeout(ctx, reachTime)
		q, aerr := answering(soon, filepath.Join(h.cfg.RuntimeDir, "turns", turn), rec)
		cancel()
		if aerr == nil {
			if p != nil {
				_ = p.Close()
			}
			return q, api.VerdictOwned, append(why, "it answers at the socket in the turn's directory")
		}
		why = append(why, "at its socket: "+aerr.Error())
	}
	if p == nil {
		return nil, v, why
	}
	_ = p.Close()
	return nil, api.VerdictForeign, append(why, noKeeperOfIt)
}

// noKeeperOfIt is said of a recorded process that is there and is no keeper of the
// turn: the record is wrong.
const noKeeperOfIt = "it was not started as this turn's keeper"

// openLeader opens the recorded process by a handle, or else by what it was known
// by.
func (h *Host) openLeader(rec api.Identity) (leader, api.Verdict, []string) {
	p, v, why := h.opener.Open(rec)
	if v == api.VerdictOwned {
		return p, v, why
	}
	if v != api.VerdictUnverifiable || pidfd.Contradicts(why) {
		return nil, v, why
	}
	q, qv, qwhy := h.fb.Recall(rec)
	if qv == api.VerdictOwned {
		return known{q}, qv, qwhy
	}
	return nil, qv, append(why, qwhy...)
}

// Recall tells what the keeper of a turn had written down. Its turn may be of
// another boot, so nothing else is looked at.
func (h *Host) Recall(turn string, facts containment.Facts) containment.Hold {
	if !facts.Begun() || facts.Keeper.PID == 0 {
		return nil
	}
	x := h.newHold(turn, facts, containment.Hooks{})
	x.hooks.Exit = func(containment.Exit) {}
	x.readJournal()
	return x
}

// endUnbegun ends the keeper of a turn whose begin was cut short. It holds
// nothing; its scope, when it has one, goes with it.
func (x *hold) endUnbegun(ctx context.Context) error {
	defer x.Close()
	x.quitting.Store(true)
	ctx, cancel := context.WithTimeout(ctx, quitTime)
	defer cancel()
	if err := x.EndKeeper(ctx); err != nil {
		return err
	}
	fault.Point("unbegun.ended")
	if x.host.parent == nil || x.facts.Grade != api.GradeCgroup {
		return nil
	}
	d, err := x.host.parent.Open(x.turn) // the id is ours and was never used before
	if err != nil {
		return nil
	}
	defer d.Close()
	return d.Remove(ctx) // never a populated one
}

// Bounds of a greeting. One keeper that is stopped, or frozen, must not keep the
// service from all other turns: it is greeted in the background.
const (
	reachTime  = 2 * time.Second        // for one keeper
	reachAfter = 100 * time.Millisecond // once one has not answered
	reachAgain = 10 * time.Second       // in the background, each time
)

// reachSoon reaches the keeper within its bound.
func (x *keeping) reachSoon(ctx context.Context) error {
	bound := reachTime
	if x.host.waited.Load() {
		bound = reachAfter
	}
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := x.reach(soon)
	if err != nil && soon.Err() != nil {
		x.host.waited.Store(true)
		err = fmt.Errorf("%w: %w", soon.Err(), err)
	}
	return err
}

// reach greets the keeper, and tells it where its cgroup is, if the service died
// between furnishing that and saying so.
func (x *keeping) reach(ctx context.Context) error {
	hello, err := x.connect(ctx)
	fault.Point("keeper.met")
	if err != nil || hello.Held {
		return err
	}
	return x.tellHold(ctx)
}

// reachLater goes on until the keeper answers or is dead, or ctx ends. What it
// knows is told then.
func (x *keeping) reachLater(ctx context.Context) {
	for pause := reachAfter; ctx.Err() == nil && !x.leaving(); pause = min(2*pause, reachAgain) {
		if x.keeperDead() {
			x.loseKeeper("it has died")
			return
		}
		again, cancel := context.WithTimeout(ctx, reachAgain)
		err := x.reach(again)
		cancel()
		if err != nil {
			x.awaitDead(ctx, pause)
			continue
		}
		for _, p := range x.Processes() {
			x.hooks.Started(p)
		}
		x.unreached.Store(false) // who asks for one of them finds it
		x.host.log.Info("the keeper answers", "turn", x.turn)
		return
	}
}

// awaitDead waits d, or less when the keeper dies.
func (x *keeping) awaitDead(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if x.keeper.Wait(ctx) != nil {
		<-ctx.Done() // also where it cannot be waited for
	}
}

// remember enters the launches that a keeper tells of in its hello. The
// descriptors are those of the live ones, in order.
func (x *keeping) remember(known []wire.Process, fds []int) {
	x.rememberIf(known, fds, func(*pidfd.Handle) error { return nil })
}

// rememberIf is remember, of launches for which somebody else has to vouch, too.
func (x *keeping) rememberIf(known []wire.Process, fds []int, vouched func(*pidfd.Handle) error) {
	for _, k := range known {
		var fd []int
		if k.HasFD && len(fds) > 0 {
			fd, fds = fds[:1:1], fds[1:]
		}
		x.enter(k.Started, fd)
		if k.Exit != nil {
			x.exited(*k.Exit)
		} else if len(fd) == 0 && k.Started.PID > 0 && x.facts.Grade != api.GradePIDNS { // whose numbers are not ours, and who ends with its keeper
			x.reopen(k.Started, vouched)
		}
	}
	closeFDs(fds)
}

// reopen gets a handle for a launch whose own did not come along.
func (x *keeping) reopen(s wire.Started, vouched func(*pidfd.Handle) error) {
	rec := x.started(s).Identity
	if id := x.body.livesIn(s.Process); id != 0 { // it was recorded where it was born
		rec.CgroupID = id
	}
	h, v, why := x.host.opener.Open(rec)
	if v != api.VerdictOwned {
		h = x.claimKept(s.Process, rec)
	} else if err := vouched(h); err != nil && (!x.keeperDead() || likeLaunched(s, h) != nil) {
		k := x.claimKept(s.Process, rec) // which only a service of ours can have given away
		if k == nil {
			x.disown(s.Process, h, err)
			return
		}
		_ = h.Close()
		h = k
	}
	if h == nil {
		if x.facts.Bare && v == api.VerdictUnverifiable {
			x.hedge(s.Process, rec, why)
		}
		return
	}
	x.mu.Lock()
	p := x.procs[s.Process]
	taken := p != nil && p.handle == nil && p.exit == nil
	if taken {
		p.handle = h
	}
	x.mu.Unlock()
	if !taken {
		h.Close()
		return
	}
	x.keepHandle(s.Process, h)
	if over, err := h.Exited(); err == nil && over {
		_ = x.tellEnd(s.Process, h) // else whoever watches it tells that nobody knows
	}
}

// broken is told when the connection to the keeper breaks: it is greeted again as
// long as it lives, and given up when it is dead. A connection on which it was not
// greeted yet is none of that: whoever greets it is told.
func (x *keeping) broken(l *link, cause error) {
	x.mu.Lock()
	used := x.link == l
	if used {
		x.link = nil
	}
	x.mu.Unlock()
	if !used {
		return
	}
	const tries = 3
	var err error
	for i := 0; i < tries && !x.leaving() && !x.keeperDead(); i++ {
		ctx, cancel := context.WithTimeout(context.Background(), reachTime)
		_, err = x.connect(ctx)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond << i)
	}
	if x.leaving() {
		return
	}
	if !x.keeperDead() {
		x.host.log.Warn("a keeper that lives does not answer any more", "turn", x.turn, "error", err, "cause", cause)
		x.unreached.Store(true)
	}
	x.reachLater(context.Background())
}

// leaving tells that nobody asks the keeper anything more.
func (x *keeping) leaving() bool { return x.quitting.Load() || x.closed.Load() }

// loseKeeper takes from the journal what the keeper wrote before it went, and
// watches the handles of the rest: how those end, nobody will tell. When it returns
// that is done, by whomever.
func (x *keeping) loseKeeper(why string) {
	x.losing.Do(func() {
		x.keeperLost(why)
		x.unreached.Store(false) // all that will ever be known is
	})
}

func (x *keeping) keeperLost(why string) {
	x.readJournal()
	x.body.alone()
	if x.hooks.Started != nil {
		for _, p := range x.Processes() { // a launch that was never answered runs all the same
			x.hooks.Started(p)
		}
	}
	fault.Point("keeper.lost")
	x.hooks.KeeperLost(why)
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, p := range x.procs {
		if h := p.handle; p.exit == nil && !p.joined && p.unsure == nil {
			told := make(chan struct{})
			p.told = told
			go func() {
				defer close(told)
				x.watchLost(id, h)
			}()
		}
	}
}

// readJournal enters the launches that the keeper had written down. One that
// was only intended may have run: its end is lost.
func (x *keeping) readJournal() {
	f, err := openOwn(filepath.Join(x.facts.Dir, wire.JournalName))
	if err != nil {
		x.host.log.Warn("read the journal of a lost keeper", "turn", x.turn, "error", err)
		return
	}
	defer f.Close()
	entries, torn, err := wire.ReadJournal(f)
	if err != nil || torn > 0 {
		x.host.log.Warn("the journal of a lost keeper is not whole", "turn", x.turn, "torn_lines", torn, "error", err)
	}
	for _, r := range wire.Launches(entries) {
		x.rememberIf([]wire.Process{r.Process}, nil, x.body.vouched)
	}
}

// openOwn opens a file that nobody else can have written, and that has an end.
func openOwn(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil {
		st, ok := fi.Sys().(*syscall.Stat_t)
		if fi.Mode().IsRegular() && ok && int(st.Uid) == os.Geteuid() && fi.Mode().Perm()&0o022 == 0 {
			return f, nil
		}
		err = fmt.Errorf("read %s: not a file that only we may write (%s)", path, fi.Mode())
	}
	return nil, errors.Join(err, f.Close())
}

// watchLost waits for a process whose keeper is gone.
func (x *keeping) watchLost(id string, h *pidfd.Handle) {
	if k := x.knownOf(id); h == nil && k != nil {
		if k.Wait(context.Background()) != nil {
			return
		}
	}
	if h != nil {
		if h.Wait(context.Background()) != nil {
			return // closed: the hold was let go
		}
		err := x.tellEnd(id, h)
		if err == nil || errors.Is(err, os.ErrClosed) {
			return
		}
		x.host.log.Info("how a process ended is lost with its keeper", "turn", x.turn, "process", id, "error", err)
	}
	x.loseProcess(id, "its keeper was gone before it ended")
}
