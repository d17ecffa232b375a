//go:build linux

package inspect

import (
	"cmp"
	"net/netip"
	"os"
	"slices"

	"pinfold.dev/internal/sys"
)

// Served is a process that is connected to a socket on which one outside listens,
// which so does work for it. Neither the standard streams count, which it was given,
// nor connections to ourselves, nor what has no listener (socketpair(2)).
type Served struct {
	PID    int
	Comm   string
	Socket string // unix:/path, unix:@abstract, tcp:127.0.0.1:80
	By     []int  // who has the other end; none: it could not be seen
}

// Bounds of what is told.
const (
	mostServed = 64
	mostBy     = 16 // for each
)

// unixUsed finds connections of members to listening unix sockets of others: the
// end that was accepted has the listener's name. One that was not accepted yet has
// no inode, and no process: nothing is done for it.
func (l *Sockets) unixUsed(all []sys.UnixSocket) {
	ours := map[uint32]int{} // inode of the other end to member
	listens := map[string]bool{}
	for _, s := range all {
		if s.Listens && s.Name != "" {
			listens[s.Name] = true
		}
		if pid, ok := l.holders[s.Ino]; ok && !l.stdio[s.Ino] && !s.Listens && s.Peer != 0 {
			ours[s.Peer] = pid
		}
	}
	for _, s := range all {
		pid, ok := ours[s.Ino]
		if _, inside := l.holders[s.Ino]; ok && !inside && !s.Listens && listens[s.Name] {
			l.wanted = append(l.wanted, connection{pid: pid, socket: "unix:" + s.Name, peer: s.Ino, used: true})
		}
	}
}

// tcpUsed finds those to listening TCP sockets, where both ends are in this network
// namespace; mine are the ports on which members listen.
func (l *Sockets) tcpUsed(all []tcpSocket, mine map[uint16]tcpSocket, ends map[[2]netip.AddrPort]uint32) {
	listens := map[netip.AddrPort]bool{}
	for _, s := range all {
		if s.state == tcpListen {
			if s.local.Addr().IsUnspecified() {
				s.local = netip.AddrPortFrom(netip.Addr{}, s.local.Port())
			}
			listens[s.local] = true
		}
	}
	for _, s := range all {
		pid, ours := l.holders[s.ino]
		_, accepted := mine[s.local.Port()]
		if !ours || accepted || l.stdio[s.ino] || s.state != tcpEstablished ||
			!listens[s.remote] && !listens[netip.AddrPortFrom(netip.Addr{}, s.remote.Port())] {
			continue
		}
		peer := ends[[2]netip.AddrPort{s.remote, s.local}]
		if _, inside := l.holders[peer]; peer != 0 && !inside {
			l.wanted = append(l.wanted, connection{pid: pid, socket: "tcp:" + s.remote.String(), peer: peer, used: true})
		}
	}
}

// served puts it together. Where some member's sockets cannot be read, an end that
// nobody is seen to have may be that member's.
func (l *Sockets) served() (out []Served) {
	type key struct {
		pid    int
		socket string
	}
	by := map[key]map[int]bool{}
	for _, c := range l.wanted {
		who := l.found[c.peer]
		if _, inside := l.holders[c.peer]; !c.used || inside || len(who) == 0 && l.unread {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(who), func(pid int) bool { return pid == os.Getpid() })
		if len(who) > 0 && len(others) == 0 {
			continue
		}
		k := key{c.pid, c.socket}
		if by[k] == nil {
			by[k] = map[int]bool{}
		}
		for _, pid := range others {
			by[k][pid] = true
		}
	}
	for k, pids := range by {
		s := Served{PID: k.pid, Comm: l.comms[k.pid], Socket: k.socket}
		for pid := range pids {
			s.By = append(s.By, pid)
		}
		slices.Sort(s.By)
		if len(s.By) > mostBy {
			s.By = s.By[:mostBy]
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Served) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Socket, b.Socket)) })
	if len(out) > mostServed {
		l.note("%d more members than are told use sockets of processes outside", len(out)-mostServed)
		out = out[:mostServed]
	}
	return out
}
