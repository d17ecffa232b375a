package server

import (
	"errors"
	"fmt"
	"os"

	"pinfold.dev/internal/sys"
)

// byNumber opens a handle on the process that connected where the kernel gives none
// (before Linux 6.5). The number that it gives is a claim: another process may have it
// by now. What proves it, with the handle open, is that its process has the other end
// of this very connection (sock_diag(7), /proc/PID/fd) and has not exited.
func byNumber(fd int) (pidfd int, err error) {
	cred, err := sys.PeerCred(fd)
	if err != nil {
		return -1, err
	}
	if cred.PID <= 0 {
		return -1, errors.New("it is in a PID namespace that cannot be seen from here")
	}
	other, err := otherEnd(fd)
	if err != nil {
		return -1, err
	}
	if pidfd, err = sys.PidfdOpen(cred.PID, 0); err != nil {
		return -1, err
	}
	if err = hasSocket(pidfd, other); err != nil {
		sys.Close(pidfd)
		return -1, fmt.Errorf("process %d: %w", cred.PID, err)
	}
	return pidfd, nil
}

// otherEnd is the inode number of what a unix socket is connected to.
func otherEnd(fd int) (uint32, error) {
	ino, err := sys.Ino(fd)
	if err != nil {
		return 0, err
	}
	all, err := sys.UnixSockets()
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		if uint64(s.Ino) == ino && s.Peer != 0 {
			return s.Peer, nil
		}
	}
	return 0, errors.New("the other end of the connection is not told, as that of another network namespace")
}

// hasSocket proves that a process that has not exited has a socket.
func hasSocket(pidfd int, ino uint32) error {
	pid, err := procNumber(pidfd)
	if err != nil {
		return err
	}
	dir, want := "/proc/"+pid+"/fd/", fmt.Sprintf("socket:[%d]", ino)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err != nil || to != want {
			continue
		}
		if gone, err := sys.PidfdExited(pidfd); err != nil || gone {
			return errors.New("it has exited")
		}
		return nil
	}
	return errors.New("it has not the other end of the connection")
}
