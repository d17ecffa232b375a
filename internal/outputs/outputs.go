// Package outputs finds the spools of a service's turns: one directory a turn
// below the state directory, which the turn's keeper writes to, one file a
// stream. It implements containment.Outputs.
package outputs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/spool"
)

// Dir is the directory of all turns' output.
type Dir struct {
	path  string
	watch *spool.Watcher // nil: readers poll
}

// What directories and files may be called: nothing else is touched.
var (
	turnID    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })
	processID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^p[0-9]{1,18}$`) })
)

// Open opens the directory below a state directory, and makes it (0700) where
// there is none.
func Open(stateDir string) (*Dir, error) {
	path := filepath.Join(stateDir, "spool")
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the directory for output: %w", err)
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("look at the directory for output: %w", err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !fi.IsDir() || !ok || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("use %s: it is not a directory of this user alone", path)
	}
	w, err := spool.NewWatcher()
	if err != nil {
		w = nil // inotify has few instances a user; readers poll then
	}
	return &Dir{path: path, watch: w}, nil
}

// Close lets go; readers that are open go on, polling.
func (d *Dir) Close() error {
	if d.watch == nil {
		return nil
	}
	return d.watch.Close()
}

// Dir is the turn's directory.
func (d *Dir) Dir(turn string) string { return filepath.Join(d.path, turn) }

// file is a stream's; an error says that there can be none.
func (d *Dir) file(turn, process string, s api.StreamName) (string, error) {
	if !turnID().MatchString(turn) || !processID().MatchString(process) {
		return "", fs.ErrNotExist
	}
	return filepath.Join(d.path, turn, process+"."+string(s)), nil
}

// Open opens a kept stream.
func (d *Dir) Open(turn, process string, s api.StreamName) (containment.Output, error) {
	path, err := d.file(turn, process, s)
	if err != nil {
		return nil, err
	}
	var r *spool.Reader
	if d.watch == nil {
		r, err = spool.Open(path)
	} else {
		r, err = d.watch.Open(path)
	}
	if err != nil {
		return nil, err
	}
	return &output{r}, nil
}

// Remove removes what a process, or with "" a whole turn, wrote.
func (d *Dir) Remove(turn, process string) error {
	if !turnID().MatchString(turn) {
		return nil
	}
	if process == "" {
		return os.RemoveAll(d.Dir(turn))
	}
	var errs []error
	for _, s := range []api.StreamName{api.StreamStdout, api.StreamStderr} {
		path, err := d.file(turn, process, s)
		if err != nil {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Ended notes in the directory's time that a turn is over.
func (d *Dir) Ended(turn string) error {
	dir := d.Dir(turn)
	if os.Remove(dir) == nil { // it was empty
		return nil
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List tells what is there. What goes meanwhile is passed over.
func (d *Dir) List() ([]containment.Kept, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var out []containment.Kept
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !e.IsDir() || !turnID().MatchString(e.Name()) {
			continue
		}
		k := containment.Kept{Turn: e.Name(), At: fi.ModTime()}
		sizes, err := d.Sizes(e.Name())
		if err != nil {
			continue
		}
		for _, n := range sizes {
			k.Bytes += n
		}
		out = append(out, k)
	}
	return out, nil
}

// Sizes tells what each process of a turn takes on disk.
func (d *Dir) Sizes(turn string) (map[string]int64, error) {
	entries, err := os.ReadDir(d.Dir(turn))
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, e := range entries {
		process, _, _ := strings.Cut(e.Name(), ".")
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			out[process] += int64(st.Blocks) * 512 // stat(2)
		}
	}
	return out, nil
}

// output is a spool as a containment.Output.
type output struct{ *spool.Reader }

func (o *output) Status() (api.StreamStatus, bool, error) {
	s, err := o.Reader.Status()
	st := api.StreamStatus{BytesTotal: s.Total, BytesDropped: s.Dropped, BytesLost: s.Lost, MaxBytes: s.Max, EOF: s.EOF}
	if s.Errno != 0 {
		st.Error = s.Errno.Error()
	}
	return st, s.Closed, err
}

func (o *output) ReadAt(p []byte, off int64) (int, int64, *api.Gap, error) {
	n, next, g, err := o.Reader.ReadAt(p, off)
	if g == nil {
		return n, next, nil, err
	}
	return n, next, &api.Gap{From: g.From, To: g.To, Reason: g.Reason.String()}, err
}

func (o *output) Wait(ctx context.Context, total int64) error {
	_, err := o.Reader.Wait(ctx, total)
	return err
}
