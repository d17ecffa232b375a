package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// tokenPlacement is where a process is that is held by its identity alone.
const tokenPlacement = "token"

// Adopt holds a process by its identity: there is no cgroup to move it to.
func (x *keeping) Adopt(ctx context.Context, a containment.Adopting) (containment.Adopted, error) {
	found, err := x.find(a)
	if err != nil {
		return containment.Adopted{}, err
	}
	out, err := x.adoptToken(a, found)
	if err != nil {
		found.h.Close()
	}
	return out, err
}

// adoptToken takes over a process that was found.
func (x *keeping) adoptToken(a containment.Adopting, f *found) (containment.Adopted, error) {
	if a.Tree {
		return containment.Adopted{}, api.Errorf(api.CodeGradeUnavailable, "process %d can be held by its identity alone, and so cannot its descendants", f.id.PID).
			WithRemedy("adopt each of them, or use a turn at grade cgroup")
	}
	s := wire.Started{Process: a.Process, PID: f.id.PID, StartTicks: f.id.StartTicks, Ino: f.id.Ino, Placement: tokenPlacement, StartedNS: time.Now().UnixNano()}
	out := f.adopted(x.started(s))
	out.Grade = api.GradeToken
	out.Evidence = append(out.Evidence, "it is held by its pidfd and known again by its identity; what it has forked, or will, is not held")
	if err := a.Before(out); err != nil {
		return out, err
	}
	if lives, err := f.h.Lives(); err != nil || !lives {
		return out, goneNow(f.id.PID)
	}
	x.enterJoined(s, f.h)
	return out, nil
}

// found is a process that was found, and may be adopted.
type found struct {
	h        *pidfd.Handle
	id       api.Identity
	comm     string
	uids     [4]uint32
	line     string // of its cgroup
	evidence []string
}

// find opens the process that is meant, and asks whether it may be adopted.
func (x *keeping) find(a containment.Adopting) (*found, error) {
	h, how, err := openSaid(a)
	if err != nil {
		return nil, err
	}
	f, err := look(h)
	if err == nil {
		f.evidence = append(how, f.evidence...)
		err = x.mayTake(a, f, false)
	}
	if err != nil {
		if gone(h) { // whatever else was seen of it
			err = goneNow(h.PID())
		}
		h.Close()
		return nil, err
	}
	return f, nil
}

// openSaid opens the process that a caller names: once, and sees whether all that
// was said of it is true.
func openSaid(a containment.Adopting) (h *pidfd.Handle, how []string, err error) {
	pid := a.Said.PID
	if a.PIDFD != nil {
		h, err = pidfd.FromStranger(int(a.PIDFD.Fd()))
		how = []string{"the caller has sent its pidfd"}
	} else if err = sameNumbers(a); err == nil {
		h, err = pidfd.OpenNumber(pid)
		how = []string{fmt.Sprintf("the caller has said its number %d", pid)}
	}
	if err != nil {
		return nil, nil, notFound(pid, err)
	}
	if lives, err := h.Lives(); err != nil || !lives {
		h.Close()
		return nil, nil, goneNow(h.PID())
	}
	is, err := h.Identity()
	if err == nil {
		if cerr := pidfd.Claim(a.Said, is); cerr != nil {
			err = api.AdoptForeign.Refuse(is.PID, "process %d is not the one that was described: %v", is.PID, cerr)
		}
	}
	if err == nil && a.PIDFD == nil && (a.Said.Ino == 0 || is.Ino == 0) && a.Said.StartTicks == 0 {
		err = api.AdoptAmbiguous.Refuse(pid, "process %d is named by a pidfs inode, which this kernel does not have", pid).WithRemedy("say its start_ticks")
	}
	if err != nil {
		h.Close()
		return nil, nil, err
	}
	if said := describe(a.Said, is); said != "" {
		how = append(how, "and so it has "+said)
	}
	return h, how, nil
}

// describe is what was said, and is so.
func describe(said, is api.Identity) string {
	switch {
	case said.Ino != 0 && said.Ino == is.Ino:
		return "the same pidfs inode"
	case said.StartTicks != 0:
		return "the same start tick"
	}
	return ""
}

// sameNumbers refuses a number that a caller of another PID namespace has said:
// there it means another process, or none.
func sameNumbers(a containment.Adopting) error {
	here := pidfd.ReadHere()
	ambiguous := func(format string, args ...any) error {
		return api.AdoptAmbiguous.Refuse(a.Said.PID, format, args...).WithRemedy("send the process's pidfd with the request")
	}
	if a.Said.PIDNS != 0 {
		if here.PIDNS != a.Said.PIDNS {
			return ambiguous("number %d is of PID namespace %d; the service is in %d", a.Said.PID, a.Said.PIDNS, here.PIDNS)
		}
		return nil
	}
	if a.Peer == nil {
		return ambiguous("nobody can tell in which PID namespace %d is a number", a.Said.PID)
	}
	peer, err := openPeer(a)
	if err != nil {
		return ambiguous("nobody can tell in which PID namespace %d is a number: %v", a.Said.PID, err)
	}
	defer peer.Close()
	link, err := os.Readlink("/proc/" + strconv.Itoa(peer.PID()) + "/ns/pid")
	if lives, lerr := peer.Lives(); err == nil && (lerr != nil || !lives) {
		err = errors.New("the caller has exited")
	}
	n, perr := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
	if err != nil || perr != nil {
		return ambiguous("nobody can tell in which PID namespace %d is a number: %v", a.Said.PID, errors.Join(err, perr))
	}
	if n != here.PIDNS {
		return ambiguous("the caller is in another PID namespace than the service: number %d means another process there", a.Said.PID)
	}
	return nil
}

// openPeer opens the caller. Before Linux 6.5 that is by its number, which the
// kernel told when it connected.
func openPeer(a containment.Adopting) (*pidfd.Handle, error) {
	f, err := a.Peer()
	if errors.Is(err, api.ErrUnsupported) && a.PeerPID > 0 {
		return pidfd.Open(a.PeerPID)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := sys.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return pidfd.FromPeer(fd)
}

// notFound says why nothing could be opened.
func notFound(pid int, err error) error {
	var t *pidfd.ThreadError
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &t):
		return api.AdoptThread.Refuse(t.TID, "%d is a thread of process %d", t.TID, t.PID).With("process", strconv.Itoa(t.PID)).WithRemedy("adopt process %d", t.PID)
	case errors.Is(err, pidfd.ErrGone):
		return goneNow(pid)
	case errors.Is(err, pidfd.ErrNotPidfd):
		return api.AdoptAmbiguous.Refuse(pid, "what came with the request is not a pidfd: %v", err)
	case errors.Is(err, pidfd.ErrRefused):
		return api.AdoptAmbiguous.Refuse(pid, "%v", err)
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EPERM):
		return api.Errorf(api.CodeUnsupported, "no handle can be opened on process %d: %v", pid, err).With("feature", "pidfd_open").
			WithRemedy("a process is adopted by its handle: use a host whose kernel, and sandbox, allow pidfd_open(2)")
	}
	return api.AdoptAmbiguous.Refuse(pid, "process %d cannot be told: %v", pid, err)
}

func goneNow(pid int) error {
	if pid == 0 {
		return api.AdoptGone.Refuse(0, "the process has exited")
	}
	return api.AdoptGone.Refuse(pid, "process %d has exited, or does not exist", pid)
}

// look reads what is recorded of a process and asked about it.
func look(h *pidfd.Handle) (*found, error) {
	f := &found{h: h}
	var err error
	if f.id, err = h.Identity(); err != nil {
		return nil, err
	}
	kernel, err := h.KernelThread()
	if err == nil && kernel {
		return nil, api.AdoptKernel.Refuse(f.id.PID, "process %d is a thread of the kernel", f.id.PID)
	}
	if err == nil {
		f.uids, err = h.UIDs()
	}
	if err == nil {
		f.line, err = h.CgroupPath()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, sys.ErrParse) {
			f.line, err = "", nil // a host without cgroup v2
		}
	}
	f.comm = comm(f.id.PID)
	switch lives, lerr := h.Lives(); {
	case lerr != nil || !lives, errors.Is(err, pidfd.ErrGone):
		return nil, goneNow(f.id.PID)
	case err != nil:
		return nil, api.AdoptAmbiguous.Refuse(f.id.PID, "process %d cannot be looked at: %v", f.id.PID, err)
	case f.id.Ino == 0 && f.id.StartTicks == 0:
		return nil, api.AdoptAmbiguous.Refuse(f.id.PID, "process %d could not be known again: its start tick cannot be read, and the kernel has no pidfs", f.id.PID)
	}
	if f.id.Ino != 0 {
		f.evidence = append(f.evidence, fmt.Sprintf("pidfs inode %d", f.id.Ino))
	}
	f.evidence = append(f.evidence, fmt.Sprintf("start tick %d, user ids %v", f.id.StartTicks, f.uids))
	return f, nil
}

// adopted is what is told of it.
func (f *found) adopted(s containment.Started) containment.Adopted {
	out := containment.Adopted{Started: s, UID: f.uids[0], From: f.line, Argv: []string{}, Evidence: f.evidence}
	if b, err := sys.ProcFile(f.id.PID, "cmdline"); err == nil && len(b) > 0 {
		for a := range bytes.SplitSeq(bytes.TrimSuffix(b[:min(len(b), argvMost)], []byte{0}), []byte{0}) {
			out.Argv = append(out.Argv, string(a))
		}
	} else {
		out.Argv = append(out.Argv, f.comm)
	}
	if dir, err := os.Readlink("/proc/" + strconv.Itoa(f.id.PID) + "/cwd"); err == nil {
		out.Cwd = strings.ToValidUTF8(dir, "�")
	}
	return out
}

// Readopt finds one again that was held by its identity. Its record is all that names
// it, so it is asked once more whether it may be the turn's.
func (x *keeping) Readopt(ctx context.Context, process string, was api.Identity, moved bool, may func(containment.Candidate) error) (api.Verdict, []string, error) {
	h, v, why := x.reopenAdopted(process, was)
	if h == nil {
		return v, why, nil
	}
	if lives, err := h.Lives(); err == nil && lives {
		f, err := look(h)
		if err == nil {
			err = aboveUs(f)
		}
		if err == nil {
			err = may(containment.Candidate{Identity: f.id, Comm: f.comm, UIDs: f.uids, Cgroup: f.line})
		}
		if err != nil {
			h.Close()
			return api.VerdictForeign, append(why, err.Error()), nil
		}
	}
	x.enterJoined(startedFrom(process, was, tokenPlacement), h)
	return api.VerdictOwned, why, nil
}

// reopenAdopted opens it by what was recorded, or takes the handle that was kept.
func (x *keeping) reopenAdopted(process string, was api.Identity) (*pidfd.Handle, api.Verdict, []string) {
	rec := was
	rec.CgroupID = 0 // it may have gone deeper, or have been moved just before a crash
	h, v, why := pidfd.OpenVerified(rec)
	if h == nil {
		if h = x.claimKept(process, rec); h != nil {
			v, why = api.VerdictOwned, []string{"its handle was kept by the service manager"}
		}
	}
	if h == nil && v == api.VerdictGone {
		if h = unreaped(rec); h != nil {
			v, why = api.VerdictOwned, append(why, "its parent has not waited for it yet")
		}
	}
	fault.Point("adopt.reopened")
	return h, v, why
}

// unreaped opens the recorded process if it has exited and still tells how. Only its
// inode says for sure that it is that one.
func unreaped(rec api.Identity) *pidfd.Handle {
	h, err := pidfd.Open(rec.PID)
	if err != nil {
		return nil
	}
	if now, err := h.Identity(); err == nil && rec.Ino != 0 && now.Ino == rec.Ino {
		if _, err := h.ExitStatus(); err == nil {
			return h
		}
	}
	h.Close()
	return nil
}

func startedFrom(process string, was api.Identity, placement string) wire.Started {
	return wire.Started{Process: process, PID: was.PID, StartTicks: was.StartTicks, Ino: was.Ino, CgroupID: was.CgroupID, Placement: placement}
}
