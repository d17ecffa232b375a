package pidfd

import (
	"errors"
	"fmt"

	"pinfold.dev/api"
)

// Life is what an open handle says of its process.
type Life int

// A zombie is Exited, one that was reaped is Reaped. Unknown is for handles
// that could not be asked.
const (
	Unknown Life = iota
	Alive
	Exited
	Reaped
)

// Compare decides whether the process that now describes is the recorded one,
// and returns the evidence in words. A zero field is one that could not be
// read, or was not recorded: it never counts as equal and never as different.
//
// The pidfs inode decides where both have it. Without it the pid and the start
// tick must be equal, in the same boot, PID namespace and time namespace; since
// a number can come back within one tick, a recorded cgroup has to be the same
// as well.
func Compare(rec, now api.Identity, life Life) (api.Verdict, []string) {
	var ev evidence
	switch {
	case rec.PID <= 0:
		return ev.say(api.VerdictUnverifiable, "no pid recorded")
	case rec.Boot == "" || now.Boot == "":
		return ev.say(api.VerdictUnverifiable, "boot id unknown")
	case rec.Boot != now.Boot:
		return ev.say(api.VerdictForeign, "recorded in another boot")
	}
	ev.add("same boot")
	if rec.Ino != 0 && now.Ino != 0 {
		if rec.Ino != now.Ino {
			return ev.say(api.VerdictForeign, "pidfs inode is %d, recorded %d", now.Ino, rec.Ino)
		}
		ev.add("same pidfs inode")
		return ev.ours(life)
	}
	if life == Reaped {
		return ev.say(api.VerdictGone, "no such process (ESRCH)")
	}
	return compareTicks(rec, now, life, ev)
}

// compareTicks is Compare for hosts without a pidfs inode.
func compareTicks(rec, now api.Identity, life Life, ev evidence) (api.Verdict, []string) {
	switch {
	case rec.PIDNS == 0 || now.PIDNS == 0:
		return ev.say(api.VerdictUnverifiable, "PID namespace unknown")
	case rec.PIDNS != now.PIDNS:
		return ev.say(api.VerdictUnverifiable, "recorded in another PID namespace")
	case rec.PID != now.PID:
		return ev.say(api.VerdictForeign, "pid is %d, recorded %d", now.PID, rec.PID)
	case rec.StartTicks == 0:
		return ev.say(api.VerdictUnverifiable, "no start tick recorded")
	case now.StartTicks == 0:
		return ev.say(api.VerdictUnverifiable, "start tick cannot be read")
	case rec.TimeNS != now.TimeNS:
		return ev.say(api.VerdictUnverifiable, "start tick recorded in another time namespace")
	case rec.StartTicks != now.StartTicks:
		return ev.say(api.VerdictForeign, "start tick is %d, recorded %d", now.StartTicks, rec.StartTicks)
	}
	ev.add("same pid and start tick")
	switch {
	case rec.CgroupID == 0:
		ev.add("no cgroup recorded")
	case now.CgroupID == 0:
		return ev.say(api.VerdictUnverifiable, "cgroup cannot be read")
	case rec.CgroupID != now.CgroupID:
		return ev.say(api.VerdictUnverifiable, "cgroup is %d, recorded %d", now.CgroupID, rec.CgroupID)
	default:
		ev.add("same cgroup")
	}
	return ev.ours(life)
}

// evidence is what a verdict rests on, in words.
type evidence []string

func (ev *evidence) add(format string, args ...any) {
	*ev = append(*ev, fmt.Sprintf(format, args...))
}

func (ev *evidence) say(v api.Verdict, format string, args ...any) (api.Verdict, []string) {
	ev.add(format, args...)
	return v, *ev
}

// ours settles the verdict on the recorded process itself.
func (ev *evidence) ours(life Life) (api.Verdict, []string) {
	switch life {
	case Alive:
		return api.VerdictOwned, *ev
	case Exited:
		return ev.say(api.VerdictGone, "it has exited")
	case Reaped:
		return ev.say(api.VerdictGone, "it has exited and was reaped")
	}
	return ev.say(api.VerdictUnverifiable, "cannot tell whether it lives")
}

// Verify compares the process with a record of one, and says on what evidence.
// See Compare.
func (h *Handle) Verify(rec api.Identity) (api.Verdict, []string) {
	now, err := h.Identity()
	if err != nil {
		return api.VerdictUnverifiable, []string{err.Error()}
	}
	return Compare(rec, now, h.Life())
}

// Life asks the handle. It is to be asked after everything else was read.
func (h *Handle) Life() Life {
	if exited, err := h.Exited(); err != nil {
		return Unknown
	} else if !exited {
		return Alive
	}
	if errors.Is(h.held(), ErrGone) {
		return Reaped
	}
	return Exited
}

// OpenVerified opens the recorded process by its number and verifies it. The
// handle is nil unless the verdict is owned.
func OpenVerified(rec api.Identity) (*Handle, api.Verdict, []string) {
	here := ReadHere()
	if v, ev := NumberMeans(rec, here); v != "" {
		return nil, v, ev
	}
	h, err := Open(rec.PID)
	switch {
	case errors.Is(err, ErrGone):
		return nil, api.VerdictGone, []string{"same boot", "no process has its number"}
	case err != nil:
		return nil, api.VerdictUnverifiable, []string{err.Error()}
	}
	v, ev := h.Verify(rec)
	if v != api.VerdictOwned {
		_ = h.Close()
		return nil, v, ev
	}
	return h, v, ev
}

// NumberMeans tells with an empty verdict that a recorded pid means the same
// where we are.
func NumberMeans(rec api.Identity, now Here) (api.Verdict, []string) {
	var ev evidence
	switch {
	case rec.PID <= 1:
		return ev.say(api.VerdictUnverifiable, "no usable pid recorded")
	case rec.Boot == "" || now.Boot == "":
		return ev.say(api.VerdictUnverifiable, "boot id unknown")
	case rec.Boot != now.Boot:
		return ev.say(api.VerdictForeign, "recorded in another boot")
	case rec.PIDNS == 0 || now.PIDNS == 0:
		return ev.say(api.VerdictUnverifiable, "PID namespace unknown")
	case rec.PIDNS != now.PIDNS:
		return ev.say(api.VerdictUnverifiable, "recorded in another PID namespace")
	}
	return "", nil
}
