package spool

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

const piece = 64 << 10

// generateHelper writes so many bytes to stdout.
func generateHelper(args []string) error {
	p := make([]byte, piece)
	for left := number(args[0]); left > 0; {
		n, err := os.Stdout.Write(p[:min(left, piece)])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// sinkHelper copies stdin to /dev/null through a buffer.
func sinkHelper([]string) error {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for p := make([]byte, piece); ; {
		n, err := os.Stdin.Read(p)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := null.Write(p[:n]); err != nil {
			return err
		}
	}
}

// keepHelper does what a keeper does: wait for stdin in epoll, and move what is
// there: path, max.
func keepHelper(args []string) error {
	w, err := Create(args[0], number(args[1]))
	if err != nil {
		return err
	}
	fmt.Println("made")
	ep, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer syscall.Close(ep)
	if err := syscall.SetNonblock(0, true); err != nil {
		return err
	}
	if err := syscall.EpollCtl(ep, syscall.EPOLL_CTL_ADD, 0, &syscall.EpollEvent{Events: syscall.EPOLLIN}); err != nil {
		return err
	}
	var events [1]syscall.EpollEvent
	for p := make([]byte, piece); ; {
		if _, err := syscall.EpollWait(ep, events[:], -1); err != nil && err != syscall.EINTR {
			return err
		}
		switch _, err := w.WriteFrom(0, p); err {
		case nil, syscall.EAGAIN:
		case io.EOF:
			return w.Close(true)
		default:
			return err
		}
	}
}

// drain connects a generator to a reader of its pipe and returns how long that
// took, from when the reader was ready, and the reader's peak memory in KiB.
func drain(t testing.TB, total int64, to *exec.Cmd, ready func(*systest.Proc), during func()) (time.Duration, int64) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	to.Stdin = r
	p := systest.Start(t, to)
	r.Close()
	ready(p)
	gen := suite.Command(t, "generate", fmt.Sprint(total))
	gen.Stdout = w
	begun := time.Now()
	g := systest.Start(t, gen)
	w.Close()
	during()
	st := p.Reap()
	took := time.Since(begun)
	if gst := g.Reap(); !st.Success() || !gst.Success() {
		t.Fatalf("%v, %v", st, gst)
	}
	return took, st.SysUsage().(*syscall.Rusage).Maxrss
}

// flow is what a run through a spool took.
type flow struct {
	took   time.Duration
	keeper int64 // peak memory, KiB
	missed [3]int64
}

// through sends a stream through a spool with some readers, which follow it,
// and one that is stuck after its first piece until all is over.
func through(t testing.TB, dir string, total int64, readers int) (f flow) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("readers%d.%d", readers, time.Now().UnixNano()))
	defer os.Remove(path)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	watch, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var wg sync.WaitGroup
	var stuck *Reader
	ready := func(p *systest.Proc) {
		p.Line(t)
		if stuck, err = watch.Open(path); err != nil {
			t.Fatal(err)
		}
		for i := range readers {
			wg.Go(func() { f.missed[i] = skim(ctx, t, watch, path, total) })
		}
	}
	during := func() {
		if _, err := stuck.Wait(ctx, 0); err != nil {
			t.Error(err)
		}
		if n, _, _, err := stuck.ReadAt(make([]byte, 100), 0); n == 0 || err != nil {
			t.Errorf("the stuck reader's first piece: %d, %v", n, err)
		}
		wg.Wait()
	}
	f.took, f.keeper = drain(t, total, suite.Command(t, "keep", path, "0"), ready, during)
	defer stuck.Close()
	st, err := stuck.Status()
	if err != nil || st.Total != total || !st.EOF || st.Lost != 0 || st.Dropped != max(0, total-DefaultMax) {
		t.Errorf("status %+v, %v", st, err)
	}
	if _, next, gap, err := stuck.ReadAt(make([]byte, 100), DefaultMax/4); total > DefaultMax && (gap == nil || next != total-DefaultMax*3/4) {
		t.Errorf("the stuck reader: %d, %v, %v", next, gap, err)
	}
	return f
}

// skim follows a spool to its end and says how much it missed.
func skim(ctx context.Context, t testing.TB, watch *Watcher, path string, total int64) (missed int64) {
	r, err := watch.Open(path)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer r.Close()
	p, off := make([]byte, piece), int64(0)
	for {
		n, next, gap, err := r.ReadAt(p, off)
		if err == io.EOF {
			break
		} else if err != nil {
			t.Error(err)
			return missed
		}
		if gap != nil {
			missed += gap.To - gap.From
		} else if n == 0 {
			if _, err := r.Wait(ctx, off); err != nil {
				t.Error(err)
				return missed
			}
		}
		off = next
	}
	if off != total {
		t.Errorf("a reader ended at %d of %d", off, total)
	}
	return missed
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFlow: much goes through a spool of 16 MiB, with three readers and one
// that is stuck, and memory stays what it is.
func TestFlow(t *testing.T) {
	total := int64(256 << 20)
	if testing.Short() {
		total = 32 << 20
	}
	dir := testDir(t)
	small := through(t, dir, 1<<20, 3)
	before := heap()
	f := through(t, dir, total, 3)
	if grew := heap() - before; grew > 1<<20 {
		t.Errorf("the reading process grew by %d bytes", grew)
	}
	if f.keeper > small.keeper+4<<10 {
		t.Errorf("the writing process needs %d KiB for %d bytes, and %d KiB for 1 MiB", f.keeper, total, small.keeper)
	}
	plain, _ := drain(t, total, suite.Command(t, "sink"), func(*systest.Proc) {}, func() {})
	t.Logf("%d MiB: spool %v, plain pipe %v, ratio %.2f; missed %v; writer %d KiB", total>>20, f.took, plain,
		plain.Seconds()/f.took.Seconds(), f.missed, f.keeper)
}

// BenchmarkGiB reports how the throughput of a spool compares with that of a
// plain pipe to /dev/null, in the same run.
func BenchmarkGiB(b *testing.B) {
	const total = 1 << 30
	dir := benchDir(b)
	for _, readers := range []int{0, 1, 3} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			var spool, plain time.Duration
			var kib, missed int64
			for b.Loop() {
				took, _ := drain(b, total, suite.Command(b, "sink"), func(*systest.Proc) {}, func() {})
				plain += took
				f := through(b, dir, total, readers)
				spool += f.took
				kib = max(kib, f.keeper)
				missed += f.missed[0] + f.missed[1] + f.missed[2]
			}
			gib := float64(b.N)
			b.ReportMetric(gib*1024/plain.Seconds(), "MiB/s-pipe")
			b.ReportMetric(gib*1024/spool.Seconds(), "MiB/s-spool")
			b.ReportMetric(plain.Seconds()/spool.Seconds(), "of-pipe")
			b.ReportMetric(float64(kib), "KiB-writer")
			b.ReportMetric(100*float64(missed)/gib/total/float64(max(readers, 1)), "%missed")
		})
	}
}

// benchDir is where SPOOL_DIR says, or the tests' directory.
func benchDir(b *testing.B) string {
	dir := os.Getenv("SPOOL_DIR")
	if dir == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(strings.TrimSpace(dir), "pinfold-bench.")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
