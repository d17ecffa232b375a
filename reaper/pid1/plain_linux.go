package pid1

import (
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"
)

func early()
func enteredEarly() bool
func setOwner(tid uintptr)
func handler() (entry, restorer uintptr)

//go:noescape
func leaveRuntime(arg unsafe.Pointer)

//go:noescape
func vfork(arg unsafe.Pointer) (pid uintptr)

// entersyscall gives up this thread's right to run Go, so that the runtime does
// not look after it all the time.
//
//go:linkname entersyscall runtime.entersyscall
func entersyscall()

// The compiler sees nobody call these: the linker and the assembly code do.
var _, _, _, _ = early, boot, bootPlain, childMain

// Early tells whether the program was started before the runtime, as it is when
// it is linked for that.
func Early() bool { return enteredEarly() }

// Run is the init of a program whose runtime has started. It does not return, but
// for command lines that want something else: usage errors, help, the version and
// modes; Describe says which.
func Run() {
	a := plainArgs{}
	argv, err := syscall.SlicePtrFromStrings(os.Args)
	if err != nil {
		return
	}
	envp, err := syscall.SlicePtrFromStrings(os.Environ())
	if err != nil {
		return
	}
	a.argv, a.envp = list{&argv[0]}, list{&envp[0]}
	var o options
	if v, _, _ := parse(&o, a.argv, a.envp); v != verdictRun {
		return
	}
	runtime.LockOSThread()
	all := everySig
	_, _ = sys4(syscall.SYS_RT_SIGPROCMASK, sigBlock, addr(&all), addr(&a.mask), 8)
	debug.SetGCPercent(-1)
	entersyscall()
	leaveRuntime(unsafe.Pointer(&a))
}
