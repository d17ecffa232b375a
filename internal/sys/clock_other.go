//go:build !linux

package sys

import "time"

// Monotonic returns 0.
func Monotonic() time.Duration { return 0 }

// MonotonicOffset returns 0.
func MonotonicOffset() time.Duration { return 0 }

// HardLimit returns ENOSYS.
func HardLimit(resource int) (uint64, error) { return 0, nosys("prlimit") }

// Nice returns ENOSYS.
func Nice() (int, error) { return 0, nosys("getpriority") }

// HungUp returns false.
func HungUp(fd int) bool { return false }

// PipeWith returns ENOSYS.
func PipeWith(b []byte) (int, error) { return -1, nosys("pipe2") }
