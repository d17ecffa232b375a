package events

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

// model is a service that adds, is killed, tells everything again, and readers
// that go on where they were.
type model struct {
	dir     string
	n       int
	log     *Log
	told    []string // "turn n", in order
	readers []*reader
	gone    map[string]bool // turns
}

type reader struct {
	seq  int64
	seen map[string]int64
}

func parts(s string) (turn string, n int) {
	fmt.Sscanf(s, "%s %d", &turn, &n)
	return turn, n
}

func (m *model) tell(s string) {
	key, e := event(parts(s))
	m.log.Add(key, e)
}

func (m *model) add(t *rapid.T) {
	for range rapid.IntRange(1, 30).Draw(t, "many") {
		s := fmt.Sprintf("t%d %d", rapid.IntRange(0, 3).Draw(t, "turn"), m.n)
		m.n++
		if turn, _ := parts(s); m.gone[turn] {
			continue
		}
		m.tell(s)
		m.told = append(m.told, s)
	}
}

func (m *model) forget(t *rapid.T) {
	turn := fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(t, "turn"))
	flushed(t, m.log) // as a service does before a turn goes
	m.log.Forget(turn)
	m.gone[turn] = true
}

func (m *model) again() {
	for _, s := range m.told {
		if turn, _ := parts(s); !m.gone[turn] {
			m.tell(s)
		}
	}
}

// kill leaves what is on disk at this moment, and, if it is to, a torn line.
func (m *model) kill(t *rapid.T) {
	was := m.log
	m.log = nil
	m.dir = crash(t, was, m.dir)
	files, _ := filepath.Glob(m.dir + "/state/events/*.log")
	if n := len(files); n > 0 && rapid.Bool().Draw(t, "torn") {
		_, e := event("torn", 1)
		e.Seq = 1 << 40
		b, _ := appendLine(nil, line{Seq: e.Seq, Key: "torn", Event: &e})
		m.append(t, files[n-1], b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")])
	}
	m.log = opened(t, m.dir)
	m.again()
}

func (m *model) append(t *rapid.T, path string, b []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

func (m *model) restart(t *rapid.T) {
	was := m.log
	m.log = nil
	shut(t, was)
	m.log = opened(t, m.dir)
	m.again()
}

func (m *model) read(t *rapid.T) {
	r := m.readers[rapid.IntRange(0, len(m.readers)-1).Draw(t, "reader")]
	m.take(t, r, rapid.IntRange(1, 50).Draw(t, "page"))
}

func (m *model) take(t *rapid.T, r *reader, page int) {
	es := from(t, m.log, r.seq, page)
	contiguous(t, r.seq, es)
	for _, e := range es {
		r.seq = e.Seq
		if e.Kind == api.EventGap {
			t.Fatalf("%+v", e)
		}
		s := fmt.Sprintf("%s %d", e.Turn, e.Epoch)
		if was, ok := r.seen[s]; ok {
			t.Fatalf("%s is told as %d and as %d", s, was, e.Seq)
		}
		if _, want := event(parts(s)); !same(e, want) {
			t.Fatalf("%+v, want %+v", e, want)
		}
		r.seen[s] = e.Seq
	}
}

// TestModel: whatever happens to the service, each reader is told everything once,
// and in order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top, err := os.MkdirTemp("", "pinfold-test.events")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		m := &model{dir: top + "/first", gone: map[string]bool{}, readers: []*reader{{seen: map[string]int64{}}, {seen: map[string]int64{}}}}
		m.log = opened(t, m.dir)
		defer func() {
			if m.log != nil {
				shut(t, m.log)
			}
		}()
		steps := map[string]func(*rapid.T){"add": m.add, "forget": m.forget, "kill": m.kill, "restart": m.restart, "read": m.read}
		steps["add2"] = m.add
		t.Repeat(steps)
		flushed(t, m.log)
		for _, r := range m.readers {
			m.take(t, r, 13)
			for _, s := range m.told {
				if r.seen[s] == 0 {
					t.Fatalf("%s was told nobody; seen %v", s, slices.Sorted(maps.Keys(r.seen)))
				}
			}
		}
	})
}

// TestDamage: bytes that change on disk are told as gaps, and nothing else is.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top, err := os.MkdirTemp("", "pinfold-test.events")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		l := opened(t, top)
		want := map[int64]api.Event{}
		many := int64(rapid.IntRange(1, 200).Draw(t, "many"))
		for n := range many {
			key, e := event("t1", int(n))
			l.Add(key, e)
			want[n+1] = e
			if n%20 == 0 {
				flushed(t, l)
			}
		}
		shut(t, l)
		files, _ := filepath.Glob(top + "/state/events/*.log")
		for range rapid.IntRange(1, 5).Draw(t, "hits") {
			path := files[rapid.IntRange(0, len(files)-1).Draw(t, "file")]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(b) == 0 { // an earlier hit took all of it
				continue
			}
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			junk := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "junk")
			over := rapid.IntRange(0, len(b)-at).Draw(t, "over")
			if err := os.WriteFile(path, bytes.Join([][]byte{b[:at], junk, b[at+over:]}, nil), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l = opened(t, top)
		defer shut(t, l)
		got := from(t, l, 0, 9)
		contiguous(t, 0, got)
		for _, e := range got {
			if e.Kind != api.EventGap && !same(e, want[e.Seq]) {
				t.Fatalf("event %d: %+v", e.Seq, e)
			}
		}
		_, e := event("t9", 1)
		l.Add("", e)
		flushed(t, l)
		after := from(t, l, l.Last()-1, 9)
		if len(after) != 1 || !same(after[0], e) {
			t.Fatalf("after damage: %+v", after)
		}
	})
}
