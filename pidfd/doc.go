// Package pidfd holds processes by handle: it opens a pidfd, proves that it is
// the process that was recorded, signals it and waits for it. A pid alone is a
// claim; everything here is done through the descriptor, so that a number that
// was handed out again is never touched.
//
// It works from Linux 5.4 on and uses what newer kernels offer: the pidfs inode
// (6.9), PIDFD_GET_INFO (6.13). Where one is missing it falls back on /proc and
// checks after the read that the process is still alive, so that what was read
// was its own. See pidfd_open(2), pidfd_send_signal(2).
package pidfd
