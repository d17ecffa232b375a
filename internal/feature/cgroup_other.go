//go:build !linux

package feature

import "syscall"

func tryTrustedXattr(string) error { return &absence{syscall.ENOSYS} }

func tryUserXattr(string) error { return &absence{syscall.ENOSYS} }

func tryKill(string) error { return &absence{syscall.ENOSYS} }

func tryClone(string) error { return &absence{syscall.ENOSYS} }
