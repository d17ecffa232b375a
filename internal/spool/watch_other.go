//go:build !linux

package spool

import (
	"os"
	"syscall"
)

// Watcher wakes readers that wait. There is none here.
type Watcher struct{}

// NewWatcher returns ENOSYS.
func NewWatcher() (*Watcher, error) { return nil, os.NewSyscallError("inotify_init1", syscall.ENOSYS) }

// Close does nothing.
func (w *Watcher) Close() error { return nil }

func (w *Watcher) arm(*os.File) *bell { return nil }

func (b *bell) disarm() {}
