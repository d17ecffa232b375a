//go:build !darwin && !freebsd && !linux

package sys

// ReadEntry returns ENOSYS: it is for systems whose kernel has a table of
// processes to read, and nothing better.
func ReadEntry(pid int) (ProcEntry, error) { return ProcEntry{}, nosys("sysctl kern.proc.pid") }

// TableWhole returns false.
func TableWhole() bool { return false }

// BootID returns nothing.
func BootID() string { return "" }
