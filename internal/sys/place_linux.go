package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// PlaceOf tells where a file is, and when it was made: device, inode number, and
// birth in nanoseconds, which no copy has from its original. Born is 0 where the
// file system does not tell (tmpfs before Linux 6.0). Links are followed.
func PlaceOf(name string) (p Place, err error) {
	var st unix.Statx_t
	err = ignoringEINTR(func() error {
		return unix.Statx(unix.AT_FDCWD, name, unix.AT_NO_AUTOMOUNT, unix.STATX_INO|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return p, &os.PathError{Op: "statx", Path: name, Err: err}
	}
	p = Place{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		p.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return p, nil
}
