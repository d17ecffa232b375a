package turns

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys"
)

// hostile speaks to the service by hand.
type hostile struct {
	*net.UnixConn
	t *testing.T
}

func (s *service) hostile(t *testing.T) *hostile {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience(2 * time.Minute))); err != nil {
		t.Fatal(err)
	}
	return &hostile{c, t}
}

// send writes bytes, with descriptors; the service may have hung up.
func (h *hostile) send(text string, fds ...int) {
	h.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	for len(text) > 0 {
		n, _, err := h.WriteMsgUnix([]byte(text), oob, nil)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			h.t.Fatal("the service does not read")
		}
		if err != nil {
			return
		}
		text, oob = text[n:], nil
	}
}

// answer is the status of the next answer, and its body; 0: none.
func (h *hostile) answer() (int, []byte) {
	h.t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(h), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.t.Fatal("the service does not answer")
	}
	if err != nil {
		return 0, nil
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, b
}

func request(method, path, body string) string {
	if body == "" {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, path)
	}
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

// one picks one.
func one[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// strangeFDs are descriptors of every kind that there is; drop closes them.
func strangeFDs(t *testing.T, s *service, h *hostile) (fds map[string]int, drop func()) {
	t.Helper()
	fds = map[string]int{}
	ok := func(name string, fd int, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fds[name] = fd
	}
	var p [2]int
	ok("pipe", 0, syscall.Pipe2(p[:], syscall.O_CLOEXEC))
	fds["pipe"], fds["pipe's other end"] = p[0], p[1]
	ok("pipe without a reader", 0, syscall.Pipe2(p[:], syscall.O_CLOEXEC))
	syscall.Close(p[0])
	fds["pipe without a reader"] = p[1]
	p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	ok("socket", p[0], err)
	fds["socket's other end"] = p[1]
	for name, flags := range map[string]int{"/": syscall.O_RDONLY, "/dev/null": syscall.O_RDWR, "/dev/zero": syscall.O_RDWR, "/dev/full": syscall.O_RDWR,
		"/dev/ptmx": syscall.O_RDWR | syscall.O_NOCTTY, "/proc/self/mem": syscall.O_RDONLY, s.Socket: 0x200000 /* O_PATH */} {
		fd, err := syscall.Open(name, flags|syscall.O_CLOEXEC, 0)
		ok(name, fd, err)
	}
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	ok("epoll", fd, err)
	fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	ok("another connection", fd, err)
	_ = syscall.Connect(fd, &syscall.SockaddrUnix{Name: s.Socket})
	fd, err = sys.PidfdOpen(os.Getpid(), 0)
	ok("pidfd", fd, err)
	raw, err := h.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(c uintptr) { fd, err = syscall.Dup(int(c)) })
	syscall.CloseOnExec(fd)
	ok("this very connection", fd, err)
	return fds, func() {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}
}

// randomLaunch is a launch request: most of it is right, some of it is not.
func randomLaunch(r *rand.Rand) string {
	m := map[string]any{"argv": one[any](r, []string{"/bin/true"}, []string{"/bin/true"}, []string{"/bin/true"}, []string{"/bin/sleep", "1000"},
		[]string{"/bin/cat"}, []string{"/bin/echo", "x"}, []string{}, []string{""}, []string{"/bin/true", "a\x00b"}, []string{"/no/such"}, []string{"/"},
		[]string{"/etc/passwd"}, []string{"/bin/true", strings.Repeat("x", 200<<10)}, slices.Repeat([]string{"/bin/true"}, 1<<16+1),
		slices.Repeat([]string{"/bin/true"}, 1<<12), "true", 7, nil)}
	fields := map[string][]any{
		"argv_b64": {[][]byte{[]byte("/bin/true"), {0xff, 0xfe}}, "x", []string{"!"}},
		"env": {[]string{}, []string{"A=b"}, []string{"=b"}, []string{"A"}, []string{"A=\x00"}, slices.Repeat([]string{"A=" + strings.Repeat("y", 1000)}, 2000),
			[]string{"A=" + strings.Repeat("x", 200<<10)}, []string{"LD_PRELOAD=/no/such", "NOTIFY_SOCKET=/x"}, 1},
		"env_add": {[]string{"A"}, []string{"A=b", "A"}, []string{""}, []string{"="}}, "env_b64": {[][]byte{{'A', '=', 0xff}}, [][]byte{{0}}},
		"cwd": {"/", "/no/such", "relative", "/etc/passwd", "/proc/self/fd", strings.Repeat("/x", 5000), "\x00"}, "cwd_policy": {"nearest", "must_exist", "x"},
		"user": {"54321", "0", "root", "no-such-user", "-1", "4294967295"}, "group": {"54321", "nobody-here"}, "groups": {[]string{"1", "2"}, []string{"x"}, slices.Repeat([]string{"7"}, 70000)},
		"umask": {"077", "999", "-1", "0", "7777", "x"}, "nice": {19, -20, 20, 1 << 40}, "oom_score_adj": {1000, -1000, 1001}, "no_new_privs": {true, "yes"},
		"rlimits": {map[string]any{"nofile": map[string]int64{"soft": 0, "hard": 0}}, map[string]any{"as": map[string]int64{"soft": 1, "hard": 1}}, map[string]any{"x": 1},
			map[string]any{"nproc": map[string]int64{"soft": math.MaxInt64, "hard": math.MinInt64}}, map[string]any{"stack": map[string]int64{"soft": 1, "hard": -1}}},
		"stop_signal": {"TERM", "KILL", "65", "x"}, "deadline_ms": {1, 60000, -1, math.MaxInt64}, "min_grade": {"scope", "cgroup", "x"}, "epoch": {1, 7, -1},
		"labels": {map[string]string{"a": "b"}, map[string]string{"": ""}}, "idempotency_key": {"k1", "k2", strings.Repeat("k", 200), "\x00"}, "unknown": {1},
		"pass_fds": {[]api.PassFD{{FD: 0, Number: 3}}, []api.PassFD{{FD: 0, Number: 1023}, {FD: 0, Number: 1022}}, []api.PassFD{{FD: 0, Number: 3}, {FD: 1, Number: 3}},
			[]api.PassFD{{FD: -1, Number: 3}}, []api.PassFD{{FD: 0, Number: 0}}, []api.PassFD{{FD: 99, Number: 99}}, []api.PassFD{{FD: 0, Number: math.MaxInt}}},
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // the same seed is the same request
	for range r.IntN(4) {
		name := one(r, names...)
		m[name] = one(r, fields[name]...)
	}
	if r.IntN(3) > 0 {
		m["stdio"] = randomStdio(r)
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func randomStdio(r *rand.Rand) map[string]any {
	stream := func(modes ...api.StdioMode) map[string]any {
		return map[string]any{"mode": one(r, modes...), "fd": one(r, 0, 0, 1, 2, -1, 99), "max_bytes": one[int64](r, 0, 0, 4096, 1, -1, math.MaxInt64)}
	}
	in := stream(api.StdioNull, api.StdioPass, api.StdioPTY, api.StdioPipe, api.StdioData, api.StdioSpool, "x")
	if r.IntN(2) == 0 {
		in["data"] = make([]byte, one(r, 0, 5, 64<<10, 1<<20, 1<<20+1))
	}
	out := map[string]any{"stdin": in, "stdout": stream(api.StdioNull, api.StdioPass, api.StdioSpool, api.StdioPTY, api.StdioStdout),
		"stderr": stream(api.StdioNull, api.StdioPass, api.StdioSpool, api.StdioPTY, api.StdioStdout)}
	if r.IntN(3) == 0 {
		out["pty"] = api.WinSize{Rows: one(r, 0, -1, 24, math.MaxInt), Cols: one(r, 80, math.MinInt, 1<<20)}
	}
	return out
}

// hurl sends one random launch, with random descriptors, and reads the answer.
func (x *turn) hurl(r *rand.Rand) {
	x.t.Helper()
	h := x.s.hostile(x.t)
	defer h.Close()
	all, drop := strangeFDs(x.t, x.s, h)
	defer drop()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var chosen []string
	var fds []int
	for range one(r, 0, 1, 2, 3, 5, 65, 253) {
		chosen = append(chosen, one(r, names...))
		fds = append(fds, all[chosen[len(chosen)-1]])
	}
	body := randomLaunch(r)
	text := request("POST", "/v1/turns/"+x.ID+"/processes", body)
	cut := one(r, 0, 0, strings.Index(text, "\r\n\r\n")+4, len(text)-1)
	h.send(text[:cut])
	h.send(text[cut:], fds...)
	status, b := h.answer()
	var e api.Error
	switch {
	case status == 0 && len(text) < 1<<20, status == http.StatusInternalServerError:
		x.t.Errorf("%d %s\nto %.2000s\nwith %q", status, b, body, chosen)
	case status >= 400 && (json.Unmarshal(b, &e) != nil || e.Code == "" || e.Code == api.CodeInternal || e.Code == api.CodeKeeperLost):
		x.t.Errorf("%d %s\nto %.2000s\nwith %q", status, b, body, chosen)
	}
}

// vanish sends a request up to a byte, in one of the ways that a client can die.
func (x *turn) vanish(r *rand.Rand, text string, at int) {
	x.t.Helper()
	h := x.s.hostile(x.t)
	defer h.Close()
	all, drop := strangeFDs(x.t, x.s, h)
	defer drop()
	var fds []int
	if r.IntN(2) == 0 {
		fds = []int{all["pipe"], all["this very connection"], all["another connection"]}
	}
	if at > 0 && r.IntN(2) == 0 { // descriptors first, then the rest
		h.send(text[:1], fds...)
		h.send(text[1:at])
	} else {
		h.send(text[:at], fds...)
	}
	switch r.IntN(4) {
	case 0: // it goes on to write, and dies with that unread
		h.send("G", fds...)
	case 1:
		_ = h.CloseWrite()
	case 2:
		time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
	}
}

// recorded fails where something runs in the turn that it does not tell of. What was
// asked for by who did not wait for the answer may just be on its way.
func (x *turn) recorded() {
	x.t.Helper()
	unknown := ""
	for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(5 * time.Millisecond) {
		if unknown = x.unrecorded(); unknown == "" {
			return
		}
		if time.Now().After(end) {
			x.t.Errorf("nobody knows what runs in %s", unknown)
			return
		}
	}
}

// unrecorded is a leaf of no launch, and what is in it.
func (x *turn) unrecorded() string {
	x.t.Helper()
	known := map[string]bool{}
	for _, p := range x.look().Processes {
		known[p.ID] = true
	}
	leaves, err := os.ReadDir(filepath.Join(x.Cgroup, "work"))
	if err != nil {
		x.t.Fatal(err)
	}
	for _, l := range leaves {
		if l.IsDir() && !known[l.Name()] {
			b, _ := os.ReadFile(filepath.Join(x.Cgroup, "work", l.Name(), "cgroup.procs"))
			if len(b) > 0 {
				return fmt.Sprintf("%s: %q", l.Name(), b)
			}
		}
	}
	return ""
}

// answers fails where the service does not answer at once.
func (s *service) answers() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience(time.Minute))
	defer cancel()
	if _, err := s.Host(ctx); err != nil {
		s.t.Fatalf("the service does not answer: %v", err)
	}
}

// Whatever clients send, and wherever they die: the service answers others, and
// nothing of it is left, there and in the keeper.
func TestHostileClients(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("PINFOLD_TEST_SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("PINFOLD_TEST_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := serve(t, grades(t)[0], options{})
	fresh := s.goroutines()
	s.lives(10)
	warm := s.begin(t, api.BeginRequest{})
	p := warm.ended(warm.launch(api.LaunchRequest{Argv: []string{"/bin/echo"}, Stdio: stdio("", api.StdioSpool, "")}).ID)
	warm.keptOutput(p.ID, client.OutputQuery{Follow: true})
	warm.abandon(0)
	s.Close()
	eventually(t, "the first turns put away", func() bool { return s.footprint().children == 0 })
	empty := s.footprint()
	eventually(t, "connections of the past closed", func() bool {
		now := s.footprint()
		same := now.descriptors >= empty.descriptors
		empty.descriptors = min(empty.descriptors, now.descriptors)
		time.Sleep(patience(100 * time.Millisecond))
		return same
	})
	n := 300 / run.slow
	if testing.Short() {
		n /= 10
	}
	x := s.begin(t, api.BeginRequest{})
	p = x.launch(api.LaunchRequest{Argv: []string{"/bin/cat"}, Stdio: stdio(api.StdioPipe, api.StdioSpool, api.StdioSpool)})
	s.Close()
	one, keeper := s.footprint(), x.keeper()
	s.tellDescriptors()
	for range n {
		x.hurl(r)
	}
	s.answers()
	x.recorded()
	base := "/v1/turns/" + x.ID
	for _, text := range []string{
		request("POST", base+"/processes", `{"argv":["/bin/sleep","1000"],"stdio":{"stdin":{"mode":"pipe"},"stdout":{"mode":"pass","fd":1},"stderr":{"mode":"spool"}}}`),
		request("POST", base+"/processes?wait=true", `{"argv":["/bin/sleep","1000"]}`),
		request("GET", base+"/processes/p1/wait", ""), request("GET", base+"/wait", ""),
		request("GET", base+"/processes/p1/output?follow=true", ""), request("POST", base+"/processes/p1/stdin", "some bytes"),
	} {
		body := strings.Index(text, "\r\n\r\n") + 4
		for _, at := range []int{0, 1, body / 2, body - 1, body, (body + len(text)) / 2, len(text) - 1, len(text)} {
			for range max(1, n/60) {
				x.vanish(r, text, min(at, len(text)))
			}
		}
	}
	s.answers()
	x.recorded()
	slow := make([]*hostile, 100)
	for i := range slow {
		slow[i] = s.hostile(t)
		slow[i].send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"[:1+i%46])
	}
	s.answers()
	for _, h := range slow {
		h.Close()
	}
	eventually(t, "the keeper has what it had", func() bool {
		for _, q := range x.look().Processes { // some may be launched only now, for who has gone long since
			if q.ID != p.ID && q.Status.State == api.ProcessRunning {
				_, _ = s.Signal(t.Context(), x.ID, q.ID, api.SignalRequest{Signal: "KILL"})
			}
		}
		return x.keeper().descriptors <= keeper.descriptors && x.keeper().children <= keeper.children
	})
	s.Close()
	eventually(t, "the service has what it had, and the turn", func() bool { return s.footprint().descriptors <= one.descriptors })
	x.abandon(0)
	empty.files = math.MaxInt // what was written is kept for a while
	s.flat(empty, 8, 32<<20)
	if busy := s.goroutines(); busy > fresh+10 {
		t.Errorf("%d goroutines, %d before", busy, fresh)
	}
}

// tellDescriptors tells, should the test fail, which descriptors the service has then
// and has now.
func (s *service) tellDescriptors() {
	list := func() []string {
		var out []string
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.proc.pid))
		for _, f := range all {
			to, _ := os.Readlink(f)
			out = append(out, to)
		}
		slices.Sort(out)
		return out
	}
	was := list()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the service's descriptors were\n%q\nand are\n%q", was, list())
		}
	})
}

// Sizes and offsets that make no sense are brought into their bounds or
// refused; readers that stop reading hold up nobody.
func TestHostileReaders(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	p := x.launch(api.LaunchRequest{Argv: []string{"/bin/cat"}, Stdio: stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)})
	for _, rows := range []int{math.MinInt, -1, 0, 1, 1000, 1001, 65536, 1<<32 + 5, math.MaxInt} {
		a, err := s.Resize(t.Context(), x.ID, p.ID, api.ResizeRequest{Rows: rows, Cols: -rows})
		if err != nil || a.Rows < 1 || a.Rows > 1000 || a.Cols < 1 || a.Cols > 4096 {
			t.Errorf("%d: %+v (%v)", rows, a, err)
		}
	}
	q := x.ended(x.launch(api.LaunchRequest{Argv: []string{"/bin/echo", "123456789"}, Stdio: stdio("", api.StdioSpool, "")}).ID)
	for query, want := range map[string]string{
		"offset=-1": "400", "offset=4": "200 56789\n", "offset=10": "200 ", "offset=99999": "200 ", "offset=4611686018427387904": "200 ", "offset=4611686018427387905": "400",
		"offset=99999999999999999999": "400", "tail=0": "200 ", "tail=99999": "200 123456789\n", "tail=-1": "400", "limit=0": "200 ", "limit=3": "200 123", "limit=-2": "400",
		"offset=99999&follow=true": "200 ", "offset=1e3": "400", "offset=": "400", "offset=1&tail=1": "400", "stream=stdin": "400",
	} {
		h := s.hostile(t)
		h.send(request("GET", "/v1/turns/"+x.ID+"/processes/"+q.ID+"/output?"+query, ""))
		status, b := h.answer()
		got := fmt.Sprintf("%d %s", status, b)
		if h.Close(); got != want && (status < 400 || want != strconv.Itoa(status)) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	s.Close()
	before := s.footprint()
	w := x.launch(api.LaunchRequest{Argv: []string{"yes"}, Stdio: stdio("", api.StdioSpool, "")})
	var stuck []*hostile
	for range 50 {
		h := s.hostile(t)
		h.send(strings.Replace(request("GET", "/v1/turns/"+x.ID+"/processes/"+w.ID+"/output?follow=true", ""), "\r\n\r\n", "\r\nAccept: "+api.NDJSON+"\r\n\r\n", 1))
		stuck = append(stuck, h)
	}
	total := func() int64 {
		p, err := s.Process(t.Context(), x.ID, w.ID)
		if err != nil {
			t.Fatal(err)
		}
		return p.Output[api.StreamStdout].BytesTotal
	}
	was := total()
	eventually(t, "the process goes on to write", func() bool { return total() > was+64<<20 })
	s.answers()
	eventually(t, "another reader reads the end, which may be overwritten as it comes", func() bool {
		out := x.keptOutput(w.ID, client.OutputQuery{Tail: new(int64(4))})
		return out == "y\ny\n" || out == "\ny\ny"
	})
	if _, err := s.Signal(t.Context(), x.ID, w.ID, api.SignalRequest{Signal: "KILL"}); err != nil {
		t.Error(err)
	}
	for _, h := range stuck {
		h.Close()
	}
	x.ended(w.ID)
	s.Close()
	eventually(t, "no reader is left", func() bool { return s.footprint().descriptors <= before.descriptors })
	x.abandon(0)
}
