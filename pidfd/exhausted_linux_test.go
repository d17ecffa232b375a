package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// TestWaitWithoutDescriptors: who waits for a process learns of its end, its own
// time's and the handle's, though there is no descriptor to wait by.
func TestWaitWithoutDescriptors(t *testing.T) {
	p := sleeper(t)
	q := systest.Start(t, suite.Command(t, "exhausted", strconv.Itoa(p.PID())))
	if got := q.Line(t); got != "exhausted" {
		t.Fatal(got)
	}
	p.End()
	if out := q.Rest(t); out != "ended\n" {
		t.Errorf("%s", out)
	}
}

// exhausted is PID: it waits for that.
func exhausted(args []string) error {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	h, err := Open(pid)
	if err != nil {
		return err
	}
	other, err := Open(pid)
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond) // Go's poller takes its own with the first timer
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	for err == nil {
		_, err = syscall.Dup(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := h.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("until its time: %w", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { other.Close() })
	if err := other.Wait(context.Background()); !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("until it is closed: %w", err)
	}
	fmt.Println("exhausted")
	if err := h.Wait(context.Background()); err != nil {
		return err
	}
	fmt.Println("ended")
	return nil
}
