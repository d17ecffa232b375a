//go:build linux

package inspect

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pinfold.dev/internal/sys/systest"
)

// patience is a context that is done after it was asked so often.
type patience struct {
	context.Context
	left atomic.Int32
}

func (p *patience) Err() error {
	if p.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// Who has gone is not looked for on, however many descriptors there are.
func TestManyDescriptors(t *testing.T) {
	for range 500 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	h := handle(t, os.Getpid())
	gone := func() context.Context {
		p := &patience{Context: t.Context()}
		p.left.Store(200)
		return p
	}
	if _, err := mustUses(t, t.TempDir()).Of(gone(), h); !errors.Is(err, context.Canceled) {
		t.Errorf("uses: %v", err)
	}
	if _, err := sockets(gone(), h); !errors.Is(err, context.Canceled) {
		t.Errorf("sockets: %v", err)
	}
}

// What could not be looked at is told, and not without end.
func TestManyDoubts(t *testing.T) {
	systest.Root(t)
	dir, beside := space(t)
	p := systest.Start(t, elsewhere(t, beside, filepath.Dir(dir)+"/mnt", "detached many"))
	p.Line(t)
	_, err := mustUses(t, beside).Of(t.Context(), handle(t, p.PID()))
	if err == nil || !strings.Contains(err.Error(), errMore.Error()) || strings.Count(err.Error(), "\n") > 2*mostDoubts {
		t.Errorf("%v", err)
	}
}

// A process's mounts are read up to a bound.
func TestManyPlaces(t *testing.T) {
	if p, err := readFew("/proc/self", 100); !errors.Is(err, errManyPlaces) {
		t.Errorf("%d, %v", len(p), err)
	}
	if p, err := readPlaces("/proc/self"); err != nil || len(p) == 0 {
		t.Errorf("%d, %v", len(p), err)
	}
}
