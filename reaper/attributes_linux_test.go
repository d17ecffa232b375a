package reaper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/wire"
)

func number(n int) *int { return &n }

// showAttributes prints what a process was given.
const showAttributes = `umask; nice; cat /proc/self/oom_score_adj; pwd; id -u; id -g
grep -E 'core file|file size|cpu time' /proc/self/limits | sed 's/  */ /g'
grep -E 'NoNewPrivs|SigBlk|SigIgn' /proc/self/status`

const attributesShown = `0027
5
300
/usr
%d
%[1]d
Max cpu time unlimited unlimited seconds 
Max file size 1048576 unlimited bytes 
Max core file size 0 0 bytes 
SigBlk:	0000000000000000
SigIgn:	0000000000000000
NoNewPrivs:	1
`

func TestAttributes(t *testing.T) {
	for _, gate := range []bool{false, true} {
		for _, uid := range []uint32{0, 1234} {
			t.Run(fmt.Sprintf("gate=%v uid=%d", gate, uid), func(t *testing.T) {
				b := newKeeper(t, nil)
				b.mustHold(gate)
				before := b.keeperStatus("oom_score_adj")
				l := request("p1", "sh", "-c", showAttributes)
				l.Umask, l.Nice, l.OOMScoreAdj, l.NoNewPrivs = number(0o027), number(5), number(300), true
				l.Rlimits = []wire.Rlimit{{Resource: syscall.RLIMIT_CORE}, {Resource: syscall.RLIMIT_FSIZE, Soft: 1 << 20, Hard: 1<<64 - 1}}
				l.Cwd, l.CwdNearest = "/usr/nosuch//deeper/", true
				if uid != 0 {
					l.SetUser, l.UID, l.GID = true, uid, uid
				}
				got, want := sortLines(b.output(l)), sortLines(fmt.Sprintf(attributesShown, uid))
				if got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
				if now := b.keeperStatus("oom_score_adj"); now != before {
					t.Errorf("the keeper's oom_score_adj went from %s to %s", before, now)
				}
			})
		}
	}
}

// sortLines makes the order of what grep(1) shows matter not.
func sortLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (b *bed) keeperStatus(file string) string {
	b.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.cmd.Process.Pid, file))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestStartedTellsTheDirectory(t *testing.T) {
	b := newBed(t)
	private := filepath.Join(b.cgroup, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct{ cwd, want string }{
		{"/usr/bin", "/usr/bin"}, {"/usr/bin/", "/usr/bin/"}, {"/usr/bin/no/such", "/usr/bin"}, {"/nosuch", "/"},
		{"//nosuch//x", "/"}, {"/usr/bin/env/x", "/usr/bin"}, {private + "/in", b.cgroup}, {"/", "/"}, {"", ""},
	} {
		l := request(fmt.Sprintf("p%d", i), "pwd")
		l.Cwd, l.CwdNearest, l.SetUser, l.UID, l.GID = tt.cwd, true, true, 1234, 1234
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		l.Stdout = 0
		s := b.mustLaunch(l, int(w.Fd()))
		w.Close()
		b.exitOf(l.Process)
		buf := make([]byte, 4096)
		n, _ := r.Read(buf)
		r.Close()
		if s.Cwd != tt.want || strings.TrimSpace(string(buf[:n])) != filepath.Clean("/"+tt.want) {
			t.Errorf("%q: started in %q, pwd says %q", tt.cwd, s.Cwd, buf[:n])
		}
	}
}

func TestAttributesThatAreRefused(t *testing.T) {
	b := newBed(t)
	for i, tt := range []struct {
		change func(*wire.Launch)
		kind   string
		errno  syscall.Errno
		path   string
	}{
		{func(l *wire.Launch) { l.Rlimits = []wire.Rlimit{{Resource: 4}, {Resource: 999}} }, wire.ErrAttribute, syscall.EINVAL, "rlimit 999"},
		{func(l *wire.Launch) { l.Rlimits = []wire.Rlimit{{Resource: 4, Soft: 2, Hard: 1}} }, wire.ErrAttribute, syscall.EINVAL, "rlimit 4"},
		{func(l *wire.Launch) { l.OOMScoreAdj = number(5000) }, wire.ErrAttribute, syscall.EINVAL, "oom_score_adj"},
		{func(l *wire.Launch) { l.OOMScoreAdj, l.SetUser, l.UID = number(-500), true, 1 }, wire.ErrAttribute, syscall.EACCES, "oom_score_adj"},
		{func(l *wire.Launch) { l.Umask = number(0o1000) }, wire.ErrProtocol, 0, ""},
		{func(l *wire.Launch) { l.Extra = []wire.ExtraFD{{Index: 0, Number: 2}} }, wire.ErrProtocol, 0, ""},
		{func(l *wire.Launch) { l.Extra = []wire.ExtraFD{{Index: 1, Number: 3}} }, wire.ErrProtocol, 0, ""},
		{func(l *wire.Launch) { l.Extra = []wire.ExtraFD{{Number: 3}, {Number: 3}} }, wire.ErrProtocol, 0, ""},
		{func(l *wire.Launch) { l.Extra = []wire.ExtraFD{{Number: 1<<20 - 1}} }, wire.ErrStdio, syscall.EINVAL, ""},
	} {
		l := request(fmt.Sprintf("p%d", i), "true")
		tt.change(l)
		if a := b.launch(l, 0); a.Error == nil || a.Error.Kind != tt.kind || a.Error.Errno != int(tt.errno) || a.Error.Path != tt.path {
			t.Errorf("%d: %+v", i, a.Error)
		}
	}
	eventually(t, "nothing is left", func() bool { return len(b.leaves()) == 0 && b.keeperChildren() == "" })
}

// Every number can be had, whatever it is the number of in the keeper.
func TestExtraDescriptors(t *testing.T) {
	for _, gate := range []bool{false, true} {
		b := newKeeper(t, nil)
		b.mustHold(gate)
		var fds []int
		for i := range 41 {
			f, err := os.Create(filepath.Join(b.dir, fmt.Sprintf("file%d", i)))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fds = append(fds, int(f.Fd()))
		}
		l := request("p1", "ls", "-l", "/proc/self/fd")
		l.Stdout, l.Stderr = 40, 40
		var want []string
		for i := range 40 { // in reverse, so that they are in each other's way
			l.Extra = append(l.Extra, wire.ExtraFD{Index: i, Number: 42 - i})
			want = append(want, fmt.Sprintf(" %d -> %s/file%d", 42-i, b.dir, i))
		}
		l.Extra = append(l.Extra, wire.ExtraFD{Index: 7, Number: 100})
		want = append(want, fmt.Sprintf(" 100 -> %s/file7", b.dir))
		b.mustLaunch(l, fds...)
		b.exitOf("p1")
		out, err := os.ReadFile(filepath.Join(b.dir, "file40"))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w+"\n") {
				t.Errorf("gate=%v: no%s in\n%s", gate, w, out)
			}
		}
		if n := strings.Count(string(out), "->"); n != 3+41+1 { // the streams, and ls's own
			t.Errorf("gate=%v: %d descriptors\n%s", gate, n, out)
		}
	}
}

func TestBusyProgram(t *testing.T) {
	b := newBed(t)
	path := filepath.Join(b.dir, "busy")
	text, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ { // it is tried for 100 ms: a busy machine may need more for the other
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(text)
		busy, beside := fmt.Sprint("busy", try), fmt.Sprint("beside", try)
		due := b.ask(wire.Message{Op: wire.OpLaunch, Launch: request(busy, path)})
		if out := b.output(request(beside, "echo", "x")); out != "x\n" { // meanwhile
			t.Error(out)
		}
		f.Close()
		a := b.await(wire.Message{Op: wire.OpLaunch}, due)
		closeFDs(a.fds)
		if a.Error != nil && a.Error.Errno == int(syscall.ETXTBSY) && try < 50 {
			continue
		}
		if a.Error != nil {
			t.Fatal(a.Error)
		}
		if e := b.exitOf(busy); e.Code != 0 || e.Signal != 0 {
			t.Errorf("%+v", e)
		}
		return
	}
}
