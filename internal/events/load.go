package events

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/internal/ownfile"
)

// segment is one file of the log.
type segment struct {
	path  string
	first int64 // no number in it is smaller
	size  int64
	at    time.Time // of its last write
}

// leap is how many numbers are passed over when some may have been told that are
// on no disk: more than the kernel can have kept back of them.
const leap = 1 << 20

var segmentName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{19})\.log$`) })

func segmentPath(dir string, first int64) string {
	return filepath.Join(dir, fmt.Sprintf("%019d.log", first))
}

// load finds out how far the log is, and what its turns' keys are.
func (l *Log) load() error {
	dir := filepath.Join(l.cfg.StateDir, "events")
	l.disk.dir = dir
	if err := l.ownDir(dir); err != nil {
		return err
	}
	segs, err := list(dir)
	l.segs = segs
	end, whole := l.replay()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.trouble, whole = err, false
	}
	if end.boot != "" && end.boot != l.cfg.Boot {
		for turn := range l.keys {
			l.gone[turn] = cmp.Or(l.gone[turn], end.boot)
		}
	}
	n := len(segs)
	if n > 0 {
		l.last = max(l.last, segs[n-1].first-1)
		whole = whole && end.path == segs[n-1].path // else it has not even its head
	}
	if !whole || n > 0 && end.boot != l.cfg.Boot && !end.closed {
		l.last += leap
	}
	if l.acks, err = openAcks(filepath.Join(dir, "acks")); err != nil {
		return err
	}
	l.last = max(l.last, l.acks.highest(), l.readReserve())
	if err := probe(dir); err != nil && l.trouble == nil {
		l.trouble = err
	}
	if n > 0 && end.boot == l.cfg.Boot && whole {
		l.disk.path, l.disk.size, l.disk.torn = end.path, end.size, true
	}
	return nil
}

// probe tries whether the directory takes a little, so that a disk that does not
// is told of at the start, not with the first event.
func probe(dir string) error {
	path := filepath.Join(dir, "next")
	f, err := ownfile.Create(path)
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	_, err = f.Write(make([]byte, 4096))
	if err = errors.Join(err, f.Close(), os.Remove(path)); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// ownDir makes the directory, or checks that it is ours. That it cannot be made
// is trouble only.
func (l *Log) ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		l.trouble = fmt.Errorf("make the directory for events: %w", err)
		return nil
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		l.trouble = fmt.Errorf("look at the directory for events: %w", err)
		return nil
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !fi.IsDir() || !ok || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("use %s: it is not a directory of this user alone", dir)
	}
	return nil
}

// list finds the segments, oldest first: their names sort as their numbers do.
func list(dir string) (segs []segment, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		m := segmentName().FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		first, nerr := strconv.ParseInt(m[1], 10, 64)
		fi, ierr := e.Info()
		if nerr != nil || ierr != nil {
			continue
		}
		segs = append(segs, segment{path: filepath.Join(dir, e.Name()), first: first, size: fi.Size(), at: fi.ModTime()})
	}
	return segs, err
}

// tail is what a segment ends with.
type tail struct {
	path   string
	boot   string // of its head; empty: it has none
	size   int64  // up to the end of its last whole line
	closed bool
}

// replay reads the newest segment, and as many before it as have no head that can
// be read, for the numbers and keys that are in use. It returns the end of the
// newest that has anything; whole: all could be read.
func (l *Log) replay() (end tail, whole bool) {
	from := len(l.segs) - 1
	for from > 0 && !hasHead(l.segs[from].path) {
		from--
	}
	whole = true
	for i := max(0, from); i < len(l.segs); i++ {
		t, any, err := l.replayOne(l.segs[i].path)
		if err != nil {
			l.cfg.Log.Warn("read events", "file", l.segs[i].path, "error", err)
			whole = false
		}
		if any {
			end = t
		}
	}
	return end, whole
}

func hasHead(path string) bool {
	f, err := ownfile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b, _ := bufio.NewReader(f).ReadBytes('\n')
	v, ok := parseLine(chop(b))
	return ok && v.Head != nil
}

func chop(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		return b[:n-1]
	}
	return b
}

func (l *Log) replayOne(path string) (t tail, any bool, err error) {
	t.path = path
	f, err := ownfile.Open(path)
	if err != nil {
		return t, false, err
	}
	defer f.Close()
	for in := bufio.NewReader(f); ; {
		b, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return t, any, nil // what has no line feed is torn
		} else if err != nil {
			return t, any, err
		}
		t.size += int64(len(b))
		v, ok := parseLine(chop(b))
		t.closed = ok && v.Closed
		if ok {
			any = true
			l.learn(v, &t)
		} else if n := seqOf(b); n > l.last && n < l.last+leap {
			l.last = n // damaged, and given all the same
		}
	}
}

// learn takes from a line what is in use.
func (l *Log) learn(v line, t *tail) {
	l.last = max(l.last, v.Seq)
	switch {
	case v.Head != nil:
		t.boot = v.Head.Boot
		l.last = max(l.last, v.Head.Base)
		maps.Copy(l.gone, v.Head.Gone)
		for turn, keys := range v.Head.Keys {
			for _, k := range keys {
				l.enterKey(turn, k)
			}
		}
	case v.Forget != "":
		delete(l.keys, v.Forget)
		delete(l.gone, v.Forget)
	case v.Event != nil:
		l.enterKey(v.Turn, v.Key)
	}
}
