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

// Sockets is one look at the sockets of processes: who outside them uses one on
// which they listen, and whom outside they use. Feed it with Add, then Look, once.
type Sockets struct {
	// Late, if there is one, lists the members once more: some are born meanwhile.
	Late func() []int

	holders map[uint32]int   // socket inode to the member that has it
	stdio   map[uint32]bool  // those that are a member's standard input, output or error
	inside  map[int]bool     // the members
	comms   map[int]string   // of those with sockets
	names   map[uint64][]int // network namespace to members in it
	unread  bool             // a member's sockets cannot be read
	own     uint64           // our network namespace
	wanted  []connection
	found   map[uint32][]int // socket inode to processes outside
	notes   []string
}

// NewSockets is a look that has seen nobody.
func NewSockets() *Sockets {
	return &Sockets{holders: map[uint32]int{}, stdio: map[uint32]bool{}, inside: map[int]bool{}, comms: map[int]string{}, names: map[uint64][]int{}}
}

// connection is one that somebody has to a member's listening socket, or a member
// to somebody's.
type connection struct {
	pid    int // of who listens; where used, of the member that is connected
	socket string
	peer   uint32 // inode of the other end; 0: it is not in this namespace
	from   string
	used   bool
}

// Around is what was seen, unix stream sockets of our network namespace and TCP
// sockets of the members'.
type Around struct {
	// Servers are members that listen on a socket to which a process outside them
	// is connected.
	Servers []Server
	// Served are members that are connected to a socket on which a process outside
	// them listens; mostServed at most.
	Served []Served
	// Notes say what could not be looked at.
	Notes []string
}

// Look finds who has the other ends of the members' connections. It goes through
// all processes once, and only where there is such an end.
func (l *Sockets) Look(ctx context.Context) (Around, error) {
	if len(l.holders) == 0 || ctx.Err() != nil {
		return Around{Notes: l.notes}, ctx.Err()
	}
	l.scan()
	var err error
	if len(l.wanted) > 0 {
		if err = l.find(ctx); err == nil {
			l.settle()
		}
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return Around{Notes: l.notes}, err
	}
	a := Around{Servers: l.servers(), Served: l.served()}
	a.Notes = l.notes
	return a, nil
}

// scan finds the members' connections as they are.
func (l *Sockets) scan() {
	l.wanted = nil
	l.unix()
	for ns, pids := range l.names {
		if ns == l.own {
			pids = []int{0} // ourselves, who do not go meanwhile
		}
		l.tcp(pids[0])
	}
}

func (l *Sockets) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(l.notes, s) {
		l.notes = append(l.notes, s)
	}
}

// Add takes the sockets that a member has; the handle is not kept. The error is ctx's.
func (l *Sockets) Add(ctx context.Context, h *pidfd.Handle) error {
	pid := h.PID()
	l.inside[pid] = true
	var socks, std []uint32
	err := eachSocket(ctx, pid, func(ino uint32, fd string) {
		socks = append(socks, ino)
		if fd == "0" || fd == "1" || fd == "2" {
			std = append(std, ino)
		}
	})
	ns, nerr := sys.InoAt(sys.AtFDCWD, "/proc/"+strconv.Itoa(pid)+"/ns/net")
	comm := ""
	if len(socks) > 0 {
		b, _ := sys.ProcFile(pid, "comm")
		comm = strings.TrimSuffix(string(b), "\n")
	}
	if over, xerr := h.Exited(); xerr != nil || over {
		return ctx.Err()
	}
	if err != nil || nerr != nil {
		l.unread = true
		l.note("the sockets of process %d cannot be read", pid)
		return ctx.Err()
	}
	for _, ino := range socks {
		l.holders[ino] = pid
	}
	for _, ino := range std {
		l.stdio[ino] = true
	}
	if len(socks) > 0 {
		l.comms[pid] = comm
		l.names[ns] = append(l.names[ns], pid)
	}
	return nil
}

// eachSocket calls fn with the inodes of the sockets among a process's descriptors.
func eachSocket(ctx context.Context, pid int, fn func(ino uint32, fd string)) error {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	return eachName(ctx, dir, func(name string) bool {
		to, err := os.Readlink(dir + "/" + name)
		if err != nil {
			return true
		}
		if n, ok := strings.CutPrefix(to, "socket:["); ok {
			if ino, err := strconv.ParseUint(strings.TrimSuffix(n, "]"), 10, 32); err == nil {
				fn(uint32(ino), name)
			}
		}
		return true
	})
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
func (l *Sockets) unix() {
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
	l.unixUsed(all)
}

// onlyListening is what there is without sock_diag: /proc/net/unix tells who
// listens, and not who is connected.
func (l *Sockets) onlyListening(why error) {
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
func (l *Sockets) tcp(pid int) {
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
	l.tcpUsed(all, server, ends)
}

// find looks who has the other ends, through all processes, once; members, too,
// may have come to one since they were looked at.
func (l *Sockets) find(ctx context.Context) error {
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
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("look who is connected: %w", err)
		}
		if seen++; seen > maxProcs {
			l.note("there are more processes than could be looked at")
			break
		}
		_ = eachSocket(ctx, pid, func(ino uint32, _ string) { // one that we may not look at shows as a connection of nobody's
			if want[ino] && l.inside[pid] {
				l.holders[ino] = pid
			} else if want[ino] {
				l.found[ino] = append(l.found[ino], pid)
			}
		})
	}
	return nil
}

// servers puts it together. A connection of one member to another is none.
func (l *Sockets) servers() (out []Server) {
	at := map[string]int{}
	for _, c := range l.wanted {
		if c.used {
			continue
		}
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

func (l *Sockets) clients(c connection) (out []Client) {
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
