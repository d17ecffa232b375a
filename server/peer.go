package server

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
)

// peerOf reads who connected: SO_PEERCRED, SO_PEERGROUPS, and SO_PEERPIDFD
// (Linux 6.5), unix(7). It fails only where the kernel will not even tell the
// uid; a peer whose cgroup nobody can read is returned as not Known.
func peerOf(fd int, adminGroup *uint32) (Peer, error) {
	cred, err := sys.PeerCred(fd)
	if err != nil {
		return Peer{}, err
	}
	p := Peer{UID: cred.UID, GID: cred.GID, PID: cred.PID}
	if p.Groups, err = sys.PeerGroups(fd); err != nil && !errors.Is(err, syscall.ENOPROTOOPT) {
		return Peer{}, err
	}
	p.Admin = p.UID == 0 || (adminGroup != nil && (p.GID == *adminGroup || slices.Contains(p.Groups, *adminGroup)))
	if err := p.place(fd); err != nil {
		p.Cgroup, p.Why = "", err.Error()
		return p, nil
	}
	p.Known = true
	return p, nil
}

// inside finds out by tell, which may be nil, whether a peer descends from a turn:
// where cgroups do not say. blind is tell's error where nobody could.
func (p *Peer) inside(fd int, tell func(fd, pid int) (string, error), blind error) {
	if tell == nil || p.InTurn != "" {
		return
	}
	pidfd, err := sys.PeerPidfd(fd)
	if err == nil {
		defer sys.Close(pidfd)
	} else {
		pidfd = -1
	}
	turn, err := tell(pidfd, p.PID)
	switch {
	case err == nil:
		p.Known, p.InTurn = true, turn
	case errors.Is(err, blind):
		p.Known = true
	case !p.Known:
		p.Why += "; " + err.Error()
	}
}

// place finds the peer's cgroup. A number may have been used again, so a
// handle is opened first, and asked last whether its process is still there.
// Before Linux 6.5 the handle itself comes from the number, and a process that
// died before the connection was accepted may be taken for another.
func (p *Peer) place(fd int) error {
	pidfd, err := sys.PeerPidfd(fd)
	if errors.Is(err, syscall.ENOPROTOOPT) && p.PID > 0 {
		pidfd, err = sys.PidfdOpen(p.PID, 0)
	}
	if err != nil {
		return fmt.Errorf("open a handle on it: %w", err)
	}
	defer sys.Close(pidfd)
	p.Ino, _ = sys.PidfsIno(pidfd)
	pid, err := procNumber(pidfd)
	if err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return fmt.Errorf("read its cgroup: %w", err)
	}
	if gone, err := sys.PidfdExited(pidfd); err != nil || gone {
		return errors.New("it has exited")
	}
	p.Cgroup, err = unifiedPath(b)
	return err
}

// procNumber is the number that /proc has for the process of a pidfd, which
// may not be ours: a /proc can belong to another PID namespace.
func procNumber(pidfd int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return "", fmt.Errorf("read about its handle: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "Pid:"); ok {
			if n = strings.TrimSpace(n); n != "" && n != "0" && n != "-1" {
				return n, nil
			}
			return "", errors.New("it has exited, or is not in the PID namespace of /proc")
		}
	}
	return "", errors.New("its handle names no process")
}

// unifiedPath is the cgroup v2 path in the text of /proc/PID/cgroup, see
// cgroups(7). A path that was removed says nothing about where a process is.
func unifiedPath(b []byte) (string, error) {
	for line := range bytes.Lines(b) {
		path, ok := bytes.CutPrefix(line, []byte("0::"))
		if !ok {
			continue
		}
		s := strings.TrimSuffix(string(path), "\n")
		if s == "" || s[0] != '/' || strings.HasSuffix(s, " (deleted)") {
			return "", fmt.Errorf("its cgroup reads %q", s)
		}
		return s, nil
	}
	return "", errors.New("it has no cgroup v2 path")
}

// caller is the peer as the engine wants it.
func (p Peer) caller() containment.Caller {
	return containment.Caller{UID: p.UID, GID: p.GID, Groups: p.Groups, PID: p.PID,
		Ino: p.Ino, Cgroup: p.Cgroup, Admin: p.Admin}
}
