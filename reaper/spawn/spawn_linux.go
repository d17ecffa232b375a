// Package spawn starts processes for the keeper, and knows which step of a
// start failed.
//
// It does not use syscall.ForkExec, for four reasons. That one tells an errno
// and not whose: ENOENT may be the cgroup, the directory or the program. It
// passes on what an ancestor ignored or blocked. It searches PATH with the
// wrong user's rights. And it waits in vfork until the child has executed,
// which never happens in a frozen cgroup, while the thread cannot be
// preempted: the first garbage collection would hang the keeper.
//
// Here the child shares the parent's memory until it executes, as with vfork,
// but on a stack of its own, and the parent does not wait: it has a pipe that
// ends when the child has executed or died, and that says why it could not.
// The child can be held before it does anything (the gate) without a program
// in between.
package spawn

import (
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Step is a step of a start.
type Step uint32

// The steps, in the order in which the child takes them.
const (
	StepClone Step = iota + 1
	StepTerminal
	StepStdio
	StepRlimit
	StepNice
	StepOOM
	StepUser
	StepNoNewPrivs
	StepCwd
	StepExec
)

// Error says which step the kernel refused. Path is what it was about, where
// there is such a thing.
type Error struct {
	Step  Step
	Errno syscall.Errno
	Path  string
}

// Error says it in words.
func (e *Error) Error() string { return e.Step.Do(e.Path) + ": " + e.Errno.Error() }

// Do says what the step does to path, which may be empty.
func (s Step) Do(path string) string {
	verb := [...]string{"start", "clone into", "take the terminal", "set up descriptors", "set resource limit", "set priority",
		"set oom_score_adj", "become user", "set no_new_privs", "change to directory", "execute"}[min(s, StepExec)]
	if path != "" {
		verb += " " + path
	}
	return verb
}

// Unwrap gives the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Spec says what to start. Argv must not be empty, no string may hold a NUL.
type Spec struct {
	Argv  []string
	Env   []string
	Dir   string
	Stdio [3]int
	// Extra gives the child more descriptors, no number twice.
	Extra []FD
	// TTY is a terminal to be the controlling one, or 0. It is none of the
	// child's descriptors for that.
	TTY  int
	User *User // nil: as we are
	// What is nil is left as it is here. Limits and priority are set with our
	// rights, the score with the user's, who may only raise it.
	Umask       *int
	Rlimits     []Rlimit
	Nice        *int
	OOMScoreAdj *int
	NoNewPrivs  bool
	// Nearest goes to the nearest parent of Dir that the user may enter.
	Nearest bool
	// Cgroup is the cgroup v2 directory to be born in (CLONE_INTO_CGROUP,
	// Linux 5.7; any descriptor of it, also O_PATH), or -1.
	Cgroup int
	// Gate holds the child until Open; it exits if we die before.
	Gate bool
}

// FD is a descriptor of ours, and the number (3 or more) that it gets.
type FD struct{ FD, Number int }

// Rlimit is a resource limit, as prlimit(2) takes it.
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// User is whom to become. Groups are set only if SetGroups.
type User struct {
	UID, GID  uint32
	Groups    []uint32
	SetGroups bool
}

// Spawner starts processes. It keeps the stacks that children ran on. The zero
// value is ready; it is not for several goroutines at a time. What this process
// ignores must not change after the first Start.
type Spawner struct {
	stacks []uintptr
	looked bool
	ignore uint64 // signals that were ignored when it was looked
}

// Child is a process that was cloned. Status is readable once Confirm has
// something to tell. PIDFD and Status are close-on-exec and the owner's to
// close.
type Child struct {
	PID    int
	PIDFD  int
	Status int
	// Dir is where it was started, once that is decided.
	Dir string

	gate   int
	stack  uintptr
	paths  []string
	limits []Rlimit
	args   *args
	report *Error
	owner  *Spawner
}

const stackSize = 32 << 10

// Start clones the child and returns without waiting for it. The error is an
// *Error with StepClone, StepStdio (no pipe) or StepUser (no such one can be),
// or EINVAL for a bad Spec.
func (s *Spawner) Start(spec *Spec) (*Child, error) {
	if len(spec.Argv) == 0 {
		return nil, syscall.EINVAL
	}
	c := &Child{owner: s, gate: -1, Dir: spec.Dir, limits: spec.Rlimits, paths: candidates(spec.Argv[0], spec.Env)}
	var err error
	if c.args, err = newArgs(spec, c.paths); err != nil {
		return nil, err
	}
	if c.stack, err = s.takeStack(); err != nil {
		return nil, &Error{Step: StepClone, Errno: err.(syscall.Errno)}
	}
	var status, gate [2]int
	if err := syscall.Pipe2(status[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		s.stacks = append(s.stacks, c.stack)
		return nil, &Error{Step: StepStdio, Errno: err.(syscall.Errno)}
	}
	c.Status, c.args.status = status[0], status[1]
	if spec.Gate {
		if err := syscall.Pipe2(gate[:], syscall.O_CLOEXEC); err != nil {
			closeAll(status[0], status[1])
			s.stacks = append(s.stacks, c.stack)
			return nil, &Error{Step: StepStdio, Errno: err.(syscall.Errno)}
		}
		c.args.gate, c.args.gateWrite = gate[0], gate[1]
		c.gate = gate[1]
	}
	errno := c.clone(spec.Cgroup)
	closeAll(status[1])
	if spec.Gate {
		closeAll(gate[0])
	}
	if errno != 0 {
		closeAll(c.Status)
		c.closeGate()
		s.stacks = append(s.stacks, c.stack)
		return nil, &Error{Step: StepClone, Errno: errno}
	}
	return c, nil
}

// Open lets a child that was started with Gate go on.
func (c *Child) Open() error {
	_, err := syscall.Write(c.gate, []byte{1})
	c.closeGate()
	return err
}

func (c *Child) closeGate() {
	if c.gate >= 0 {
		closeAll(c.gate)
		c.gate = -1
	}
}

// Confirm tells whether the start is decided. When it is, err is nil for a
// child that has executed its program, or was killed before it could tell;
// otherwise an *Error, and the child is exiting. Status is for the caller to
// close then.
func (c *Child) Confirm() (decided bool, err error) {
	for {
		var b [12]byte
		n, e := syscall.Read(c.Status, b[:])
		switch {
		case e == syscall.EINTR:
			continue
		case e == syscall.EAGAIN:
			return false, nil
		case n == len(b):
			c.parse((*[3]uint32)(unsafe.Pointer(&b)))
			continue
		}
		break // the end: the child does not use our memory any more
	}
	c.closeGate()
	if c.args != nil {
		c.owner.stacks = append(c.owner.stacks, c.stack)
		c.args = nil
	}
	if c.report != nil {
		return true, c.report
	}
	return true, nil
}

func (c *Child) parse(r *[3]uint32) {
	e := &Error{Step: Step(r[0]), Errno: syscall.Errno(r[1])}
	i := int(r[2])
	if e.Errno == 0 { // no failure: how much of the directory is left
		c.Dir = c.Dir[:min(i, len(c.Dir))]
		return
	}
	c.report = e
	switch {
	case e.Step == StepExec && i < len(c.paths):
		e.Path = c.paths[i]
		// The search has found nothing at all: what was asked for says more
		// than the first place where it was not.
		if e.Errno == syscall.ENOENT && len(c.paths) > 1 {
			e.Path = e.Path[strings.LastIndexByte(e.Path, '/')+1:]
		}
	case e.Step == StepUser:
		e.Path = strconv.Itoa(int(c.args.uid))
	case e.Step == StepRlimit && i < len(c.limits):
		e.Path = strconv.Itoa(c.limits[i].Resource)
	}
}

// takeStack maps a stack, or gives one that a former child has left.
func (s *Spawner) takeStack() (uintptr, error) {
	if n := len(s.stacks); n > 0 {
		p := s.stacks[n-1]
		s.stacks = s.stacks[:n-1]
		return p, nil
	}
	p, _, e := syscall.RawSyscall6(syscall.SYS_MMAP, 0, stackSize, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE, ^uintptr(0), 0)
	if e != 0 {
		return 0, e
	}
	return p, nil
}

// Kill sends SIGKILL to a child that has not been waited for.
func (c *Child) Kill() {
	c.closeGate()
	_ = syscall.Kill(c.PID, syscall.SIGKILL)
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}
