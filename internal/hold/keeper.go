package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// keeperEnv is the keeper's whole environment.
var keeperEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// startKeeper makes the turn's directory and starts the keeper with its socket.
// The keeper holds still until it is told where its cgroup is.
func (x *keeping) startKeeper(home *cgroup.Dir) error {
	if err := os.MkdirAll(x.facts.Dir, 0o700); err != nil {
		return fmt.Errorf("make the turn's directory: %w", err)
	}
	fault.Point("dir.made")
	ls, err := listen(x.facts.Dir)
	if err != nil {
		return err
	}
	defer ls.Close()
	fault.Point("socket.made")
	h, err := x.spawn(ls, home)
	if err != nil {
		return err
	}
	x.keeper = h
	fault.Point("keeper.spawned")
	if x.facts.Keeper, err = x.keeper.Identity(); err != nil {
		return fmt.Errorf("identify the keeper: %w", err)
	}
	x.host.mind(x.turn, x.facts)
	x.facts.Keeper.CgroupID = 0 // part of who it is once it is where it belongs, see place
	return nil
}

// greet connects to the keeper in the background.
func (x *keeping) greet(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := x.connect(ctx)
		done <- err
	}()
	return done
}

// socketPath names the socket in dir through a descriptor, so that the 108
// bytes of a socket address (unix(7)) bound no directory's name, where there is a
// /proc of ours.
func socketPath(dir *os.File) string {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return filepath.Join(dir.Name(), "keeper.sock")
	}
	return fmt.Sprintf("/proc/self/fd/%d/keeper.sock", dir.Fd())
}

// listen makes the keeper's socket, so that it is there before the keeper is.
func listen(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the turn's directory: %w", err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(d), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the keeper's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(filepath.Join(dir, "keeper.sock"), 0o600); err != nil { // the directory is 0700 anyway
		return nil, fmt.Errorf("close the keeper's socket to others: %w", err)
	}
	f, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("hand over the keeper's socket: %w", err)
	}
	return f, nil
}

// spawn starts the keeper, in its own cgroup where it has one by now.
func (x *keeping) spawn(ls *os.File, home *cgroup.Dir) (*pidfd.Handle, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(x.facts.Dir, "keeper.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	defer log.Close()
	h, err := x.spawnIn(home, null.Fd(), null.Fd(), log.Fd(), ls.Fd())
	if err != nil && home != nil {
		h, err = x.spawnIn(nil, null.Fd(), null.Fd(), log.Fd(), ls.Fd()) // old kernels, and sandboxes: it is moved later
	}
	if err != nil {
		return nil, fmt.Errorf("start the keeper %s: %w", x.host.cfg.Init, err)
	}
	x.reaper.Go(func() { reap(h) })
	return h, nil
}

// spawnIn starts it in a cgroup, or in ours. To be born there costs nothing; to
// be moved there costs a wait for all processors, some 8 ms, when nobody has
// been moved on this host for a while.
func (x *keeping) spawnIn(home *cgroup.Dir, files ...uintptr) (*pidfd.Handle, error) {
	fd := -1
	attr := &syscall.SysProcAttr{Setsid: true, PidFD: &fd}
	if home != nil && !x.host.moves {
		attr.UseCgroupFD, attr.CgroupFD = true, home.FD()
	}
	argv := []string{"pinfold-init", "keeper", "--turn", x.turn, "--dir", x.facts.Dir}
	if x.facts.Grade == api.GradePIDNS {
		argv = append(argv, "--pidns")
		ownNamespace(attr)
	}
	pid, err := syscall.ForkExec(x.host.cfg.Init, argv,
		&syscall.ProcAttr{Dir: "/", Env: append(fault.Environ(), keeperEnv...), Files: files, Sys: attr})
	if err != nil {
		return nil, err
	}
	if fd < 0 { // kernel < 5.2; it is our own unreaped child, so the pid is it
		return pidfd.Open(pid)
	}
	return pidfd.FromFD(fd, pid), nil
}

// reap waits for a keeper that is our child, without a thread if it can, and takes
// its status, which nobody needs.
func reap(h *pidfd.Handle) {
	if d, err := h.Dup(); err == nil { // else, closed already or no descriptor to be had, a thread waits
		own := pidfd.FromFD(d, h.PID())
		_ = own.Wait(context.Background())
		_ = own.Close()
	}
	for {
		_, err := syscall.Wait4(h.PID(), nil, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// connect dials the keeper, greets it and starts reading.
func (x *keeping) connect(ctx context.Context) (*wire.Hello, error) {
	d, err := os.Open(x.facts.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the turn's directory: %w", err)
	}
	defer d.Close()
	l, err := dial(ctx, socketPath(d), x.event, x.broken)
	if err != nil {
		return nil, fmt.Errorf("reach the keeper: %w", err)
	}
	hello := &wire.Hello{More: true}
	for skip := 0; hello.More; skip += len(hello.Processes) {
		var fds []int
		hello, fds, err = l.hello(ctx, wire.Hello{Version: wire.Version, Turn: x.turn, Nonce: x.facts.Nonce, Skip: skip})
		if err != nil {
			l.close()
			return nil, fmt.Errorf("greet the keeper: %w", err)
		}
		l.version = hello.Version
		x.remember(hello.Processes, fds)
		if hello.More && len(hello.Processes) == 0 {
			l.close()
			return nil, errors.New("greet the keeper: its list has no end")
		}
	}
	if hello.OutputMaxed {
		x.outputMaxed()
	}
	if hello.Dropped > 0 {
		x.readJournal() // what the keeper itself no longer knows
	}
	fault.Point("keeper.greeted")
	if err := x.useLink(l); err != nil {
		return nil, err
	}
	if hello.Fenced && x.hooks.Fenced != nil {
		x.hooks.Fenced()
	}
	return hello, nil
}

// useLink makes a connection on which the keeper was greeted the one that is used.
// It may have broken before, when that was nobody's to mend.
func (x *keeping) useLink(l *link) error {
	x.mu.Lock()
	old := x.link
	if !x.closed.Load() {
		x.link = l
	}
	x.mu.Unlock()
	if x.closed.Load() {
		l.close()
		return fmt.Errorf("greet the keeper: %w", net.ErrClosed)
	}
	if old != nil {
		old.close()
	}
	if err := l.broken(); err != nil {
		go x.broken(l, err)
	}
	return nil
}
