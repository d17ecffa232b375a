// Package sys is the one place that makes system calls which the standard
// library lacks, and that parses /proc. Only it imports golang.org/x/sys.
//
// Calls return the bare number as *os.SyscallError, so that errors.Is works
// with syscall.Errno and the text names the call. On systems other than Linux
// every call exists and returns ENOSYS. The parsers are pure functions over
// bytes and build everywhere.
//
// It is linked into the keeper, so it stays small: no fmt, no net.
package sys
