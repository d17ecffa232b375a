//go:build linux

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Server is a socket on which a process listens and to which others are connected.
type Server struct {
	PID     int
	Socket  string // unix:/path, unix:@abstract, tcp:127.0.0.1:80
	Clients []Client
}

// Client is one that is connected: a process, or an address where no process of
// this host's network namespace has that end.
type Client struct {
	PID  int    // 0: none
	From string // for that: the address, or why nobody knows
}

// maxProcs bounds the search for who has a socket.
const maxProcs = 1 << 16

// Servers finds those of the members that listen on a socket to which a process
// outside them is connected: unix stream sockets of our network namespace, and
// TCP sockets of theirs. notes say what could not be looked at.
func Servers(ctx context.Context, members []*pidfd.Handle) (servers []Server, notes []string, err error) {
	l := &listening{holders: map[uint32]int{}, inside: map[int]bool{}, names: map[uint64][]int{}}
	for _, h := range members {
		l.member(ctx, h)
	}
	if len(l.holders) == 0 {
		return nil, l.notes, ctx.Err()
	}
	l.unix()
	for _, pids := range l.names {
		l.tcp(pids[0])
	}
	if len(l.wanted) > 0 {
		err = l.find(ctx)
	}
	return l.servers(), l.notes, cmp.Or(err, ctx.Err())
}

// listening is one Servers under way.
type listening struct {
	holders map[uint32]int   // socket inode to the member that has it
	inside  map[int]bool     // the members
	names   map[uint64][]int // network namespace to members in it
	own     uint64           // our network namespace
	wanted  []connection
	found   map[uint32][]int // socket inode to processes outside
	notes   []string
}

// connection is one that somebody has to a member's listening socket.
type connection struct {
	pid    int // of who listens
	socket string
	peer   uint32 // inode of the other end; 0: it is not in this namespace
	from   string
}

func (l *listening) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(l.notes, s) {
		l.notes = append(l.notes, s)
	}
}

// member takes the sockets that a member has.
func (l *listening) member(ctx context.Context, h *pidfd.Handle) {
	pid := h.PID()
	l.inside[pid] = true
	socks, err := socketsOf(ctx, pid)
	ns, nerr := sys.InoAt(sys.AtFDCWD, "/proc/"+strconv.Itoa(pid)+"/ns/net")
	if over, xerr := h.Exited(); xerr != nil || over {
		return
	}
	if err != nil || nerr != nil {
		l.note("the sockets of process %d cannot be read", pid)
		return
	}
	for _, ino := range socks {
		l.holders[ino] = pid
	}
	if len(socks) > 0 {
		l.names[ns] = append(l.names[ns], pid)
	}
}

// socketsOf are the inodes of the sockets among a process's descriptors.
func socketsOf(ctx context.Context, pid int) ([]uint32, error) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	var out []uint32
	err := eachName(ctx, dir, func(name string) bool {
		to, err := os.Readlink(dir + "/" + name)
		if err != nil {
			return true
		}
		if n, ok := strings.CutPrefix(to, "socket:["); ok {
			if ino, err := strconv.ParseUint(strings.TrimSuffix(n, "]"), 10, 32); err == nil {
				out = append(out, uint32(ino))
			}
		}
		return true
	})
	return out, err
}

// eachName calls fn with the names in a directory, which may be very many, until
// it wants no more or ctx is done (its error).
func eachName(ctx context.Context, dir string, fn func(name string) (more bool)) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(512)
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !fn(name) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// unix finds connections to listening unix sockets: the end that was accepted has
// the listener's name, and a peer.
func (l *listening) unix() {
	var err error
	if l.own, err = sys.InoAt(sys.AtFDCWD, "/proc/self/ns/net"); err != nil {
		l.note("unix sockets: %v", err)
		return
	}
	for ns := range l.names {
		if ns != l.own {
			l.note("unix sockets of another network namespace were not looked at")
		}
	}
	all, err := sys.UnixSockets()
	if err != nil {
		l.onlyListening(err)
		return
	}
	server := map[string]int{}
	for _, s := range all {
		if pid, ok := l.holders[s.Ino]; ok && s.Listens && s.Name != "" {
			server[s.Name] = pid
		}
	}
	for _, s := range all {
		pid, ok := server[s.Name]
		if _, ours := l.holders[s.Ino]; ok && ours && !s.Listens && s.Peer != 0 {
			l.wanted = append(l.wanted, connection{pid: pid, socket: "unix:" + s.Name, peer: s.Peer})
		}
	}
}

// onlyListening is what there is without sock_diag: /proc/net/unix tells who
// listens, and not who is connected.
func (l *listening) onlyListening(why error) {
	b, err := sys.ProcFile(0, "net/unix")
	if err != nil {
		l.note("unix sockets: %v; %v", why, err)
		return
	}
	for _, s := range parseUnix(b) {
		if pid, ok := l.holders[s.Ino]; ok && s.Listens && s.Name != "" {
			l.wanted = append(l.wanted, connection{pid: pid, socket: "unix:" + s.Name, from: "it cannot be told who is connected: " + why.Error()})
		}
	}
}

// tcp finds connections to listening TCP sockets in the network namespace of a
// member: those of the accepted ends, and the other ends by their addresses.
func (l *listening) tcp(pid int) {
	var all []tcpSocket
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		b, err := sys.ProcFile(pid, name)
		if err != nil {
			if name == "net/tcp" {
				l.note("tcp sockets: %v", err)
			}
			continue
		}
		all = append(all, parseTCP(b)...)
	}
	server := map[uint16]tcpSocket{}
	ends := map[[2]netip.AddrPort]uint32{}
	for _, s := range all {
		_, ours := l.holders[s.ino]
		if ours && s.state == tcpListen {
			server[s.local.Port()] = s
		}
		if s.state == tcpEstablished {
			ends[[2]netip.AddrPort{s.local, s.remote}] = s.ino
		}
	}
	for _, s := range all {
		_, ours := l.holders[s.ino]
		at, ok := server[s.local.Port()]
		if !ours || !ok || s.state != tcpEstablished {
			continue
		}
		c := connection{pid: l.holders[at.ino], socket: "tcp:" + at.local.String(), from: s.remote.String()}
		c.peer = ends[[2]netip.AddrPort{s.remote, s.local}]
		l.wanted = append(l.wanted, c)
	}
}

// find looks who has the other ends, through all processes, once.
func (l *listening) find(ctx context.Context) error {
	l.found = map[uint32][]int{}
	want := map[uint32]bool{}
	for _, c := range l.wanted {
		want[c.peer] = c.peer != 0
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look who is connected: %w", err)
	}
	seen := 0
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || l.inside[pid] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("look who is connected: %w", err)
		}
		if seen++; seen > maxProcs {
			l.note("there are more processes than could be looked at")
			break
		}
		socks, _ := socketsOf(ctx, pid) // one that we may not look at shows as a connection of nobody's
		for _, ino := range socks {
			if want[ino] {
				l.found[ino] = append(l.found[ino], pid)
			}
		}
	}
	return nil
}

// servers puts it together. A connection of one member to another is none.
func (l *listening) servers() (out []Server) {
	at := map[string]int{}
	for _, c := range l.wanted {
		clients := l.clients(c)
		if len(clients) == 0 {
			continue
		}
		key := strconv.Itoa(c.pid) + " " + c.socket
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, Server{PID: c.pid, Socket: c.socket})
		}
		for _, one := range clients {
			if !slices.Contains(out[i].Clients, one) {
				out[i].Clients = append(out[i].Clients, one)
			}
		}
	}
	return out
}

func (l *listening) clients(c connection) (out []Client) {
	if c.peer == 0 {
		return []Client{{From: c.from}}
	}
	for _, pid := range l.found[c.peer] {
		out = append(out, Client{PID: pid})
	}
	if _, inside := l.holders[c.peer]; len(out) == 0 && !inside {
		out = append(out, Client{From: c.from})
	}
	return out
}
