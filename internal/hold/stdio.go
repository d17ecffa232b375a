package hold

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

// request is a launch as it goes to the keeper, with its descriptors.
type request struct {
	launch wire.Launch
	fds    []int
	files  []*os.File // the caller's, among fds
	own    int        // a descriptor that is ours to close; -1: none
}

// newRequest makes one; the caller closes it.
func (x *keeping) newRequest(l containment.Launch, files []*os.File) (*request, error) {
	r := &request{own: -1, files: files, launch: wire.Launch{Process: l.Process, Argv: l.Argv, Env: l.Env, Cwd: l.Cwd, Meta: l.Meta,
		Stdin: -1, Stdout: -1, Stderr: -1, Umask: l.Umask, Nice: l.Nice, OOMScoreAdj: l.OOMScoreAdj,
		NoNewPrivs: l.NoNewPrivs, CwdNearest: l.CwdNearest}}
	if l.User != nil {
		r.launch.SetUser, r.launch.UID, r.launch.GID, r.launch.Groups = true, l.User.UID, l.User.GID, l.User.Groups
	}
	for _, f := range files {
		r.fds = append(r.fds, int(f.Fd()))
	}
	for _, e := range l.Extra {
		r.launch.Extra = append(r.launch.Extra, wire.ExtraFD{Index: e.FD, Number: e.Number})
	}
	for _, e := range l.Rlimits {
		r.launch.Rlimits = append(r.launch.Rlimits, wire.Rlimit{Resource: e.Resource, Soft: e.Soft, Hard: e.Hard})
	}
	r.streams(l.Stdio)
	if err := x.feed(r, l); err != nil {
		return nil, err
	}
	if (r.launch.SpoolOut > 0 || r.launch.SpoolErr > 0) && x.facts.Spool == "" {
		r.close()
		return nil, api.Errorf(api.CodeUnavailable, "this service keeps no output").WithRemedy("pass descriptors instead")
	}
	return r, nil
}

// close closes what is ours, and keeps the caller's files from being closed by
// the collector before the kernel has taken their descriptors.
func (r *request) close() {
	if r.own >= 0 {
		closeFD(r.own)
	}
	runtime.KeepAlive(r.files)
}

// streams says where the standard streams go.
func (r *request) streams(s api.Stdio) {
	w := &r.launch
	for _, n := range []struct {
		s     api.Stream
		index *int
		tty   *bool
		spool *int64
	}{{s.Stdin, &w.Stdin, &w.TTYIn, nil}, {s.Stdout, &w.Stdout, &w.TTYOut, &w.SpoolOut}, {s.Stderr, &w.Stderr, &w.TTYErr, &w.SpoolErr}} {
		switch n.s.Mode {
		case api.StdioPass:
			*n.index = n.s.FD
		case api.StdioPTY:
			*n.tty = true
			w.PTY = &wire.WinSize{Rows: s.PTY.Rows, Cols: s.PTY.Cols}
			w.SpoolOut = max(w.SpoolOut, n.s.MaxBytes) // the terminal is one
		case api.StdioSpool:
			*n.spool = n.s.MaxBytes
		case api.StdioPipe:
			w.StdinPipe = true
		case api.StdioStdout:
			w.ErrToOut = true
		case api.StdioNull, api.StdioData:
		}
	}
}

// feed gives stdin the bytes that came with the request: in a pipe when they
// fit, or else in a file that has no name any more. Neither needs the keeper.
func (x *keeping) feed(r *request, l containment.Launch) error {
	s := l.Stdio.Stdin
	if s.Mode != api.StdioData {
		return nil
	}
	fd := -1
	var err error
	if len(s.Data) <= containment.MaxInput {
		fd, err = sys.PipeWith(s.Data)
	}
	if fd < 0 {
		fd, err = x.fileWith(s.Data, l.User)
	}
	if err != nil {
		return api.Errorf(api.CodeLaunchRefused, "give the process its input: %v", err).With("step", wire.ErrStdio)
	}
	r.own = fd
	r.launch.Stdin = len(r.fds)
	r.fds = append(r.fds, fd)
	return nil
}

// fileWith makes a nameless file that holds b, open for reading. It belongs to
// the process's user, who may open /dev/stdin.
func (x *keeping) fileWith(b []byte, u *containment.User) (fd int, err error) {
	f, err := os.CreateTemp(x.facts.Dir, "stdin")
	if err != nil {
		return -1, err
	}
	defer f.Close()
	fd, err = syscall.Open(f.Name(), syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if rerr := os.Remove(f.Name()); err == nil && rerr != nil {
		closeFD(fd)
		return -1, rerr
	}
	if err != nil {
		return -1, err
	}
	if _, err = f.Write(b); err == nil && u != nil {
		err = f.Chown(int(u.UID), int(u.GID))
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// makeSpool makes the turn's directory for kept output.
func (x *keeping) makeSpool() error {
	if err := os.MkdirAll(x.facts.Spool, 0o700); err != nil {
		return api.Errorf(api.CodeLaunchRefused, "make the directory for kept output: %v", err).With("step", wire.ErrStdio).
			WithRemedy("free space in the service's state directory, or pass descriptors instead")
	}
	fault.Point("spools.made")
	return nil
}

// unsupported refuses what the turn's keeper is too old for.
func (x *keeping) unsupported(feature string) *api.Error {
	return api.Errorf(api.CodeUnsupported, "the keeper of turn %s is of an older version, which has no %s", x.turn, feature).
		WithRemedy("begin another turn").With("feature", feature)
}

// OwnAttributes are the service's own, which each launch has that names none.
func OwnAttributes() containment.Own {
	own := containment.Own{HardLimits: map[int]uint64{}}
	own.Nice, _ = sys.Nice()
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		_, _ = fmt.Sscan(string(b), &own.OOMScoreAdj)
	}
	const resources = 16 // RLIM_NLIMITS
	for r := range resources {
		if n, err := sys.HardLimit(r); err == nil {
			own.HardLimits[r] = n
		}
	}
	return own
}

// Monotonic is the clock that deadlines are on: the same for each service of a
// boot, in whatever time namespace it runs.
func Monotonic() func() time.Duration {
	ahead := sys.MonotonicOffset()
	return func() time.Duration { return sys.Monotonic() - ahead }
}
