//go:build linux

package inspect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

var suite = systest.New(map[string]systest.Helper{
	"user":      useFile,
	"thread":    useInThread,
	"headless":  useHeadless,
	"elsewhere": useElsewhere,
	"listen":    listenOn,
	"dial":      dialTo,
	"nobody":    lookAsNobody,
	"served":    sayServed,
})

// TestMain keeps to itself what descriptors it was started with: helpers have no
// use for them, and in another mount namespace they would be on hidden mounts.
func TestMain(m *testing.M) {
	_ = sys.CloseOnExecFrom(3)
	suite.Main(m)
}

// ready says so, and stays.
func ready() error {
	fmt.Println("ready")
	time.Sleep(time.Hour)
	return nil
}

// useFile is HOW PATH: it uses the path in that way.
func useFile(args []string) error {
	how, path := args[0], args[1]
	switch how {
	case "cwd":
		if err := os.Chdir(path); err != nil {
			return err
		}
	case "open", "deleted":
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer runtime.KeepAlive(f)
		if how == "deleted" {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	case "map":
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE)
		f.Close()
		if err != nil {
			return err
		}
		defer runtime.KeepAlive(b)
	case "root":
		if err := syscall.Chroot(path); err != nil {
			return err
		}
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	return ready()
}

// useInThread is DIR: one thread has a working directory of its own there.
func useInThread(args []string) error {
	for range 100 { // a goroutine of these is not on the main thread
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid() == os.Getpid() {
				done <- nil
				select {} // so that the next one is not
			}
			err := syscall.Unshare(syscall.CLONE_FS)
			if err == nil {
				err = syscall.Chdir(args[0])
			}
			if err == nil {
				err = ready()
			}
			done <- err
		}()
		if err := <-done; err != nil {
			return err
		}
	}
	return errors.New("no goroutine came to another thread")
}

// useHeadless is DIR: it is in there, and has no main thread.
func useHeadless(args []string) error {
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	return systest.EndMainThread()
}

// useElsewhere is DIR PLACE FILE [HOW]: in a mount namespace of its own, where DIR is
// mounted at PLACE, it has PLACE/FILE open. Then it unmounts that (detached), or
// makes PLACE, or what is above it, its root (root, above); many: it is open often.
func useElsewhere(args []string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	if err := syscall.Mount(args[0], args[1], "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	f, err := os.Open(args[1] + "/" + args[2])
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(f)
	how := strings.Join(args[3:], "")
	for i := 0; i < 200 && strings.Contains(how, "many"); i++ {
		if _, err := syscall.Dup(int(f.Fd())); err != nil {
			return err
		}
	}
	switch {
	case strings.Contains(how, "map"):
		b, merr := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE)
		f.Close()
		defer runtime.KeepAlive(b)
		err = merr
	case how == "root":
		err = syscall.Chroot(args[1])
	case how == "above":
		err = syscall.Chroot(filepath.Dir(args[1]))
	}
	if err == nil && strings.Contains(how, "detached") {
		err = syscall.Unmount(args[1], syscall.MNT_DETACH)
	}
	if err != nil {
		return err
	}
	return ready()
}

// listenOn is NETWORK ADDRESS: it accepts all that come and keeps them.
func listenOn(args []string) error {
	l, err := net.Listen(args[0], args[1])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	kept := map[net.Conn]bool{}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		kept[c] = true
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
	}
}

// dialTo is NETWORK ADDRESS: it is connected.
func dialTo(args []string) error {
	c, err := net.Dial(args[0], args[1])
	if err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // it was accepted
		return err
	}
	defer runtime.KeepAlive(c)
	return ready()
}

// lookAsNobody is PID DIR: it looks, as nobody, how a process of root's uses a
// directory.
func lookAsNobody(args []string) error {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	u, err := NewUses(args[1])
	if err != nil {
		return err
	}
	h, err := pidfd.Open(pid)
	if err != nil {
		return err
	}
	uses, err := u.Of(noContext(), h)
	fmt.Println(len(uses), err)
	return nil
}

func handle(t *testing.T, pid int) *pidfd.Handle {
	t.Helper()
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}
