// Package fallback is for hosts without cgroups or pidfds: process groups and
// their witnesses, the subreaper walk, start tokens on systems other than Linux.
// Identity by (pid, start tick) on Linux is part of package pidfd, which needs
// it on kernels older than 6.9.
package fallback
