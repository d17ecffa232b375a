package events

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

func newSuite() *systest.Suite {
	return systest.New(map[string]systest.Helper{"full": fullHelper})
}

var suite = newSuite()

func TestMain(m *testing.M) { suite.Main(m) }

// seen waits until readers see so many events.
func seen(t tester, l *Log, n int64) {
	t.Helper()
	ctx, cancel := within()
	defer cancel()
	if err := l.Wait(ctx, n-1); err != nil {
		t.Fatalf("event %d is not seen: %v", n, err)
	}
}

// A disk that hangs: the segment's place is taken by a FIFO, which nobody can open
// for writing while there is no reader.
func TestHangingDisk(t *testing.T) {
	dir := t.TempDir()
	few := func(c *Config) { c.Pending, c.Patience, c.open = 50, 20*time.Millisecond, waits }
	l := opened(t, dir, few)
	add := func(l *Log, from, to int) {
		for n := from; n <= to; n++ {
			key, e := event("t1", n)
			l.Add(key, e)
		}
	}
	add(l, 1, 3)
	written(t, l)
	shut(t, l)

	files, _ := filepath.Glob(dir + "/state/events/*.log")
	if err := os.Rename(files[0], dir+"/aside"); err != nil {
		t.Fatal(err)
	}
	l = openedOn(t, dir, files[0], few)
	add(l, 4, 20)
	seen(t, l, 20) // from memory
	got := from(t, l, 3, 5)
	contiguous(t, 3, got)
	if len(got) != 17 {
		t.Errorf("%d events", len(got))
	}
	if l.Trouble() == nil {
		t.Error("nobody is told")
	}
	if err := l.Flush(context.Background()); err == nil {
		t.Error("flushed")
	}
	began := time.Now()
	add(l, 21, 3000)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("a hanging disk delays whoever adds: %s", d)
	}
	if len(l.recent) > 50+3 || l.Dropped() != 3000-4+1-50 {
		t.Errorf("%d in memory, %d dropped", len(l.recent), l.Dropped())
	}
	// A service that is killed now is followed by one that uses no number again.
	crashed, err := os.MkdirTemp(filepath.Dir(dir), "crashed")
	if err != nil {
		t.Fatal(err)
	}
	last := l.Last() // before the copy: more may be seen, and reserved, after it
	copyDir(t, dir+"/run", crashed+"/run")
	if l2 := opened(t, crashed); l2.Last() < last {
		t.Errorf("goes on at %d, %d was seen", l2.Last(), last)
	} else {
		shut(t, l2)
	}

	if err := os.Rename(dir+"/aside", dir+"/state/events/back"); err != nil {
		t.Fatal(err)
	}
	goOn(t, files[0], dir+"/state/events/back")
	for l.Trouble() != nil {
		time.Sleep(time.Millisecond)
	}
	add(l, 5000, 5000)
	written(t, l)
	check := func(l *Log) {
		t.Helper()
		got := from(t, l, 0, 7)
		contiguous(t, 0, got)
		n := len(got)
		if n != 3+50+1+1 || got[n-2].Kind != api.EventGap || got[n-1].Epoch != 5000 {
			t.Errorf("%d events, the last %+v", n, got[n-2:])
		}
	}
	check(l)
	shut(t, l)
	if _, err := os.Stat(dir + "/run/events.reserved"); !os.IsNotExist(err) {
		t.Errorf("reserved for ever: %v", err)
	}
	l = opened(t, dir)
	check(l)
	shut(t, l)
}

// waits opens a segment, and waits for that.
func waits(path string) (*os.File, error) { return os.OpenFile(path, os.O_WRONLY, 0) }

// openedOn opens a log and has its disk hang.
func openedOn(t *testing.T, dir, file string, change func(*Config)) *Log {
	t.Helper()
	if err := os.Rename(dir+"/aside", file); err != nil {
		t.Fatal(err)
	}
	l := opened(t, dir, change)
	if err := os.Rename(file, dir+"/aside"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}

// goOn lets the disk go on: the writer's open returns, with something that takes
// nothing, and the next finds the file.
func goOn(t *testing.T, fifo, back string) {
	t.Helper()
	r, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = os.Rename(back, fifo)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
}

// TestFullDisk writes to a small tmpfs of its own.
func TestFullDisk(t *testing.T) {
	systest.Root(t)
	cmd := suite.Command(t, "full", t.TempDir())
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	p := systest.Start(t, cmd)
	if st := p.Reap(); !st.Success() {
		t.Errorf("helper: %v", st)
	}
}

type fatal struct{}

func (fatal) Helper()                      {}
func (fatal) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func fullHelper(args []string) error {
	dir, t := args[0], fatal{}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount private", err)
	}
	if err := os.Mkdir(dir+"/state", 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("pinfold-test", dir+"/state", "tmpfs", 0, "size=192k,mode=700"); err != nil {
		return os.NewSyscallError("mount tmpfs", err)
	}
	filler := dir + "/state/filler"
	fill := func() error {
		err := os.WriteFile(filler, make([]byte, 256<<10), 0o600)
		if err == nil {
			return fmt.Errorf("the disk is not full")
		}
		return nil
	}
	if err := fill(); err != nil {
		return err
	}
	l := opened(t, dir) // not even its directory can be filled
	for n := 1; n <= 500; n++ {
		key, e := event("t1", n)
		l.Add(key, e)
	}
	seen(t, l, 500)
	if l.Trouble() == nil {
		return fmt.Errorf("nobody is told of a full disk")
	}
	if _, _, err := l.Ack(7, "c", 5); err == nil {
		return fmt.Errorf("acknowledged on a full disk")
	}
	if n, _ := l.Acked(7, "c"); n != 0 {
		return fmt.Errorf("acknowledged up to %d", n)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	for l.Trouble() != nil {
		time.Sleep(time.Millisecond)
	}
	if _, repeated, err := l.Ack(7, "c", 5); err != nil || repeated {
		return fmt.Errorf("with room again: %v, %v", repeated, err)
	}
	// What there is no room for comes from memory, the rest from disk.
	for n := 501; n <= 1000; n++ {
		key, e := event("t1", n)
		l.Add(key, e)
	}
	seen(t, l, 1000)
	got := from(t, l, 0, 11)
	contiguous(t, 0, got)
	for i, e := range got {
		if _, want := event("t1", i+1); !same(e, want) {
			return fmt.Errorf("event %d: %+v", i+1, e)
		}
	}
	if len(got) != 1000 {
		return fmt.Errorf("%d events", len(got))
	}
	return readOnly(t, dir, l)
}

// readOnly: the log can be opened and read.
func readOnly(t tester, dir string, l *Log) error {
	ctx, cancel := within()
	defer cancel()
	_ = l.Close(ctx) // the disk is full; the writer has closed its file then, else it cannot become read-only
	if err := syscall.Mount("", dir+"/state", "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return os.NewSyscallError("remount", err)
	}
	l = opened(t, dir)
	if l.Trouble() == nil {
		return fmt.Errorf("nobody is told of a read-only disk at the start")
	}
	last := l.Last() // 1000, or what was reserved
	key, e := event("t2", 1)
	l.Add(key, e)
	seen(t, l, last+1)
	if got := from(t, l, 0, 11); len(got) < 100 || !same(got[len(got)-1], e) {
		return fmt.Errorf("read-only: %d events", len(got))
	}
	if l.Trouble() == nil {
		return fmt.Errorf("nobody is told of a read-only disk")
	}
	return nil
}

// The log's files go under the running service: what comes after is on disk, with
// numbers that go on, and what is missing is told as a gap.
func TestSegmentsGo(t *testing.T) {
	for name, do := range map[string]func(state string) error{
		"the directory": func(s string) error { return os.RemoveAll(s) },
		"the segments": func(s string) error {
			return os.RemoveAll(s + "/events")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := opened(t, dir)
			add := func(from, to int) {
				t.Helper()
				for n := from; n <= to; n++ {
					key, e := event("t1", n)
					l.Add(key, e)
				}
				flushed(t, l)
			}
			add(1, 3)
			if err := do(dir + "/state"); err != nil {
				t.Fatal(err)
			}
			add(4, 6)
			if l.Trouble() != nil {
				t.Error(l.Trouble())
			}
			shut(t, l)
			l = opened(t, dir)
			defer shut(t, l)
			got := from(t, l, 3, 10)
			contiguous(t, 3, got)
			if l.Last() != 6 || len(got) != 3 || got[0].Seq != 4 {
				t.Errorf("the last is %d, %d of it are there", l.Last(), len(got))
			}
		})
	}
}

// stuckLog is a log that nobody reads: what is said to it waits.
type stuckLog struct {
	slog.Handler
	telling chan struct{}
	release chan struct{}
}

func (s stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (s stuckLog) Handle(context.Context, slog.Record) error {
	select {
	case s.telling <- struct{}{}:
	default:
	}
	<-s.release
	return nil
}

// Who adds an event waits for nothing, nor for who is told that none is written.
func TestNobodyWaitsForTheServicesLog(t *testing.T) {
	stuck := stuckLog{telling: make(chan struct{}, 1), release: make(chan struct{})}
	l := opened(t, t.TempDir(), func(c *Config) {
		c.Log = slog.New(stuck)
		c.open = func(string) (*os.File, error) { return nil, syscall.EIO }
	})
	defer func() {
		close(stuck.release)
		ctx, cancel := within()
		defer cancel()
		_ = l.Close(ctx) // it cannot be written
	}()
	l.Add(event("a", 1))
	<-stuck.telling
	added := make(chan struct{})
	go func() {
		defer close(added)
		l.Add(event("a", 2))
	}()
	select {
	case <-added:
	case <-time.After(time.Minute):
		t.Error("who adds an event waits")
	}
}
