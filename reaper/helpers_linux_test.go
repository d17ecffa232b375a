package reaper_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
)

// helpers are programs that the test binary is when PINFOLD_TEST_HELPER names
// one.
var helpers = map[string]func(args []string) int{
	"hostile-ancestor": hostileAncestor,
	"without-clone3":   withoutClone3,
	"unproc":           unproc,
	"headless":         headless,
	"hidden":           hidden,
}

// become runs a command in place of this process.
func become(args []string) int {
	err := syscall.Exec(args[0], args, []string{"PATH=/usr/bin:/bin"})
	fmt.Fprintln(os.Stderr, "exec:", err)
	return 99
}

// hidden becomes args as a user who sees nobody else's processes.
func hidden(args []string) int {
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, "hidepid=2"),
		syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534))
	if err != nil {
		fmt.Fprintln(os.Stderr, "hidden:", err)
		return 99
	}
	return become(args)
}

// headless moves to the cgroup args[0]; then its main thread exits, and others go on.
func headless(args []string) int {
	if err := os.WriteFile(args[0]+"/cgroup.procs", []byte("0"), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	for range 8 {
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid() == syscall.Getpid() {
				syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
			}
			time.Sleep(long)
			os.Exit(0)
		}()
	}
	if runtime.LockOSThread(); syscall.Gettid() == syscall.Getpid() {
		syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	time.Sleep(long)
	return 0
}

// hostileAncestor ignores and blocks every signal, and then becomes args.
func hostileAncestor(args []string) int {
	runtime.LockOSThread()
	ignore := [4]uint64{1} // SIG_IGN
	for s := uintptr(1); s <= 64; s++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0)
	}
	all := ^uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 2, uintptr(unsafe.Pointer(&all)), 0, 8, 0, 0)
	return become(args)
}

// withoutClone3 becomes what follows args[0] on a host that refuses clone3 with that
// errno.
func withoutClone3(args []string) int {
	errno, err := strconv.Atoi(args[0])
	if err != nil {
		return 98
	}
	filter := seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls: []seccomp.SyscallGroup{{
				Action: seccomp.ActionErrno | seccomp.Action(errno), Names: []string{"clone3"},
			}},
		},
	}
	if err := seccomp.LoadFilter(filter); err != nil {
		fmt.Fprintln(os.Stderr, "seccomp:", err)
		return 99
	}
	return become(args[1:])
}

// smallDisk mounts a tmpfs. A test goes without only where mounting is not permitted.
func smallDisk(t *testing.T, dir, size string) {
	t.Helper()
	switch err := syscall.Mount("pinfold-test", dir, "tmpfs", 0, size); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		t.Skip("mounting is not permitted here: ", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
}
