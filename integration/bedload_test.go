package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// The service is restarted, and killed, while everything goes on: launches, kept
// output and terminals, leases, held connections, events, jobs, begins and
// endings. Clients that ask again miss nothing, and nobody is ever turned away.
func TestRestartUnderLoadThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	l := newLoad(u)
	l.start()
	rounds := 4
	if slowness(t) > 1 || os.Getenv("PINFOLD_LOAD_ROUNDS") == "3" {
		rounds = 3
	}
	for i := range rounds {
		time.Sleep(time.Second)
		if i%3 == 2 {
			before := u.pid()
			u.kill()
			u.soon("another service runs", func() bool { now := u.pid(); return now != 0 && now != before })
		} else {
			u.systemctl("restart", "pinfold")
		}
	}
	time.Sleep(time.Second)
	l.finish()
}

// slowness is how much slower than a usual machine this is.
func slowness(t *testing.T) int {
	t.Helper()
	s := os.Getenv("PINFOLD_TEST_SLOW")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// patience is for what happens soon on a usual machine.
func patience(t *testing.T) time.Duration { return time.Duration(slowness(t)) * time.Minute }

// load is what goes on meanwhile.
type load struct {
	*client.Client
	u    *unit
	t    *testing.T
	dir  string
	ctx  context.Context // ends when the load is to
	stop context.CancelFunc
	wg   sync.WaitGroup

	busy    context.Context // ends earlier, for what makes events
	quiet   context.CancelFunc
	workers sync.WaitGroup

	open, leased, unleased, held api.Turn
	streams                      []*stream
	job                          api.Job
	launched, ended, dialled     atomic.Int64
	after                        int64 // the number of the event before

	mu     sync.Mutex
	codes  map[string]int // exit code by process of open
	events []api.Event
}

// stream is a process that counts, and what was read of it.
type stream struct {
	p    api.Process
	line string // how a line ends
	got  bytes.Buffer
}

func newLoad(u *unit) *load {
	l := &load{Client: u.client(), u: u, t: u.t, dir: u.t.TempDir(), codes: map[string]int{}}
	l.ctx, l.stop = context.WithCancel(u.t.Context())
	l.busy, l.quiet = context.WithCancel(l.ctx)
	u.t.Cleanup(l.stop)
	return l
}

// again asks until it is answered: what a client does whose service restarts.
func again[T any](l *load, what string, ask func() (T, error)) T {
	var err error
	for end := time.Now().Add(patience(l.t)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var v T
		if v, err = ask(); err == nil {
			return v
		}
		if !errors.Is(err, api.ErrUnavailable) {
			break
		}
	}
	l.t.Errorf("%s: %v", what, err)
	var none T
	return none
}

func (l *load) start() {
	t := l.t
	slow := int64(slowness(t))
	now, err := l.Events(t.Context(), client.EventQuery{After: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	l.after = now.Rest().After
	now.Close()
	l.open = begin(t, l.Client, api.BeginRequest{Label: "load"})
	l.leased = begin(t, l.Client, api.BeginRequest{LeaseMS: 20_000 * slow})
	l.unleased = begin(t, l.Client, api.BeginRequest{LeaseMS: 4000 * slow})
	l.held = begin(t, l.Client, api.BeginRequest{Client: api.Client{Bind: api.BindConnection, AfterMS: 30_000 * slow}})
	const count = `i=0; while [ ! -e "$0/stop" ]; do i=$((i+1)); echo $i; [ $((i%50)) -ne 0 ] || sleep 0.01; done; exit 5`
	spool, tty := api.Stream{Mode: api.StdioSpool}, api.Stream{Mode: api.StdioPTY}
	for _, s := range []struct {
		stdio api.Stdio
		line  string
	}{{api.Stdio{Stdout: spool}, "\n"}, {api.Stdio{Stdout: spool}, "\n"}, {api.Stdio{Stdin: tty, Stdout: tty, Stderr: tty}, "\r\n"}} {
		req := shell(count, l.dir)
		req.Stdio = s.stdio
		l.streams = append(l.streams, &stream{p: launch(t, l.Client, l.open.ID, req), line: s.line})
	}
	if l.job, err = l.StartJob(t.Context(), api.JobRequest{Launch: shell("exec sleep 300")}); err != nil {
		t.Fatal(err)
	}
	for _, s := range l.streams {
		l.wg.Go(func() { l.read(s) })
	}
	for i := range 3 {
		l.workers.Go(func() { l.launches(i) })
	}
	l.workers.Go(l.turns)
	for _, f := range []func(){l.touch, l.hold, l.dial, l.follow} {
		l.wg.Go(f)
	}
}

// read reads a stream from where it was, until it ends.
func (l *load) read(s *stream) {
	buf := make([]byte, 64<<10)
	for tries := 0; tries < 3000; tries++ {
		o, err := l.Output(context.Background(), l.open.ID, s.p.ID, client.OutputQuery{Offset: int64(s.got.Len()), Follow: true})
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for err == nil {
			var n int
			n, err = o.Read(buf)
			s.got.Write(buf[:n])
		}
		_, nerr := o.Next()
		o.Close()
		if errors.Is(err, io.EOF) && nerr == nil {
			p, err := l.Process(context.Background(), l.open.ID, s.p.ID) // it may take until long after the end of this answer
			if err == nil && p.Status.State != api.ProcessRunning && p.Output[api.StreamStdout].BytesTotal <= int64(s.got.Len()) {
				return
			}
		}
	}
	l.t.Errorf("the stream of %s has no end", s.p.ID)
}

// launches launches processes that say their key, once each, and exit.
func (l *load) launches(worker int) {
	for i := 0; l.busy.Err() == nil; i++ {
		key, code := fmt.Sprintf("w%d-%d", worker, i), (worker*67+i)%200
		req := shell(`echo "$0" >>"$1/keys"; exit `+strconv.Itoa(code), key, l.dir)
		req.IdempotencyKey = key
		p := again(l, "launch "+key, func() (api.Process, error) { return l.Launch(context.Background(), l.open.ID, req) })
		if p.ID == "" {
			return
		}
		l.mu.Lock()
		l.codes[p.ID] = code
		l.mu.Unlock()
		p = again(l, "wait for "+key, func() (api.Process, error) { return l.WaitProcess(context.Background(), l.open.ID, p.ID) })
		if p.Status.State != api.ProcessExited || p.Status.Code != code {
			l.t.Errorf("%s exited with %d, the service says %+v", key, code, p.Status)
			return
		}
		l.launched.Add(1)
	}
}

// turns begins turns, and ends them.
func (l *load) turns() {
	for i := 0; l.busy.Err() == nil; i++ {
		x := again(l, "begin", func() (api.Turn, error) {
			return l.Begin(context.Background(), api.BeginRequest{IdempotencyKey: "turn" + strconv.Itoa(i)})
		})
		if x.ID == "" {
			return
		}
		req := shell("sleep 300 & exec sleep 300")
		req.IdempotencyKey = "only"
		again(l, "launch", func() (api.Process, error) { return l.Launch(context.Background(), x.ID, req) })
		r := again(l, "abandon", func() (api.Receipt, error) {
			return l.Abandon(context.Background(), x.ID, api.AbandonRequest{GraceMS: new(int64)})
		})
		if !r.Complete {
			l.t.Errorf("a receipt is not complete: %+v", r)
			return
		}
		l.ended.Add(1)
	}
}

func (l *load) touch() {
	for l.ctx.Err() == nil {
		again(l, "touch", func() (api.TouchAnswer, error) { return l.Touch(context.Background(), l.leased.ID, 0) })
		time.Sleep(300 * time.Millisecond)
	}
}

// hold holds a turn that goes with its client.
func (l *load) hold() {
	for l.ctx.Err() == nil {
		h := again(l, "hold", func() (*client.Holding, error) {
			h, err := l.Hold(l.ctx, l.held.ID, 0)
			if l.ctx.Err() != nil { // the load is over
				return h, nil
			}
			return h, err
		})
		if h == nil {
			return
		}
		if s, err := h.Wait(); l.ctx.Err() == nil && err == nil {
			l.t.Errorf("the turn that is held ended: %s", s)
		}
		h.Close()
	}
}

// dial connects, and does not ask again when it is refused.
func (l *load) dial() {
	for l.ctx.Err() == nil {
		c, err := net.Dial("unix", l.u.socket())
		if err != nil {
			l.t.Errorf("a client was turned away: %v", err)
			return
		}
		c.Close()
		l.dialled.Add(1)
		time.Sleep(5 * time.Millisecond)
	}
}

// follow reads what happens, each event once.
func (l *load) follow() {
	q := client.EventQuery{After: l.after, Follow: true}
	for l.ctx.Err() == nil {
		e, err := l.Events(l.ctx, q)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for err == nil {
			var ev api.Event
			if ev, err = e.Next(); err == nil {
				l.mu.Lock()
				l.events = append(l.events, ev)
				l.mu.Unlock()
			}
		}
		q = e.Rest()
		e.Close()
	}
}

// finish ends the load, and looks whether anything is missing.
func (l *load) finish() {
	t := l.t
	if err := os.WriteFile(filepath.Join(l.dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.quiet()
	l.workers.Wait()
	for _, s := range l.streams {
		wantStatus(t, l.Client, l.open.ID, s.p.ID, api.Status{State: api.ProcessExited, Code: 5})
	}
	for _, x := range []api.Turn{l.open, l.leased, l.held} {
		if v, err := l.Turn(t.Context(), x.ID); err != nil || v.State != api.StateOpen {
			t.Errorf("turn %s is %s (%s), %v", x.ID, v.State, v.Reason, err)
		}
	}
	l.u.soon("the lease that nobody renews runs out", func() bool {
		v, err := l.Turn(t.Context(), l.unleased.ID)
		return err == nil && v.State == api.StateAbandoned && v.Reason == api.ReasonLeaseExpired
	})
	if j, err := l.Job(t.Context(), l.job.ID); err != nil || j.State == api.JobEnded {
		t.Errorf("the job is %s, %v", j.State, err)
	}
	last := again(l, "the last launch", func() (api.Process, error) { return l.Launch(t.Context(), l.open.ID, shell("exit 99")) })
	l.codes[last.ID] = 99
	l.u.soon("the last event", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.events, func(e api.Event) bool { return e.Kind == api.EventExit && e.Process == last.ID })
	})
	l.stop()
	l.wg.Wait()
	t.Logf("%d launches, %d turns ended, %d connections, %d events", l.launched.Load(), l.ended.Load(), l.dialled.Load(), len(l.events))
	l.checkStreams()
	l.checkKeys()
	l.checkEvents()
	l.u.kept(2) // the socket and the job
}

func (l *load) checkStreams() {
	for _, s := range l.streams {
		lines := strings.Split(strings.TrimSuffix(s.got.String(), s.line), s.line)
		for i, line := range lines {
			if line != strconv.Itoa(i+1) {
				l.t.Errorf("line %d of %s is %q", i+1, s.p.ID, line)
				break
			}
		}
		if p, err := l.Process(l.t.Context(), l.open.ID, s.p.ID); err != nil || p.Output[api.StreamStdout].BytesTotal != int64(s.got.Len()) {
			l.t.Errorf("%d bytes of %s were read, the service tells %+v, %v", s.got.Len(), s.p.ID, p.Output, err)
		}
		if len(lines) < 100/slowness(l.t) {
			l.t.Errorf("%s has %d lines: it shows nothing", s.p.ID, len(lines))
		}
	}
}

// checkKeys looks whether everything was launched once.
func (l *load) checkKeys() {
	b, err := os.ReadFile(filepath.Join(l.dir, "keys"))
	if err != nil {
		l.t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(b)) {
		seen[strings.TrimSpace(line)]++
	}
	for key, n := range seen {
		if n != 1 {
			l.t.Errorf("%s was launched %d times", key, n)
		}
	}
	if int64(len(seen)) != l.launched.Load() {
		l.t.Errorf("%d were launched, %d have run", l.launched.Load(), len(seen))
	}
}

// checkEvents looks whether each number came once, and each process began and
// ended once, as it did.
func (l *load) checkEvents() {
	began, ended := map[string]int{}, map[string]int{}
	for i, e := range l.events {
		if e.Seq != l.after+int64(i)+1 {
			l.t.Fatalf("event %d has number %d, after %d before all: %+v", i, e.Seq, l.after, e)
		}
		if e.Turn != l.open.ID {
			continue
		}
		switch e.Kind {
		case api.EventLaunch:
			began[e.Process]++
		case api.EventExit:
			ended[e.Process]++
			if code, ok := l.codes[e.Process]; ok && (e.Status == nil || e.Status.State != api.ProcessExited || e.Status.Code != code) {
				l.t.Errorf("%s exited with %d, its event says %+v", e.Process, code, e.Status)
			}
		}
	}
	for p := range l.codes {
		if began[p] != 1 || ended[p] != 1 {
			l.t.Errorf("%s: %d events of its launch, %d of its end", p, began[p], ended[p])
		}
	}
}
