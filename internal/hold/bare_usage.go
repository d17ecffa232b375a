package hold

import (
	"bytes"
	"context"
	"strconv"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Usage is what /proc tells: the processor time of who is in the turn, and of all
// that its keeper, or one of them, has reaped. The rest is not to be had.
func (x *bare) Usage() api.Usage {
	u := api.NoUsage()
	ctx, cancel := context.WithTimeout(context.Background(), quitTime)
	defer cancel()
	if x.keeper == nil || x.keeperDead() || !sys.ReadHere().Proc {
		return u
	}
	keeper, ok := readTimes(x.keeper.PID())
	if !ok || x.keeperDead() {
		return u
	}
	user, system := keeper[2], keeper[3] // its own is none of the turn's
	if v, err := x.look(ctx); err == nil {
		for _, m := range v.members {
			if t, ok := readTimes(m.Identity().PID); ok {
				user, system = user+t[0]+t[2], system+t[1]+t[3]
			}
		}
		v.close()
	}
	const usec = 1_000_000 / sys.TicksPerSecond
	u.UserUsec, u.SystemUsec, u.CPUUsec = user*usec, system*usec, (user+system)*usec
	return u
}

// readTimes reads fields 14 to 17 of /proc/pid/stat: user and system time, of a
// process and of those that it has waited for, in ticks.
func readTimes(pid int) (t [4]int64, ok bool) {
	b, err := sys.ProcFile(pid, "stat")
	if err != nil {
		return t, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 15 {
		return t, false
	}
	for i := range t {
		if t[i], err = strconv.ParseInt(string(f[11+i]), 10, 64); err != nil {
			return t, false
		}
	}
	return t, true
}
