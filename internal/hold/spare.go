package hold

import (
	"context"
	"errors"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/pidfd"
)

// endBelow ends what is in a launch's leaf, the launched process left out, to a
// fixed point: the leaf is frozen, so that the launched process forks nothing,
// everybody else in it is killed, and it is thawed once the launched process is
// seen to be alone. What it forks afterwards is not touched. Where the leaf cannot
// be frozen, the fixed point is a look that finds nobody else.
//
// When the launched process has ended, or left the leaf, nobody in it is spared. One
// that nobody holds, and of whose end nobody has told, cannot be told apart.
func (x *hold) endBelow(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, out *containment.Killed) error {
	leaf, err := x.openLeaf(process)
	if isRemoved(err) {
		out.KilledAt, out.EmptyAt = time.Now(), time.Now()
		return nil
	}
	if err != nil {
		return err
	}
	defer leaf.Close()
	spared := 0
	if h := x.handleOf(process); h != nil {
		spared = h.PID()
	} else if x.endless(process) {
		return api.Errorf(api.CodeUnavailable, "nobody can tell which process %s is: there is no handle of it, and its end was not told", process).
			WithRemedy("end it as a whole")
	}
	s := sparing{leaf: leaf, spared: spared}
	if grace > 0 {
		n, err := s.signal(stop)
		if err != nil {
			out.Notes = append(out.Notes, "ask to stop: "+err.Error())
		}
		out.Seen = n
		soon, cancel := context.WithTimeout(ctx, grace)
		_ = s.await(soon)
		cancel()
	}
	return s.kill(ctx, bound, out)
}

// sparing is an ending of all but one in a leaf.
type sparing struct {
	leaf   *cgroup.Dir
	spared int // its pid, as long as it is in the leaf
}

// kill kills the others and waits until they are seen gone.
func (s *sparing) kill(ctx context.Context, bound time.Duration, out *containment.Killed) error {
	out.Mechanism, out.KilledAt = "freeze+members", time.Now()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	thaw := s.leaf.Still(ctx)
	defer thaw()
	for {
		out.Rounds++
		n, err := s.signal(syscall.SIGKILL)
		out.Seen = max(out.Seen, n)
		if n == 0 && err == nil {
			out.EmptyAt = time.Now()
			return nil
		}
		round, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_ = s.await(round)
		cancel()
		if ctx.Err() != nil {
			out.Survivors = s.survivors()
			if len(out.Survivors) == 0 {
				return err
			}
			return nil
		}
	}
}

// signal sends to each member but the spared one, and CONT after it, and tells
// how many there were.
func (s *sparing) signal(sig syscall.Signal) (n int, err error) {
	_, err = s.leaf.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		if f.PID == s.spared {
			return nil
		}
		n++
		err := h.Signal(sig)
		if err == nil && sig != syscall.SIGKILL {
			err = h.Signal(syscall.SIGCONT)
		}
		if errors.Is(err, pidfd.ErrGone) {
			return nil
		}
		return err
	})
	return n, err
}

// await waits until the spared one is alone.
func (s *sparing) await(ctx context.Context) error {
	for {
		n := 0
		_, err := s.leaf.Each(func(_ *pidfd.Handle, f cgroup.Found) error {
			if f.PID != s.spared {
				n++
			}
			return nil
		})
		if n == 0 && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *sparing) survivors() []api.Survivor {
	var out []api.Survivor
	for _, one := range s.leaf.Survivors() {
		if one.PID != s.spared {
			out = append(out, one)
		}
	}
	return out
}
