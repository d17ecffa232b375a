package sys

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// WinProcess is an open handle of a process. While any handle of it is open, and
// be it of one that has exited, no other process gets its number.
type WinProcess struct {
	h         windows.Handle
	waits     bool // the handle may be waited for
	terminate bool // and ended
}

// OpenWinProcess opens a process with as much as is allowed: to end it, to wait
// for it, and at least to ask about it. ErrNoEntry: no process has the number
// (ERROR_INVALID_PARAMETER). Denied is ERROR_ACCESS_DENIED: there is one.
func OpenWinProcess(pid int) (*WinProcess, error) {
	if pid <= 0 {
		return nil, ErrNoEntry
	}
	const ask = windows.PROCESS_QUERY_LIMITED_INFORMATION
	var h windows.Handle
	var err error
	access := []uint32{ask | windows.SYNCHRONIZE | windows.PROCESS_TERMINATE, ask | windows.SYNCHRONIZE, ask}
	for _, a := range access {
		if h, err = windows.OpenProcess(a, false, uint32(pid)); err == nil {
			p := &WinProcess{h, a&windows.SYNCHRONIZE != 0, a&windows.PROCESS_TERMINATE != 0}
			if err := p.isNumber(pid); err != nil {
				return nil, err
			}
			return p, nil
		}
		if !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		return nil, ErrNoEntry
	}
	return nil, os.NewSyscallError("OpenProcess", err)
}

// isNumber closes the handle when it is not of that number: OpenProcess leaves
// out the last two bits, which are zero in every number there is.
func (p *WinProcess) isNumber(pid int) error {
	n, err := windows.GetProcessId(p.h)
	switch {
	case err != nil:
		err = os.NewSyscallError("GetProcessId", err)
	case int(n) != pid:
		err = ErrNoEntry
	default:
		return nil
	}
	_ = windows.CloseHandle(p.h)
	return err
}

// Created is the creation time in units of 100 ns since 1601, which later
// settings of the clock leave as it is.
func (p *WinProcess) Created() (uint64, error) {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(p.h, &created, &exited, &kernel, &user); err != nil {
		return 0, os.NewSyscallError("GetProcessTimes", err)
	}
	return uint64(created.HighDateTime)<<32 | uint64(created.LowDateTime), nil
}

// Exited tells whether it has. Where the handle may not be waited for, an exit
// code other than 259 (STILL_ACTIVE) says so, and 259 says nothing: ErrParse.
func (p *WinProcess) Exited() (bool, error) {
	if p.waits {
		ev, err := windows.WaitForSingleObject(p.h, 0)
		if err != nil {
			return false, os.NewSyscallError("WaitForSingleObject", err)
		}
		return ev == windows.WAIT_OBJECT_0, nil
	}
	var code uint32
	if err := windows.GetExitCodeProcess(p.h, &code); err != nil {
		return false, os.NewSyscallError("GetExitCodeProcess", err)
	}
	const stillActive = 259
	if code == stillActive {
		return false, ErrParse
	}
	return true, nil
}

// Parent is the number of the process that made it, which may be long gone and
// the number another's.
func (p *WinProcess) Parent() (int, error) {
	var in windows.PROCESS_BASIC_INFORMATION
	err := windows.NtQueryInformationProcess(p.h, windows.ProcessBasicInformation, unsafe.Pointer(&in), uint32(unsafe.Sizeof(in)), nil)
	return int(in.InheritedFromUniqueProcessId), os.NewSyscallError("NtQueryInformationProcess", err)
}

// Terminate ends it, with exit code 1: there is nothing to ask it by first.
// ERROR_ACCESS_DENIED: it may not be ended, or has exited.
func (p *WinProcess) Terminate() error {
	if !p.terminate {
		return os.NewSyscallError("TerminateProcess", windows.ERROR_ACCESS_DENIED)
	}
	return os.NewSyscallError("TerminateProcess", windows.TerminateProcess(p.h, 1))
}

// Close closes the handle: its number is free once nobody has one.
func (p *WinProcess) Close() error {
	return os.NewSyscallError("CloseHandle", windows.CloseHandle(p.h))
}
