package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"pinfold.dev/containment"
	"pinfold.dev/internal/events"
	"pinfold.dev/internal/hold"
	"pinfold.dev/internal/outputs"
	"pinfold.dev/internal/store"
	"pinfold.dev/internal/users"
	"pinfold.dev/server"
	"pinfold.dev/systemd"
)

// stopBound is how long a stopping service waits for endings under way. What
// does not end in time goes on at the next start, from its record.
const stopBound = 20 * time.Second

// runServe is the service: it puts the packages together and serves until ctx
// ends.
func runServe(ctx context.Context, o serveOptions) error {
	lock := &dirLock{runtime: o.RuntimeDir, state: o.StateDir}
	if err := lock.hold(); err != nil {
		return err
	}
	defer lock.release()
	admin, err := adminGroup(o.AdminGroup)
	if err != nil {
		return err
	}
	st, err := store.Open(o.RuntimeDir, o.StateDir, o.History)
	if err != nil {
		return err
	}
	defer st.Close()
	if note := st.Note(); note != "" {
		o.Log.Warn(note)
	}
	host, err := hold.Open(ctx, hold.Config{Grade: o.Grade, CgroupParent: o.CgroupParent, AllowPIDNS: o.AllowPIDNS, Init: o.Init,
		RuntimeDir: o.RuntimeDir, StateDir: o.StateDir, Version: o.Version, Log: o.Log, Keep: o.keep(), Kept: o.handed.handles})
	if err != nil && ctx.Err() != nil { // cut short, which tells nothing of the host
		o.Log.Info("stopped before it was ready")
		return nil
	}
	if err != nil {
		return err
	}
	defer host.Close()
	kept, err := outputs.Open(o.StateDir)
	if err != nil {
		return err
	}
	defer kept.Close()
	log, err := events.Open(events.Config{StateDir: o.StateDir, RuntimeDir: o.RuntimeDir, Boot: host.Boot(), Log: o.Log})
	if err != nil {
		return err
	}
	tend := &tender{o: o, host: host, st: st, lock: lock}
	m := containment.New(containment.Config{Host: hold.WithTokens{Host: host}, Records: st, Users: &users.Database{}, Log: o.Log,
		Boot: host.Boot(), UID: uint32(os.Geteuid()), Grace: o.Grace, Bound: o.Bound, Clock: hold.Monotonic(),
		Own: hold.OwnAttributes(), Outputs: kept, Events: log, Upkeep: host, History: st.History, Recorded: st.Has, Spare: spareFor, Tend: func() { tend.tend() }, Retention: o.Retention, OutputRoom: o.OutputRoom})
	tend.m = m
	spare := keepSpareFiles()
	if err := m.Unearth(ctx, log.Gone()); err != nil {
		o.Log.Error("some turns of an earlier boot, whose records went with it, are not known any more", "error", err)
	}
	err = m.Recover(context.WithoutCancel(ctx)) // a stop does not make keepers look gone
	spare.free()
	if err != nil {
		o.Log.Error("some turns of an earlier service were not found again; the others were", "error", err)
	}
	log.Retain(m.Knows)
	if n := host.ForgetKept(m.Knows); n > 0 {
		o.Log.Info("handles that systemd had kept are of no turn any more, and are dropped", "handles", n)
	}
	for _, err := range host.EndStrays(ctx, m.Claims) {
		o.Log.Warn("a stray cgroup of an earlier service", "what", err)
	}
	err = serveSocket(ctx, o, m, admin, tend)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
	defer cancel()
	defer o.lastNews(end)
	err = errors.Join(err, m.Close(end))
	if lerr := log.Close(end); lerr != nil {
		o.Log.Warn("some events are lost", "error", lerr)
	}
	return err
}

// serveSocket listens, says that it is ready, and answers until ctx ends.
func serveSocket(ctx context.Context, o serveOptions, m *containment.Manager, admin *uint32, tend *tender) error {
	l, stop, err := o.listen()
	if err != nil {
		return err
	}
	guard, unguard := context.WithCancel(context.WithoutCancel(ctx))
	defer unguard()
	go o.notifier.Guard(guard, o.watchdog, func() { m.Knows("") }) // which takes the lock that all requests take
	s := server.New(server.Config{Engine: m, Log: o.Log, AdminGroup: admin, Below: tend.host.TurnOf, Blind: hold.ErrBlind})
	go tend.guard(guard, s, l)
	fmt.Fprintf(o.Say, "pinfold %s: ready on %s, new turns are held at grade %s\n", o.Version, o.Socket, m.Grade())
	o.notifier.Say("READY=1")
	o.notifier.Status("new turns are held at grade " + string(m.Grade()))
	serving, done := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		o.notifier.Say("STOPPING=1")
		tend.stopping()
		stop(context.WithoutCancel(ctx))
		done()
	})()
	defer done()
	return s.Serve(serving, l)
}

// lastNews is what systemd is to have before the service goes.
func (o serveOptions) lastNews(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	o.notifier.Close(ctx)
}

// meetSystemd takes what systemd has handed over, and says to whom the rest is to
// be told. said is what --socket says.
func (o *serveOptions) meetSystemd(getenv func(string) string, said string) error {
	passed, err := systemd.TakePassed(getenv)
	if err != nil {
		return err
	}
	if said != "" {
		said = o.Socket
	}
	if o.handed, err = sortHanded(passed, said); err != nil {
		return err
	}
	if o.notifier, err = systemd.NewNotifier(getenv, o.Log, o.handed.stored); err != nil {
		return err
	}
	for _, name := range o.handed.strange {
		o.Log.Warn("systemd has kept a descriptor that means nothing here; it is dropped", "name", name)
		o.notifier.Remove(name)
	}
	if o.handed.unit != nil {
		o.Socket = o.handed.unit.Addr().String()
	}
	o.watchdog = systemd.WatchdogEvery(getenv)
	return nil
}

// keep is who keeps handles of processes.
func (o serveOptions) keep() hold.Keep {
	if !o.notifier.Stores() {
		return nil
	}
	return o.notifier
}

// socketMode lets everybody connect to root's service, where peer credentials
// decide, and nobody else to a user's own.
func socketMode() os.FileMode {
	if os.Geteuid() == 0 {
		return 0o666
	}
	return 0o600
}

// adminGroup looks a group up by name or number; an empty name is none.
func adminGroup(name string) (*uint32, error) {
	if name == "" {
		return nil, nil
	}
	id := name
	if g, err := user.LookupGroup(name); err == nil {
		id = g.Gid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("look up --admin-group: no group %q", name)
	}
	gid := uint32(n)
	return &gid, nil
}
