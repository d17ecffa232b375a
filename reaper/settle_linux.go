package reaper

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"pinfold.dev/internal/sys"
)

// settle makes this process fit to be a keeper.
func (k *keeper) settle() error {
	for fd := range 3 { // else a pipe would become somebody's stdout
		if _, err := sys.Ino(fd); err != nil {
			if _, err := syscall.Open("/dev/null", syscall.O_RDWR, 0); err != nil {
				return os.NewSyscallError("open /dev/null", err)
			}
		}
	}
	if err := sys.Listening(k.opts.Listener); err != nil {
		return errors.New("descriptor " + itoa(k.opts.Listener) + " is not a listening socket: " + err.Error())
	}
	syscall.CloseOnExec(k.opts.Listener)
	_ = syscall.Listen(k.opts.Listener, syscall.SOMAXCONN) // so that the peer's SO_PEERPIDFD is ours, see unix(7)
	if err := syscall.SetNonblock(k.opts.Listener, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	_ = sys.CloseOnExecFrom(k.opts.Listener)                                      // children close all by themselves too
	if _, err := syscall.Setsid(); err != nil && !errors.Is(err, syscall.EPERM) { // EPERM: it is a leader already
		return os.NewSyscallError("setsid", err)
	}
	syscall.Umask(0o022) // the children's
	if k.opts.Namespace {
		if err := sys.EnterPIDNamespace(); err != nil {
			return err
		}
	} else {
		k.orphans = sys.SetSubreaper(true)
	}
	// The child shares our memory until it executes, also after it has become
	// another user: undumpable keeps that user from tracing it.
	if err := sys.SetDumpable(false); err != nil {
		return errors.New("become undumpable (PR_SET_DUMPABLE): " + err.Error() + " (let the filter of system calls, seccomp, allow prctl)")
	}
	return nil
}

// threadsRunning is how many threads may run Go at a time: the loop, and one
// for the collector. With one alone the runtime's monitor would take the
// processor away from the loop each time that it waits.
const threadsRunning = 2

// warmThreads makes every thread that the keeper will ever need: as many as may
// run, and one for the loop when it waits in a system call.
func warmThreads() {
	runtime.GOMAXPROCS(threadsRunning) // also stops the runtime from watching cgroup limits
	var up, down sync.WaitGroup
	release := make(chan struct{})
	for range threadsRunning + 1 {
		up.Add(1)
		down.Add(1)
		go func() {
			runtime.LockOSThread() // a locked goroutine has a thread of its own, made at once
			up.Done()
			<-release
			runtime.UnlockOSThread()
			down.Done()
		}()
	}
	up.Wait()
	close(release)
	down.Wait()
}

// guard keeps a panic from ending the keeper: it says so and goes on.
func guard(where string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			logLine("panic in ", where, ": ", panicText(v), " at ", panicPlace())
		}
	}()
	f()
}

func panicText(v any) string {
	switch v := v.(type) {
	case error:
		return v.Error()
	case string:
		return v
	}
	return "unprintable value"
}

// panicPlace finds the frame that panicked: the first that is not the
// runtime's below gopanic.
func panicPlace() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	seen := false
	for {
		f, more := frames.Next()
		own := len(f.Function) > 8 && f.Function[:8] == "runtime."
		if seen && !own {
			return f.File + ":" + itoa(f.Line)
		}
		seen = seen || f.Function == "runtime.gopanic"
		if !more {
			return "an unknown place"
		}
	}
}
