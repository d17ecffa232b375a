package sys

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// Flags for Openat.
const (
	ORdonly    = unix.O_RDONLY
	OWronly    = unix.O_WRONLY
	ORdwr      = unix.O_RDWR
	ODirectory = unix.O_DIRECTORY
	OPath      = unix.O_PATH
	ONofollow  = unix.O_NOFOLLOW

	AtFDCWD = unix.AT_FDCWD
)

// Cgroup2Magic is the file system type of cgroup v2, as FsType returns it.
const Cgroup2Magic = unix.CGROUP2_SUPER_MAGIC

// Openat opens name beneath dirfd, close-on-exec.
func Openat(dirfd int, name string, flags int) (int, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, 0)
		return
	})
	return fd, os.NewSyscallError("openat "+name, err)
}

// Close closes a descriptor.
func Close(fd int) error { return os.NewSyscallError("close", unix.Close(fd)) }

// Dup duplicates a descriptor, close-on-exec.
func Dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return n, os.NewSyscallError("fcntl", err)
}

// Mkdirat makes a directory beneath dirfd.
func Mkdirat(dirfd int, name string, mode uint32) error {
	return os.NewSyscallError("mkdirat "+name, unix.Mkdirat(dirfd, name, mode))
}

// Rmdirat removes an empty directory beneath dirfd, never anything else.
func Rmdirat(dirfd int, name string) error {
	return os.NewSyscallError("rmdir "+name, unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR))
}

// Ino is the inode number of an open file: for a cgroup v2 directory its 64-bit
// kernfs id.
func Ino(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ino, os.NewSyscallError("fstat", err)
}

// DirStat is the inode number of an open directory and, on cgroup v2, how many
// directories are in it (kernfs keeps the link count at that plus 2).
func DirStat(fd int) (ino uint64, subdirs int, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, int(st.Nlink) - 2, os.NewSyscallError("fstat", err)
}

// Subdirs lists the directories in an open directory, from its beginning.
func Subdirs(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, os.NewSyscallError("lseek", err)
	}
	var names []string
	buf := make([]byte, 8192)
	for {
		n := 0
		err := ignoringEINTR(func() (err error) { n, err = unix.ReadDirent(fd, buf); return })
		if err != nil {
			return names, os.NewSyscallError("getdents64", err)
		}
		if n <= 0 {
			return names, nil
		}
		names = appendDirs(names, buf[:n])
	}
}

// appendDirs takes the directories out of linux_dirent64 records: inode (8
// bytes), offset (8), record length (2), type (1), name, NUL.
func appendDirs(names []string, b []byte) []string {
	const head = 19
	for len(b) > head {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size <= head || size > len(b) {
			return names
		}
		name, _, _ := bytes.Cut(b[head:size], []byte{0})
		if b[18] == unix.DT_DIR && string(name) != "." && string(name) != ".." {
			names = append(names, string(name))
		}
		b = b[size:]
	}
	return names
}

// InoAt is the inode number of name beneath dirfd; links are followed.
func InoAt(dirfd int, name string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, name, &st, 0)
	return st.Ino, os.NewSyscallError("fstatat "+name, err)
}

// MountAt tells on which mount, by its number in mountinfo, and on which device the
// file at a path is; links are followed, also those of /proc. Before Linux 5.8 the
// number is 0.
func MountAt(name string) (id uint64, major, minor uint32, err error) {
	var st unix.Statx_t
	err = ignoringEINTR(func() error {
		return unix.Statx(unix.AT_FDCWD, name, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	})
	if st.Mask&unix.STATX_MNT_ID != 0 {
		id = st.Mnt_id
	}
	return id, st.Dev_major, st.Dev_minor, os.NewSyscallError("statx "+name, err)
}

// FsType is the magic number of the file system that an open file is on.
func FsType(fd int) (int64, error) {
	var st unix.Statfs_t
	err := ignoringEINTR(func() error { return unix.Fstatfs(fd, &st) })
	return int64(st.Type), os.NewSyscallError("fstatfs", err)
}

// Pread reads from an offset, once.
func Pread(fd int, b []byte, offset int64) (int, error) {
	n := 0
	err := ignoringEINTR(func() (err error) { n, err = unix.Pread(fd, b, offset); return })
	return max(n, 0), os.NewSyscallError("pread", err)
}

// Write writes b in one call, as the files of cgroupfs need it.
func Write(fd int, b []byte) error {
	err := ignoringEINTR(func() error {
		n, err := unix.Write(fd, b)
		if err == nil && n < len(b) {
			return unix.EIO
		}
		return err
	})
	return os.NewSyscallError("write", err)
}

// ReadFileAt reads the whole of name beneath dirfd.
func ReadFileAt(dirfd int, name string) ([]byte, error) {
	fd, err := Openat(dirfd, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for {
		n := 0
		err := ignoringEINTR(func() (err error) { n, err = unix.Read(fd, buf[len(buf):cap(buf)]); return })
		if err != nil {
			return nil, os.NewSyscallError("read "+name, err)
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) == cap(buf) {
			buf = append(buf, make([]byte, cap(buf))...)[:len(buf)]
		}
	}
}

// WriteFileAt writes data to the existing file name beneath dirfd, in one call.
func WriteFileAt(dirfd int, name, data string) error {
	fd, err := Openat(dirfd, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = ignoringEINTR(func() error { _, err := unix.Write(fd, []byte(data)); return err })
	return os.NewSyscallError("write "+data+" to "+name, err)
}

// Fsetxattr sets an extended attribute of an open file.
func Fsetxattr(fd int, name string, value []byte) error {
	return os.NewSyscallError("fsetxattr "+name, unix.Fsetxattr(fd, name, value, 0))
}

// Fgetxattr reads an extended attribute of at most 4096 bytes. ENODATA: there
// is none; a trusted. one is not there for those without CAP_SYS_ADMIN.
func Fgetxattr(fd int, name string) ([]byte, error) {
	buf := make([]byte, 4096)
	n, err := unix.Fgetxattr(fd, name, buf)
	if err != nil {
		return nil, os.NewSyscallError("fgetxattr "+name, err)
	}
	return buf[:n], nil
}
