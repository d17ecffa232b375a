//go:build !linux

package sys

import (
	"context"
	"os"
	"syscall"
	"time"
)

// The constants have Linux's values, so that nothing above needs to know.
const (
	PidfdThread             = 0x80
	PidfdSignalThreadGroup  = 2
	PidfdSignalProcessGroup = 4
	PidfdInfoPID            = uint64(1)
	PidfdInfoCreds          = uint64(2)
	PidfdInfoCgroupID       = uint64(4)
	PidfdInfoExit           = uint64(8)

	PAll    = 0
	PPid    = 1
	PPidfd  = 3
	WNoHang = 1
	WExited = 4
	WNoWait = 0x1000000
	WAll    = 0x40000000

	CldExited = 1
	CldKilled = 2
	CldDumped = 3

	ORdonly    = 0
	OWronly    = 1
	ORdwr      = 2
	ODirectory = 0x10000
	OPath      = 0x200000
	ONofollow  = 0x20000
	AtFDCWD    = -100

	Cgroup2Magic = 0x63677270

	WatchIn  = 1
	WatchPri = 2
)

func nosys(call string) error { return os.NewSyscallError(call, syscall.ENOSYS) }

// PidfdInfo is what PIDFD_GET_INFO tells on Linux.
type PidfdInfo struct {
	Mask      uint64
	CgroupID  uint64
	PID, TGID int
	PPID      int
	RUID      uint32
	EUID      uint32
	SUID      uint32
	FSUID     uint32
	ExitCode  int32
}

// PidfdOpen returns ENOSYS.
func PidfdOpen(pid, flags int) (int, error) { return -1, nosys("pidfd_open") }

// PidfdSendSignal returns ENOSYS.
func PidfdSendSignal(fd int, sig syscall.Signal, flags int) error { return nosys("pidfd_send_signal") }

// PidfdGetInfo returns ENOSYS.
func PidfdGetInfo(fd int, mask uint64) (PidfdInfo, error) {
	return PidfdInfo{}, nosys("pidfd_get_info")
}

// PidfsIno returns false.
func PidfsIno(fd int) (ino uint64, ok bool) { return 0, false }

// PidfdExited returns ENOSYS.
func PidfdExited(fd int) (bool, error) { return false, nosys("poll") }

// Child is what waitid(2) says of a child.
type Child struct {
	PID    int
	UID    uint32
	Code   int
	Status int
}

// Waitid returns ENOSYS.
func Waitid(idType, id, options int) (Child, error) { return Child{}, nosys("waitid") }

// SetSubreaper returns ENOSYS.
func SetSubreaper(on bool) error { return nosys("prctl") }

// SetDumpable returns ENOSYS.
func SetDumpable(on bool) error { return nosys("prctl") }

// SetNoNewPrivs returns ENOSYS.
func SetNoNewPrivs() error { return nosys("prctl") }

// SetParentDeathSignal returns ENOSYS.
func SetParentDeathSignal(sig syscall.Signal) error { return nosys("prctl") }

// Nanosleep sleeps.
func Nanosleep(ns int64) { time.Sleep(time.Duration(ns)) }

// BootTicks returns 0.
func BootTicks() uint64 { return 0 }

// Openat returns ENOSYS.
func Openat(dirfd int, name string, flags int) (int, error) { return -1, nosys("openat " + name) }

// Close returns ENOSYS.
func Close(fd int) error { return nosys("close") }

// Dup returns ENOSYS.
func Dup(fd int) (int, error) { return -1, nosys("fcntl") }

// Mkdirat returns ENOSYS.
func Mkdirat(dirfd int, name string, mode uint32) error { return nosys("mkdirat " + name) }

// Rmdirat returns ENOSYS.
func Rmdirat(dirfd int, name string) error { return nosys("rmdir " + name) }

// Ino returns ENOSYS.
func Ino(fd int) (uint64, error) { return 0, nosys("fstat") }

// DirStat returns ENOSYS.
func DirStat(fd int) (ino uint64, subdirs int, err error) { return 0, 0, nosys("fstat") }

// Subdirs returns ENOSYS.
func Subdirs(fd int) ([]string, error) { return nil, nosys("getdents64") }

// InoAt returns ENOSYS.
func InoAt(dirfd int, name string) (uint64, error) { return 0, nosys("fstatat " + name) }

// MountAt returns ENOSYS.
func MountAt(name string) (id uint64, major, minor uint32, err error) {
	return 0, 0, 0, nosys("statx " + name)
}

// FsType returns ENOSYS.
func FsType(fd int) (int64, error) { return 0, nosys("fstatfs") }

// Pread returns ENOSYS.
func Pread(fd int, b []byte, offset int64) (int, error) { return 0, nosys("pread") }

// Write returns ENOSYS.
func Write(fd int, b []byte) error { return nosys("write") }

// ReadFileAt returns ENOSYS.
func ReadFileAt(dirfd int, name string) ([]byte, error) { return nil, nosys("openat " + name) }

// WriteFileAt returns ENOSYS.
func WriteFileAt(dirfd int, name, data string) error { return nosys("openat " + name) }

// Fsetxattr returns ENOSYS.
func Fsetxattr(fd int, name string, value []byte) error { return nosys("fsetxattr " + name) }

// Fgetxattr returns ENOSYS.
func Fgetxattr(fd int, name string) ([]byte, error) { return nil, nosys("fgetxattr " + name) }

// Watch waits for a descriptor.
type Watch struct{}

// NewWatch returns ENOSYS.
func NewWatch(fd int, events uint32) (*Watch, error) { return nil, nosys("epoll_create1") }

// Wait returns ENOSYS.
func (w *Watch) Wait(ctx context.Context, timeout time.Duration) error { return nosys("epoll_wait") }

// Close does nothing.
func (w *Watch) Close() error { return nil }

// Cred is who is at the other end of a unix socket.
type Cred struct {
	PID      int
	UID, GID uint32
}

// PeerCred returns ENOSYS.
func PeerCred(fd int) (Cred, error) { return Cred{}, nosys("getsockopt SO_PEERCRED") }

// PeerPidfd returns ENOSYS.
func PeerPidfd(fd int) (int, error) { return -1, nosys("getsockopt SO_PEERPIDFD") }

// PeerGroups returns ENOSYS.
func PeerGroups(fd int) ([]uint32, error) { return nil, nosys("getsockopt SO_PEERGROUPS") }

// SocketPair returns ENOSYS.
func SocketPair() (a, b int, err error) { return -1, -1, nosys("socketpair") }

// SendMsg returns ENOSYS.
func SendMsg(fd int, p []byte, fds []int) (int, error) { return 0, nosys("sendmsg") }

// RecvMsg returns ENOSYS.
func RecvMsg(fd int, p []byte, maxFDs int) (n int, fds []int, err error) {
	return 0, nil, nosys("recvmsg")
}

// ParseRights returns ENOSYS.
func ParseRights(oob []byte) ([]int, error) { return nil, nosys("control message") }

// Rights returns nothing.
func Rights(fds ...int) []byte { return nil }

// ProcFile returns ENOSYS.
func ProcFile(pid int, name string) ([]byte, error) { return nil, nosys("openat " + name) }

// OwnCgroup returns ErrNoCgroup2.
func OwnCgroup() (string, error) { return "", ErrNoCgroup2 }

// FindCgroup2 returns ErrNoCgroup2.
func FindCgroup2() (m MountEntry, unified bool, err error) { return m, false, ErrNoCgroup2 }

// Here is where the numbers that this process reads have their meaning.
type Here struct {
	Boot   string
	PIDNS  uint64
	TimeNS uint64
	Proc   bool
}

// ReadHere returns nothing.
func ReadHere() Here { return Here{} }

// UnixSocket is a unix socket.
type UnixSocket struct {
	Ino, Peer uint32
	Listens   bool
	Name      string
}

// UnixSockets returns ENOSYS.
func UnixSockets() ([]UnixSocket, error) { return nil, nosys("sock_diag") }

// SameFiles returns false.
func SameFiles(tid1, tid2 int) bool { return false }

// SameFS returns false.
func SameFS(tid1, tid2 int) bool { return false }

// SignalChild returns ENOSYS.
func SignalChild(pid int, sig syscall.Signal) error { return nosys("kill") }

// SignalNamespace returns ENOSYS.
func SignalNamespace(sig syscall.Signal) error { return nosys("kill") }

// EnterPIDNamespace returns ENOSYS.
func EnterPIDNamespace() error { return nosys("mount") }
