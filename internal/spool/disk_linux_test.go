package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"pinfold.dev/internal/sys/systest"
)

// TestFullDisk writes to a small tmpfs of its own.
func TestFullDisk(t *testing.T) {
	systest.Root(t)
	cmd := suite.Command(t, "fulldisk", testDir(t))
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	p := systest.Start(t, cmd)
	if st := p.Reap(); !st.Success() {
		t.Errorf("helper: %v", st)
	}
}

// fatal makes a tester of a helper.
type fatal struct{}

func (fatal) Helper()                      {}
func (fatal) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func fullDiskHelper(args []string) error {
	dir := args[0]
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount private", err)
	}
	if err := syscall.Mount("pinfold-test", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		return os.NewSyscallError("mount tmpfs", err)
	}
	path, other := filepath.Join(dir, "x"), filepath.Join(dir, "filler")
	w := create(fatal{}, path, 4<<20)
	defer w.Close(false)
	say(fatal{}, w, 300_000)
	if err := fillUp(other); err != nil {
		return err
	}
	if _, err := Create(filepath.Join(dir, "y"), 0); !errors.Is(err, syscall.ENOSPC) || exists(filepath.Join(dir, "y")) {
		return fmt.Errorf("create on a full disk: %v", err)
	}
	for range 200 { // 10 MB, more than the whole spool
		say(fatal{}, w, 50_000)
	}
	st, gaps := mustWalk(fatal{}, path)
	if st.Total != 10_300_000 || st.Lost < 10_000_000-100_000 || st.Errno != syscall.ENOSPC || st.Errors == 0 {
		return fmt.Errorf("status on a full disk: %+v", st)
	}
	// The head was full of what came before; the bytes of the ring stay too.
	if len(gaps) == 0 || gaps[0].From < 300_000 || gaps[0].Reason != Lost {
		return fmt.Errorf("gaps on a full disk: %v", gaps)
	}
	if err := os.Remove(other); err != nil {
		return err
	}
	time.Sleep(2 * retryAfter)
	say(fatal{}, w, 100_000)
	after, gaps := mustWalk(fatal{}, path)
	if after.Lost != st.Lost || after.Total != st.Total+100_000 {
		return fmt.Errorf("status with room again: %+v, before %+v, gaps %v", after, st, gaps)
	}
	if last := gaps[len(gaps)-1]; last.To != st.Total {
		return fmt.Errorf("the last gap with room again: %v of %d", last, after.Total)
	}
	return w.Close(true)
}

// fillUp fills a file system.
func fillUp(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for p := make([]byte, 4096); err == nil; {
		_, err = f.Write(p)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("fill the disk: %w", err)
	}
	return nil
}

// TestFileSizeLimit: RLIMIT_FSIZE neither ends the writer nor hides the loss.
func TestFileSizeLimit(t *testing.T) {
	p := systest.Start(t, suite.Command(t, "filesize", testDir(t)))
	if st := p.Reap(); !st.Success() {
		t.Errorf("helper: %v", st)
	}
}

func fileSizeHelper(args []string) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100_000, Max: 100_000}); err != nil {
		return os.NewSyscallError("setrlimit", err)
	}
	path := filepath.Join(args[0], "x")
	w := create(fatal{}, path, 1<<20)
	for range 30 {
		say(fatal{}, w, 60_000)
	}
	if err := w.Close(true); err != nil {
		return err
	}
	st, gaps := mustWalk(fatal{}, path)
	kept := int64(100_000 - headerSize)
	if st.Total != 1_800_000 || st.Lost != st.Total-kept || st.Errno != syscall.EFBIG || !st.EOF || gaps[0].From != kept {
		return fmt.Errorf("%+v %v", st, gaps)
	}
	return nil
}

// TestSize: a spool takes room as it fills, and never more than it may.
func TestSize(t *testing.T) {
	for _, max := range []int64{MinMax, 64 << 10, 1_000_001} {
		path := filepath.Join(testDir(t), "x")
		w := create(t, path, max)
		blocks := func() int64 {
			var st syscall.Stat_t
			if err := syscall.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			if st.Size > max+headerSize {
				t.Errorf("the file of a spool of %d has %d bytes", max, st.Size)
			}
			return st.Blocks * 512
		}
		say(t, w, 100)
		if b := blocks(); b > 4*headerSize {
			t.Errorf("100 bytes take %d on the disk", b)
		}
		for range 40 {
			say(t, w, int(max/9))
			blocks()
		}
		if b, most := blocks(), (max+2*headerSize-1)&^(headerSize-1); b > most+4*headerSize { // and what the file system needs itself
			t.Errorf("a spool of %d takes %d on the disk", max, b)
		}
		if err := w.Close(true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWriteFrom: pipes and terminals.
func TestWriteFrom(t *testing.T) {
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, MinMax)
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	buf, p := make([]byte, 64<<10), make([]byte, 5000)
	if n, err := w.WriteFrom(fds[0], buf); n != 0 || err != syscall.EAGAIN {
		t.Errorf("an empty pipe: %d, %v", n, err)
	}
	for _, from := range []func(int, []byte) (int, error){w.WriteFrom, w.DropFrom, w.WriteFrom} {
		fill(p, w.Status().Total)
		if _, err := syscall.Write(fds[1], p); err != nil {
			t.Fatal(err)
		}
		if n, err := from(fds[0], buf); n != len(p) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	syscall.Close(fds[1])
	if n, err := w.WriteFrom(fds[0], buf); n != 0 || err != io.EOF {
		t.Errorf("the end of a pipe: %d, %v", n, err)
	}
	if err := w.Close(true); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteFrom(-1, buf); err != syscall.EBADF {
		t.Errorf("descriptor -1: %v", err)
	}
	if st, _ := mustWalk(t, path); st.Total != 15_000 || st.Lost != 5000 {
		t.Errorf("%+v", st)
	}
}

func TestWriteFromTerminal(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, MinMax)
	defer w.Close(true)
	if _, err := slave.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	buf := make([]byte, 4096)
	for total := 0; total < 5; { // the kernel hands a line over in parts, when it comes to it
		n, err := w.WriteFrom(int(master.Fd()), buf)
		if total += n; n == 0 || total > 5 || err != nil {
			t.Fatalf("%d of %d, %v", n, total, err)
		}
	}
	if n, err := w.WriteFrom(int(master.Fd()), buf); n != 0 || err != syscall.EIO {
		t.Errorf("with nobody there: %d, %v", n, err)
	}
	r := mustOpen(t, path)
	defer r.Close()
	if n, _, _, err := r.ReadAt(buf, 0); err != nil || string(buf[:n]) != "one\r\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// TestNoGarbage: a writer allocates nothing, a reader next to nothing.
func TestNoGarbage(t *testing.T) {
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, 100_000)
	defer w.Close(false)
	p := make([]byte, 3000)
	if n := testing.AllocsPerRun(100, func() { _, _ = w.Write(p) }); n > 0 {
		t.Errorf("a write allocates %v times", n)
	}
	r := mustOpen(t, path)
	defer r.Close()
	off, err := r.Tail(3000)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _, _ = r.ReadAt(p, off) }); n > 0 {
		t.Errorf("a read allocates %v times", n)
	}
}
