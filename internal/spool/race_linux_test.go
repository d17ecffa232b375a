package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// follow reads a stream from its first byte to its end as it is written, and
// says how much it got and how much it missed.
func follow(ctx context.Context, r *Reader, size int) (got, missed int64, err error) {
	p := make([]byte, size)
	for off := int64(0); ; {
		n, next, gap, err := r.ReadAt(p, off)
		switch {
		case errors.Is(err, io.EOF):
			return got, missed, nil
		case err != nil:
			return got, missed, fmt.Errorf("read at %d: %w", off, err)
		case gap != nil:
			missed += gap.To - gap.From
		case n > 0:
			got += int64(n)
			if err := verify(p[:n], off); err != nil {
				return got, missed, err
			}
		default:
			if _, err := r.Wait(ctx, off); err != nil {
				return got, missed, err
			}
		}
		if next < off {
			return got, missed, fmt.Errorf("from %d back to %d", off, next)
		}
		off = next
	}
}

// jump reads here and there until the end.
func jump(r *Reader, size int) error {
	p := make([]byte, size)
	for last := int64(0); ; {
		st, err := r.Status()
		if err != nil || st.Closed {
			return err
		}
		if st.Total < last || st.Dropped > st.Total {
			return fmt.Errorf("total was %d, status is %+v", last, st)
		}
		last = st.Total
		off, err := r.Tail(rand.Int64N(st.Max))
		if err != nil {
			return err
		}
		n, _, _, err := r.ReadAt(p[:1+rand.IntN(size-1)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read at %d: %w", off, err)
		}
		if err := verify(p[:n], off); err != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// TestAtFullSpeed has a process write through small spools as fast as it can,
// and readers of all kinds keep up, or not.
func TestAtFullSpeed(t *testing.T) {
	for _, c := range []struct{ max, total int64 }{{MinMax, 4 << 20}, {100_000, 32 << 20}, {1 << 20, 64 << 20}} {
		t.Run(strconv.FormatInt(c.max, 10), func(t *testing.T) {
			if testing.Short() {
				c.total /= 8
			}
			fullSpeed(t, c.max, c.total)
		})
	}
}

func fullSpeed(t *testing.T, max, total int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	watch := newWatcher(t)
	path := filepath.Join(testDir(t), "x")
	p := systest.Start(t, suite.Command(t, "pattern", path, fmt.Sprint(max), fmt.Sprint(total)))
	p.Line(t)
	var wg sync.WaitGroup
	for i, size := range []int{300, 5000, 200_000, 60_000} {
		r := mustOpen(t, path)
		if i%2 == 0 {
			r.watch = watch
		}
		defer r.Close()
		wg.Go(func() {
			got, missed, err := follow(ctx, r, size)
			if err != nil || got+missed != total {
				t.Errorf("pieces of %d: %d and %d of %d bytes: %v", size, got, missed, total, err)
			}
			t.Logf("pieces of %d: missed %d of %d", size, missed, total)
		})
		wg.Go(func() {
			if err := jump(r, size); err != nil {
				t.Errorf("jumping, pieces of %d: %v", size, err)
			}
		})
	}
	wg.Wait()
	if st := p.Reap(); !st.Success() {
		t.Errorf("the writer: %v", st)
	}
	if st, _ := mustWalk(t, path); st.Total != total || !st.EOF {
		t.Errorf("%+v", st)
	}
}
