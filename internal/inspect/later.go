//go:build linux

package inspect

import "slices"

// settle takes out of what was found that which only time made: members go on while
// they are looked at. An end may be a member's by now; one that nobody is seen to
// have may be over.
func (l *Sockets) settle() {
	if len(l.found) > 0 && l.Late != nil {
		late := map[int]bool{}
		for _, pid := range l.Late() {
			late[pid] = true
		}
		for ino, pids := range l.found {
			l.found[ino] = slices.DeleteFunc(pids, func(pid int) bool {
				if late[pid] {
					l.holders[ino] = pid
				}
				return late[pid]
			})
		}
	}
	if !slices.ContainsFunc(l.wanted, l.nobodys) {
		return
	}
	before := l.wanted
	l.scan()
	type end struct {
		peer uint32
		used bool
	}
	still := map[end]bool{}
	for _, c := range l.wanted {
		still[end{c.peer, c.used}] = true
	}
	l.wanted = slices.DeleteFunc(before, func(c connection) bool { return l.nobodys(c) && !still[end{c.peer, c.used}] })
}

// nobodys tells whether nobody was seen to have the other end.
func (l *Sockets) nobodys(c connection) bool {
	_, inside := l.holders[c.peer]
	return c.peer != 0 && !inside && len(l.found[c.peer]) == 0
}
