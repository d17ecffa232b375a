package turns

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// The least file system in user space: a directory in which no name exists.
// While a file says so it does not answer; who has asked then waits, and once
// killed does so uninterruptibly (fs/fuse: a request that was read is waited
// for). When its process ends, the kernel ends all waits.

// What is used of the protocol, <linux/fuse.h>.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseBatchForget = 42
	fuseInHeader    = 40 // len, opcode, unique, nodeid, uid, gid, pid, padding
)

// playFuse: DIR FROZEN. It mounts itself on DIR, and does not answer while
// there is a file FROZEN.
func playFuse(words []string) int {
	dev := must(syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0))
	check(syscall.Mount("fuse", words[0], "fuse", syscall.MS_NOSUID|syscall.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)))
	buf := make([]byte, 1<<20)
	for {
		n, err := syscall.Read(dev, buf)
		switch err {
		case nil:
		case syscall.EINTR, syscall.EAGAIN, syscall.ENOENT: // ENOENT: the request was taken back
			continue
		case syscall.ENODEV: // unmounted
			return 0
		default:
			check(err)
		}
		if answer := answerFuse(buf[:n], words[1]); answer != nil {
			if _, err := syscall.Write(dev, answer); err != syscall.ENOENT {
				check(err)
			}
		}
	}
}

// answerFuse makes the answer to a request; nil: none is due.
func answerFuse(req []byte, frozen string) []byte {
	le := binary.NativeEndian
	var body []byte
	errno := syscall.ENOSYS
	switch le.Uint32(req[4:]) {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil
	case fuseInit:
		errno = 0
		body = le.AppendUint32(body, le.Uint32(req[fuseInHeader:]))
		body = le.AppendUint32(body, min(le.Uint32(req[fuseInHeader+4:]), 31)) // minor
		body = append(body, make([]byte, 12)...)                               // read-ahead, flags, background
		body = le.AppendUint32(body, 4096)                                     // max_write
		body = append(body, make([]byte, 40)...)
	case fuseGetattr:
		errno = 0
		attr := make([]byte, 104)
		le.PutUint64(attr[16:], 1)                        // ino
		le.PutUint32(attr[16+60:], syscall.S_IFDIR|0o755) // mode
		le.PutUint32(attr[16+64:], 2)                     // nlink
		body = attr
	case fuseLookup:
		errno = syscall.ENOENT
		for told := false; exists(frozen); time.Sleep(time.Millisecond) {
			if !told {
				check(os.WriteFile(heldOf(frozen), fmt.Append(nil, le.Uint32(req[32:])), 0o600))
				told = true
			}
		}
	}
	out := le.AppendUint32(nil, uint32(16+len(body)))
	out = le.AppendUint32(out, uint32(-int32(errno)))
	out = le.AppendUint64(out, le.Uint64(req[8:]))
	return append(out, body...)
}

// heldOf is the file that has the number of the thread that waits for an answer.
func heldOf(frozen string) string { return frozen + ".held" }

func asked(held string) int {
	b, _ := os.ReadFile(held)
	pid, _ := strconv.Atoi(string(b))
	return pid
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// playAsker: FILE WITNESS WHO. It asks for a file again and again, and beats
// each time there was an answer: in its main thread (process), or in another.
func playAsker(words []string) int {
	j := pulse(words[1])
	return inThread(words[2], func() {
		_, err := os.Lstat(words[0])
		if !os.IsNotExist(err) {
			check(fmt.Errorf("an unexpected answer: %w", err))
		}
		_ = must(syscall.Write(j.fd, j.mark[:]))
	})
}
