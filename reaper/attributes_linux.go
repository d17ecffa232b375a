package reaper

import (
	"os"
	"syscall"
	"unsafe"

	"pinfold.dev/internal/wire"
	"pinfold.dev/reaper/spawn"
)

// numberMost bounds the number of a descriptor of the child; below it none can
// collide with what the kernel takes as no number.
const numberMost = 1 << 20

// admitAttributes refuses what no child can have.
func admitAttributes(l *wire.Launch, fds int) *wire.Error {
	for i, x := range l.Extra {
		if x.Index < 0 || x.Index >= fds {
			return refusal(wire.ErrProtocol, "descriptor "+itoa(x.Index)+" of "+itoa(fds)+" is to be passed")
		}
		if x.Number < 3 || x.Number >= numberMost {
			return refusal(wire.ErrProtocol, "a descriptor is to be number "+itoa(x.Number))
		}
		for _, y := range l.Extra[:i] {
			if x.Number == y.Number {
				return refusal(wire.ErrProtocol, "two descriptors are to be number "+itoa(x.Number))
			}
		}
	}
	if l.Umask != nil && *l.Umask&^0o777 != 0 {
		return refusal(wire.ErrProtocol, "bad umask")
	}
	return nil
}

// addAttributes fills in what a launch says of the process itself.
func (k *keeper) addAttributes(s *spawn.Spec, l *wire.Launch, fds []int) {
	if s.Dir == "" {
		s.Dir = "/"
	}
	s.Umask, s.Nice, s.OOMScoreAdj = l.Umask, l.Nice, l.OOMScoreAdj // without a umask ours, which is 0022
	s.NoNewPrivs, s.Nearest = l.NoNewPrivs, l.CwdNearest
	for _, r := range l.Rlimits {
		s.Rlimits = append(s.Rlimits, spawn.Rlimit{Resource: r.Resource, Soft: r.Soft, Hard: r.Hard})
	}
	for _, x := range l.Extra {
		s.Extra = append(s.Extra, spawn.FD{FD: fds[x.Index], Number: x.Number})
	}
	if l.SetUser {
		s.User = &spawn.User{UID: l.UID, GID: l.GID, Groups: l.Groups, SetGroups: k.uid == 0 && !k.keepsGroups(l)}
	}
}

// keepsGroups tells whether a launch keeps our groups: it is to run as we do, and
// nobody may set them here, as in a container of a user's own or for a root
// without capabilities. (Without root's uid they can only be kept anyway.)
func (k *keeper) keepsGroups(l *wire.Launch) bool {
	if l.UID != k.uid || int(l.GID) != os.Getegid() {
		return false
	}
	own, err := os.Getgroups()
	if err != nil {
		return false
	}
	list := make([]uint32, len(own)+1) // never empty, so that it has an address
	for i, g := range own {
		list[i] = uint32(g)
	}
	// See setgroups(2) and, for /proc/self/setgroups, user_namespaces(7).
	_, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(own)), uintptr(unsafe.Pointer(&list[0])), 0)
	return e == syscall.EPERM
}

// attributeOf names the attribute that was refused.
func attributeOf(e *spawn.Error) string {
	switch e.Step {
	case spawn.StepRlimit:
		return "rlimit " + e.Path
	case spawn.StepNice:
		return "nice"
	case spawn.StepOOM:
		return "oom_score_adj"
	}
	return "no_new_privs"
}
