package hold

import (
	"fmt"
	"syscall"

	"pinfold.dev/internal/sys"
)

// roomLeft is how many descriptors have to be free for a turn to be found again:
// what several that are found at a time take, with their keepers' answers. One that
// got only some of its own would seem to have lost its keeper.
const roomLeft = 96

// room tells whether there are descriptors for one more turn. The kernel gives the
// lowest free number, so that number says how many are in use.
func (h *Host) room() error {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return nil
	}
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("find a turn again: %w", err)
	}
	defer sys.Close(fd)
	if uint64(fd)+roomLeft > lim.Cur {
		return fmt.Errorf("find a turn again: %d descriptors are in use, of %d: %w", fd, lim.Cur, syscall.EMFILE)
	}
	return nil
}
