package reaper

import (
	"errors"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/reaper/spawn"
)

// Options say whose keeper to be.
type Options struct {
	Turn     string // id of the turn
	Dir      string // the turn's directory, for the journal
	Listener int    // descriptor of a listening unix stream socket
	Build    string // what to call ourselves
	// Namespace: we are init of the turn's own PID namespace.
	Namespace bool
}

// keeper is one turn's. Only the loop's goroutine touches it.
type keeper struct {
	opts Options
	uid  uint32
	null int
	proc bool // /proc is our own PID namespace's
	// orphans is why those of the turn do not become our children, where a filter
	// forbids it. With a cgroup the turn is held all the same.
	orphans error
	stat    [512]byte // for one read of a file there

	nonce   string // empty until the first hello
	work    *work  // nil until hold
	gate    bool
	fenced  bool
	quit    bool
	journal journal
	spawner spawn.Spawner

	poll     poll
	conns    []*conn
	spare    int // a descriptor to give up when there is none left to accept with
	fences   []question
	censuses []census
	endings  []ending
	scan     int // the next number to ask for, where /proc does not list children
	scanned  int // children that were found since it was 0

	procs    map[string]*process
	byPID    map[int]*process
	keys     map[string]*process
	order    []*process
	ended    int      // bytes of the ended ones in order
	dropped  int      // ended launches that were forgotten
	inflight int      // launches that are not decided
	launched int      // launches that started
	reaped   int      // children that were reaped, orphans included
	emptied  []string // leaves to remove, of launches that have ended
	sweeps   int      // how often to try that again before the next reaping
	reapDue  bool     // children may have ended

	spools      string // directory of the spools, or empty
	output      int64  // bytes that they took in
	outputMax   int64  // bound of that, or 0
	outputMaxed bool   // it was announced
	buf         []byte // for all reads of streams; nil until there is one

	garbage garbage
}

// question is a request whose answer is still due.
type question struct {
	c  *conn
	id uint64
}

// Keep is the keeper: it serves the listener until it is told to quit, and
// then returns nil. An error means that it could not begin.
func Keep(o Options) error {
	k := &keeper{
		opts: o, uid: uint32(os.Geteuid()),
		procs: make(map[string]*process), byPID: make(map[int]*process), keys: make(map[string]*process),
	}
	debug.SetGCPercent(-1) // see garbage
	if err := k.settle(); err != nil {
		return err
	}
	k.proc = procIsOurs()
	if err := k.open(); err != nil {
		return err
	}
	fault.Point("keeper.began")
	warmThreads()
	staySmall()
	k.loop()
	return nil
}

// procIsOurs tells whether pids mean the same to /proc and to us.
func procIsOurs() bool {
	var b [16]byte
	n, err := syscall.Readlink("/proc/self", b[:])
	return err == nil && string(b[:n]) == itoa(os.Getpid())
}

// open opens what the keeper works with.
func (k *keeper) open() (err error) {
	if k.null, err = sys.Openat(sys.AtFDCWD, "/dev/null", sys.ORdwr); err != nil {
		return err
	}
	if k.spare, err = sys.Dup(k.null); err != nil {
		return err
	}
	if err = k.journal.open(k.opts.Dir); err != nil {
		return err
	}
	fault.Point("journal.opened")
	if err = syscall.Chdir("/"); err != nil {
		return os.NewSyscallError("chdir /", err)
	}
	if err = k.poll.open(); err != nil {
		return err
	}
	hello := wire.Hello{Version: Protocol, Turn: k.opts.Turn, PID: os.Getpid(), Build: k.opts.Build}
	if !k.journal.write(wire.Entry{Fact: wire.FactKeeper, Hello: &hello}) {
		return k.journal.err
	}
	if err := k.poll.add(k.opts.Listener, syscall.EPOLLIN, listener{}); err != nil {
		return err
	}
	wake, err := catchSignals()
	if err != nil {
		return err
	}
	return k.poll.add(wake, syscall.EPOLLIN, reaping{})
}

// logLine writes to stderr, which the service has made a log file.
func logLine(parts ...string) {
	line := "keeper: "
	for _, p := range parts {
		line += p
	}
	_, _ = syscall.Write(2, append([]byte(line), '\n'))
}

// refusal makes the error of an answer.
func refusal(kind, message string) *wire.Error { return &wire.Error{Kind: kind, Message: message} }

// refusalOf makes one of a system call's error.
func refusalOf(kind, what, path string, err error) *wire.Error {
	e := &wire.Error{Kind: kind, Message: what + ": " + err.Error(), Path: path}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Errno = int(errno)
		e.Message = what + ": " + errno.Error()
	}
	return e
}

func itoa(n int) string { return strconv.Itoa(n) }
