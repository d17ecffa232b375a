// Package token knows processes again on systems other than Linux: by number
// and start token. macOS and FreeBSD keep the start in the kernel's table of
// processes, to the microsecond, and ps(1) prints it in seconds where that is
// not to be had; Windows has a creation time of 100 ns, and a handle that keeps
// the number from being given away.
//
// Verdicts are those of package pidfd, and only api.VerdictOwned is ever
// signalled. Without a handle there is a gap between the last look and the
// signal: it is as short as two system calls, and looked at again afterwards.
// On Linux nothing can be held here; packages pidfd and fallback do it better.
// See docs/platforms.md.
package token
