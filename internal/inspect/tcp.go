package inspect

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"

	"pinfold.dev/internal/sys"
)

// States of tcp_states.h.
const (
	tcpEstablished = 1
	tcpListen      = 10
)

// tcpSocket is a line of /proc/net/tcp or tcp6.
type tcpSocket struct {
	local, remote netip.AddrPort // an IPv4 address never as IPv6
	state         int
	ino           uint32
}

// parseTCP parses /proc/net/tcp and tcp6, proc_pid_net(5); lines that are not as
// described there are left out.
func parseTCP(b []byte) (out []tcpSocket) {
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		local, ok := parseAddr(f[1])
		remote, ok2 := parseAddr(f[2])
		state, err := strconv.ParseInt(f[3], 16, 32)
		ino, err2 := strconv.ParseUint(f[9], 10, 32)
		if ok && ok2 && err == nil && err2 == nil {
			out = append(out, tcpSocket{local, remote, int(state), uint32(ino)})
		}
	}
	return out
}

// parseAddr parses an address in words of 32 bits, each as the machine has it,
// and a port, all in hexadecimal.
func parseAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for w := b; len(w) > 0; w = w[4:] {
		binary.NativeEndian.PutUint32(w, binary.BigEndian.Uint32(w))
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok
}

// accepting is __SO_ACCEPTCON of include/linux/net.h, in the flags of a socket.
const accepting = 1 << 16

// parseUnix parses /proc/net/unix, proc_pid_net(5): number, references, protocol,
// flags, type, state, inode and, to the end of the line, the name.
func parseUnix(b []byte) (out []sys.UnixSocket) {
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 7 {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		ino, err2 := strconv.ParseUint(f[6], 10, 32)
		if err != nil || err2 != nil {
			continue
		}
		s := sys.UnixSocket{Ino: uint32(ino), Listens: flags&accepting != 0}
		if _, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "+f[6]+" "); ok {
			s.Name = name
		}
		out = append(out, s)
	}
	return out
}
