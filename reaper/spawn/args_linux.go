package spawn

import (
	"slices"
	"strconv"
	"syscall"

	"pinfold.dev/reaper/spawn/inherited"
)

// newArgs lays the request out as the kernel reads it.
func newArgs(spec *Spec, paths []string) (*args, error) {
	a := &args{fds: spec.Stdio, gate: -1, gateWrite: -1, nofile: inherited.Nofile, dirLen: uintptr(len(spec.Dir))}
	var err error
	if a.argv, err = syscallList(spec.Argv); err != nil {
		return nil, err
	}
	if a.envv, err = syscallList(spec.Env); err != nil {
		return nil, err
	}
	if a.paths, err = syscallList(paths); err != nil {
		return nil, err
	}
	if a.dir, err = syscall.BytePtrFromString(spec.Dir); err != nil {
		return nil, err
	}
	a.tty, a.nearest = uintptr(spec.TTY), spec.Nearest
	a.addExtra(spec.Extra)
	a.addAttributes(spec)
	if spec.User != nil {
		return a, a.addUser(spec.User)
	}
	return a, nil
}

func syscallList(list []string) (**byte, error) {
	p, err := syscall.SlicePtrFromStrings(list)
	if err != nil {
		return nil, err
	}
	return &p[0], nil
}

func (a *args) addExtra(fds []FD) {
	a.base = 3
	if len(fds) == 0 {
		return
	}
	list := make([]extra, len(fds))
	for i, x := range fds {
		list[i] = extra{x.FD, x.Number}
	}
	slices.SortFunc(list, func(x, y extra) int { return x.number - y.number })
	a.extra, a.nextra, a.base = &list[0], uintptr(len(list)), list[len(list)-1].number+1
}

func (a *args) addAttributes(spec *Spec) {
	a.umask, a.noPrivs = ^uintptr(0), spec.NoNewPrivs
	if spec.Umask != nil {
		a.umask = uintptr(*spec.Umask & 0o777)
	}
	if spec.Nice != nil {
		a.setNice, a.nice = true, uintptr(*spec.Nice)
	}
	if spec.OOMScoreAdj != nil {
		text := []byte(strconv.Itoa(*spec.OOMScoreAdj))
		a.oomText, a.oomLen, a.private = &text[0], uintptr(len(text)), true
	}
	if len(spec.Rlimits) == 0 {
		return
	}
	list := make([]limit, len(spec.Rlimits))
	for i, l := range spec.Rlimits {
		list[i] = limit{uintptr(l.Resource), [2]uint64{l.Soft, l.Hard}}
	}
	a.limits, a.nlimits = &list[0], uintptr(len(list))
}

func (a *args) addUser(u *User) error {
	if u.UID == ^uint32(0) || u.GID == ^uint32(0) { // to the kernel: stay who you are
		return &Error{Step: StepUser, Errno: syscall.EINVAL, Path: strconv.FormatUint(uint64(u.UID), 10)}
	}
	a.setUser, a.setGroups = true, u.SetGroups
	a.uid, a.gid = uintptr(u.UID), uintptr(u.GID)
	groups := append(slices.Clone(u.Groups), 0) // never empty, so that it has an address
	a.groups, a.ngroups = &groups[0], uintptr(len(u.Groups))
	return nil
}
