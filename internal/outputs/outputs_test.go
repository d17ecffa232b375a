package outputs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/spool"
)

const turn = "0123456789abcdef"

func opened(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func writer(t *testing.T, d *Dir, process string, s api.StreamName) *spool.Writer {
	t.Helper()
	if err := os.MkdirAll(d.Dir(turn), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := spool.Create(filepath.Join(d.Dir(turn), process+"."+string(s)), spool.MinMax)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func write(t *testing.T, w *spool.Writer, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

func TestReadWhatAKeeperWrites(t *testing.T) {
	d := opened(t)
	w := writer(t, d, "p1", api.StreamStdout)
	write(t, w, []byte("hello"))
	o, err := d.Open(turn, "p1", api.StreamStdout)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { time.Sleep(10 * time.Millisecond); write(t, w, make([]byte, 3*spool.MinMax)); w.Close(true) }()
	if err := o.Wait(ctx, 5); err != nil {
		t.Fatal(err)
	}
	for closed := false; !closed; {
		if _, closed, err = o.Status(); err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
	}
	st, _, err := o.Status()
	if total := int64(5 + 3*spool.MinMax); err != nil || st.BytesTotal != total || !st.EOF || st.BytesDropped != total-spool.MinMax || st.MaxBytes != spool.MinMax {
		t.Errorf("%+v (%v)", st, err)
	}
	var got, gone int64
	for off, b := int64(0), make([]byte, 1000); ; {
		n, next, gap, err := o.ReadAt(b, off)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || (n == 0 && gap == nil) {
			t.Fatal(n, gap, err)
		}
		if gap != nil {
			if gap.From != off || gap.Reason != "overwritten" {
				t.Errorf("%+v at %d", gap, off)
			}
			gone += gap.To - gap.From
		}
		got += int64(n)
		off = next
	}
	if got != spool.MinMax || gone != st.BytesDropped {
		t.Errorf("%d read, %d gone", got, gone)
	}
}

func TestWhatIsThere(t *testing.T) {
	d := opened(t)
	for _, p := range []string{"p1", "p2"} {
		w := writer(t, d, p, api.StreamStdout)
		write(t, w, []byte("hello"))
		w.Close(true)
	}
	w := writer(t, d, "p2", api.StreamStderr)
	w.Close(true)
	sizes, err := d.Sizes(turn)
	if err != nil || len(sizes) != 2 || sizes["p1"] <= 0 || sizes["p2"] <= sizes["p1"] {
		t.Errorf("%v (%v)", sizes, err)
	}
	was := time.Now().Add(-time.Hour)
	if err := os.Chtimes(d.Dir(turn), was, was); err != nil {
		t.Fatal(err)
	}
	if err := d.Ended(turn); err != nil {
		t.Fatal(err)
	}
	list, err := d.List()
	if err != nil || len(list) != 1 || list[0].Turn != turn || list[0].Bytes != sizes["p1"]+sizes["p2"] || time.Since(list[0].At) > 30*time.Minute {
		t.Errorf("%+v (%v)", list, err)
	}
	if err := errors.Join(d.Remove(turn, "p2"), d.Remove(turn, "p2")); err != nil {
		t.Error(err)
	}
	if _, err := d.Open(turn, "p2", api.StreamStderr); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := d.Remove(turn, "p1"); err != nil {
		t.Error(err)
	}
	if err := d.Ended(turn); err != nil { // nothing is left
		t.Error(err)
	}
	if _, err := os.Stat(d.Dir(turn)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestNamesThatAreNone(t *testing.T) {
	d := opened(t)
	outside := filepath.Join(filepath.Dir(d.path), "victim")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(d.path, "not-a-turn"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, turn := range []string{"..", "", ".", "../victim", "not-a-turn", turn + "/.."} {
		if err := d.Remove(turn, ""); err != nil {
			t.Error(err)
		}
		if _, err := d.Open(turn, "p1", api.StreamStdout); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", turn, err)
		}
	}
	for _, p := range []string{"..", "p", "p1/..", "../../victim", "x1"} {
		if _, err := d.Open(turn, p, api.StreamStdout); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", p, err)
		}
		_ = d.Remove(turn, p)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	if l, err := d.List(); err != nil || len(l) != 0 {
		t.Errorf("%v (%v)", l, err)
	}
}

func TestDirectoryThatOthersMayUseIsRefused(t *testing.T) {
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "spool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(state, "spool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(state); err == nil {
		d.Close()
		t.Error("it was used")
	}
}
