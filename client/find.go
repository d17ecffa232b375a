package client

import (
	"fmt"
	"os"
	"syscall"
)

// inContainer are the places where `pinfold-init --serve` puts a service's socket
// when it may not write /run (docs/init.md): of our own, and for root of whom the
// container's init runs as. A directory that others may write is none.
func inContainer() (places []string) {
	uids := []int{os.Getuid()}
	if fi, err := os.Stat("/proc/1"); err == nil && uids[0] == 0 {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			uids = append(uids, int(st.Uid))
		}
	}
	for _, uid := range uids {
		for _, in := range []string{"/tmp", "/dev/shm"} {
			dir := fmt.Sprintf("%s/pinfold-%d", in, uid)
			if closed(dir, uid) {
				places = append(places, dir+"/pinfold.sock")
			}
		}
	}
	return places
}

// closed tells whether a directory is a user's, and nobody else can write it.
func closed(dir string, uid int) bool {
	fi, err := os.Lstat(dir)
	if err != nil || !fi.IsDir() || fi.Mode().Perm()&0o022 != 0 {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}
