package turns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys"
)

// Private memory that service and keeper may have at most, however much goes
// through them.
const (
	serviceMost = 32 << 20
	keeperMost  = 8 << 20
)

// much is how much goes through a stream.
func much() int64 {
	if testing.Short() || run.slow > 1 {
		return 64 << 20
	}
	return 1 << 30
}

const (
	pourPiece  = 64 << 10
	pourPeriod = 65521 // a prime: no size of a buffer or of a ring is a multiple of it
)

// poured is what the stream has at each offset off: from off%pourPeriod on, up
// to pourPiece bytes.
func poured() []byte {
	b := make([]byte, pourPeriod+pourPiece)
	x := uint32(1)
	for i := range b[:pourPeriod] {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	copy(b[pourPeriod:], b[:pourPiece])
	return b
}

// playPour: N. It writes N bytes to stdout, with nothing but write(2): a
// stream that does not block is an error.
func playPour(words []string) int {
	text := poured()
	for off, end := int64(0), must(strconv.ParseInt(words[0], 10, 64)); off < end; {
		n, err := syscall.Write(1, text[off%pourPeriod:][:min(pourPiece, end-off)])
		if err == syscall.EINTR {
			continue
		}
		check(err)
		off += int64(n)
	}
	return 0
}

// tally is what one reader has got of a stream, and was told it had missed.
type tally struct {
	text        []byte
	off         int64 // where it is
	bytes, gaps int64
	wrong       error
}

// take checks bytes that came from off on.
func (c *tally) take(b []byte) {
	for len(b) > 0 && c.wrong == nil {
		n := min(len(b), pourPiece)
		if !bytes.Equal(b[:n], c.text[c.off%pourPeriod:][:n]) {
			c.wrong = fmt.Errorf("the %d bytes at %d are not what was written there", n, c.off)
		}
		c.off, c.bytes, b = c.off+int64(n), c.bytes+int64(n), b[n:]
	}
}

// skip notes a gap up to an offset.
func (c *tally) skip(to int64) {
	if to < c.off {
		c.wrong = errors.Join(c.wrong, fmt.Errorf("a gap from %d to %d", c.off, to))
	}
	c.gaps, c.off = c.gaps+to-c.off, to
}

// read takes all of a raw stream.
func (c *tally) read(r io.Reader) error {
	for p := make([]byte, pourPiece); c.wrong == nil; {
		n, err := r.Read(p)
		c.take(p[:n])
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	return c.wrong
}

// goOn takes an open raw answer to its end, and says where that is.
func (c *tally) goOn(o *client.Output) error {
	err := c.read(o)
	var next int64
	if err == nil {
		if next, err = o.Next(); err == nil {
			c.skip(next)
		}
	}
	return errors.Join(err, o.Close(), c.wrong)
}

// raw follows a stream as bytes; after a gap it asks again.
func (c *tally) raw(ctx context.Context, x *turn, process string, total int64) error {
	for c.off < total {
		o, err := x.s.Output(ctx, x.ID, process, client.OutputQuery{Offset: c.off, Follow: true})
		if err != nil {
			return err
		}
		c.skip(o.Offset)
		if err := c.goOn(o); err != nil {
			return err
		}
	}
	return nil
}

// lines follows a stream as lines, where gaps stand for themselves.
func (c *tally) lines(ctx context.Context, x *turn, process string, _ int64) error {
	l, err := x.s.OutputLines(ctx, x.ID, process, client.OutputQuery{Follow: true})
	if err != nil {
		return err
	}
	defer l.Close()
	for c.wrong == nil {
		line, err := l.Next()
		switch {
		case err == io.EOF:
			return c.wrong
		case err != nil:
			return err
		case line.Data != nil && *line.Offset != c.off, line.Gap != nil && line.Gap.From != c.off, line.Next != nil && *line.Next != c.off:
			return fmt.Errorf("at %d: %+v", c.off, line)
		case line.Gap != nil:
			c.skip(line.Gap.To)
		case line.Data != nil:
			c.take(line.Data)
		case line.Next == nil || !line.EOF || line.Error != nil:
			return fmt.Errorf("at %d: %+v", c.off, line)
		}
	}
	return c.wrong
}

// adds checks that what came and what was told to be missing is the whole.
func (c *tally) adds(t *testing.T, who string, total int64) {
	t.Helper()
	if c.bytes+c.gaps != total || c.off != total {
		t.Errorf("%s: %d bytes and %d in gaps, up to %d, of %d", who, c.bytes, c.gaps, c.off, total)
	}
	t.Logf("%s: %.1f %% of %d MiB came", who, 100*float64(c.bytes)/float64(total), total>>20)
}

// watchMemory looks all the time what service and keeper have, until it is
// told to stop, at the end of the test at the latest.
func (x *turn) watchMemory(t *testing.T) (stop func()) {
	t.Helper()
	stops := []func(){
		watchPrivate(t, "service", x.s.proc.pid, serviceMost),
		watchPrivate(t, "keeper", x.KeeperPID, keeperMost),
	}
	stop = sync.OnceFunc(func() {
		for _, f := range stops {
			f()
		}
	})
	t.Cleanup(stop)
	return stop
}

func watchPrivate(t *testing.T, who string, pid int, most int64) (stop func()) {
	end, over := make(chan struct{}), make(chan struct{})
	before := privateMemory(t, pid)
	peak := before
	go func() {
		defer close(over)
		for tick := time.Tick(20 * time.Millisecond); ; {
			peak = max(peak, privateMemory(t, pid))
			select {
			case <-end:
				return
			case <-tick:
			}
		}
	}()
	return func() {
		close(end)
		<-over
		t.Logf("%s: private memory of %d KiB before, %d KiB at most", who, before>>10, peak>>10)
		if before == 0 || peak > most {
			t.Errorf("%s: that is not between 1 and %d KiB", who, most>>10)
		}
	}
}

// privateMemory is 0 for a process that has ended: see smaps_rollup in
// proc_pid_smaps(5).
func privateMemory(t *testing.T, pid int) (n int64) {
	b, err := sys.ProcFile(pid, "smaps_rollup")
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 3 && bytes.HasPrefix(f[0], []byte("Private_")) && !bytes.Contains(f[0], []byte("Hugetlb")) {
			kib, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil {
				t.Error(err)
			}
			n += kib << 10
		}
	}
	return n
}

// pours launches the writer.
func (x *turn) pours(t *testing.T, to api.Stream, total int64, files ...*os.File) api.Process {
	t.Helper()
	req := helper(t, "pour", fmt.Sprint(total))
	req.Stdio.Stdout = to
	p, err := x.s.Launch(t.Context(), x.ID, req, files...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// hasPoured waits for its exit, and for the end of what it wrote.
func (x *turn) hasPoured(t *testing.T, process string) api.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience(5*time.Minute))
	defer cancel()
	if p, err := x.s.WaitProcess(ctx, x.ID, process); err != nil || p.Status.State != api.ProcessExited || p.Status.Code != 0 {
		t.Fatalf("the writer: %+v (%v)", p.Status, err)
	}
	return x.ended(process)
}

// Much goes through a spool: readers get each byte at its offset, or are told
// that it is gone; none of them holds up the writer, and none makes service or
// keeper grow.
func TestMuchIsKeptAndFollowed(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	total, text := much(), poured()
	for _, c := range []struct {
		name       string
		raw, lines int
		stuck      bool
		keep       int64 // 0: 16 MiB
	}{
		{name: "1 reader", raw: 1}, {name: "3 readers", raw: 2, lines: 1},
		{name: "3 readers, all kept", raw: 3, keep: total},
		{name: "1 stuck", stuck: true}, {name: "1 stuck, 1 not", raw: 1, stuck: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := s.begin(t, api.BeginRequest{})
			bounded := x.watchMemory(t)
			p := x.pours(t, api.Stream{Mode: api.StdioSpool, MaxBytes: c.keep}, total)
			var stuck *client.Output
			late := &tally{text: text}
			if c.stuck {
				stuck = x.opensAndStops(t, p.ID, late)
			}
			var wg sync.WaitGroup
			follow := func(who string, do func(r *tally, ctx context.Context, x *turn, process string, total int64) error) {
				wg.Go(func() {
					r := &tally{text: text}
					if err := do(r, t.Context(), x, p.ID, total); err != nil {
						t.Errorf("%s: %v", who, err)
						return
					}
					r.adds(t, who, total)
					if c.keep == total && r.gaps != 0 {
						t.Errorf("%s: %d bytes in gaps, though all was kept", who, r.gaps)
					}
				})
			}
			for range c.raw {
				follow("follower", (*tally).raw)
			}
			for range c.lines {
				follow("follower of lines", (*tally).lines)
			}
			o := x.hasPoured(t, p.ID).Output[api.StreamStdout] // with the stuck one still there
			if o.BytesTotal != total || o.BytesLost != 0 || o.BytesDropped != max(0, total-o.MaxBytes) {
				t.Errorf("%+v", o)
			}
			wg.Wait()
			if stuck != nil {
				err := late.goOn(stuck)
				if err == nil {
					err = late.raw(t.Context(), x, p.ID, total)
				}
				if err != nil {
					t.Errorf("the stuck one, afterwards: %v", err)
				}
				late.adds(t, "the stuck one, afterwards", total)
				if late.gaps == 0 {
					t.Error("the stuck one has not been overtaken: it was none")
				}
			}
			bounded()
			x.abandon(0)
		})
	}
}

// opensAndStops follows a stream and reads one byte of it.
func (x *turn) opensAndStops(t *testing.T, process string, c *tally) *client.Output {
	t.Helper()
	o, err := x.s.Output(t.Context(), x.ID, process, client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	b := make([]byte, 1)
	if n, err := o.Read(b); n != 1 {
		t.Fatalf("the first byte: %d (%v)", n, err)
	}
	c.skip(o.Offset)
	c.take(b)
	return o
}

// Much goes through a pipe that was passed: it is the process's alone, so who
// stops reading stops the writer, and neither service nor keeper has any of it.
func TestMuchIsPassed(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	total, text := much(), poured()
	begin := func(t *testing.T) (x *turn, r *os.File, p api.Process, bounded func()) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		defer w.Close()
		x = s.begin(t, api.BeginRequest{})
		bounded = x.watchMemory(t)
		return x, r, x.pours(t, api.Stream{Mode: api.StdioPass}, total, w), bounded
	}
	t.Run("1 reader", func(t *testing.T) {
		x, r, p, bounded := begin(t)
		c := &tally{text: text}
		if err := c.read(r); err != nil {
			t.Error(err)
		}
		c.adds(t, "reader", total)
		x.hasPoured(t, p.ID)
		bounded()
		x.abandon(0)
	})
	t.Run("3 readers", func(t *testing.T) { // of one pipe: each byte is one's
		x, r, p, bounded := begin(t)
		var wg sync.WaitGroup
		var got [3]int64
		for i := range got {
			wg.Go(func() {
				n, err := io.Copy(struct{ io.Writer }{io.Discard}, r)
				if got[i] = n; err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got[0]+got[1]+got[2] != total {
			t.Errorf("%d of %d", got, total)
		}
		x.hasPoured(t, p.ID)
		bounded()
		x.abandon(0)
	})
	t.Run("1 stuck", func(t *testing.T) {
		x, r, p, bounded := begin(t)
		c := &tally{text: text}
		b := make([]byte, 1000)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		c.take(b)
		ctx, cancel := context.WithTimeout(t.Context(), patience(500*time.Millisecond))
		defer cancel()
		if v, err := s.WaitProcess(ctx, x.ID, p.ID); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the writer does not wait for its reader: %+v (%v)", v.Status, err)
		}
		bounded()
		x.abandon(0)
		if err := c.read(r); err != nil {
			t.Error(err)
		}
		if c.bytes < 1000 || c.bytes > 1<<20 { // what the pipe held
			t.Errorf("%d bytes came", c.bytes)
		}
	})
}
