package turns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// eventReader follows what happens, across restarts of the service.
type eventReader struct {
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	all  []api.Event
	cuts int // answers that were cut off
}

func readEvents(t *testing.T, s *service, q client.EventQuery) *eventReader {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &eventReader{stop: stop, done: make(chan struct{})}
	q.Follow = true
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			q = r.once(ctx, s, q)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-r.done })
	return r
}

func (r *eventReader) once(ctx context.Context, s *service, q client.EventQuery) client.EventQuery {
	cl := &client.Client{Socket: s.Socket}
	defer cl.Close()
	es, err := cl.Events(ctx, q)
	if err != nil {
		return q
	}
	defer es.Close()
	for {
		e, err := es.Next()
		r.mu.Lock()
		if err != nil {
			r.cuts++
			r.mu.Unlock()
			return es.Rest()
		}
		r.all = append(r.all, e)
		r.mu.Unlock()
	}
}

func (r *eventReader) seen() []api.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// until waits for an event.
func (r *eventReader) until(t *testing.T, what string, is func(api.Event) bool) api.Event {
	t.Helper()
	var found api.Event
	eventually(t, what, func() bool {
		all := r.seen()
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// tellsOf picks those of a turn and of some kinds.
func tellsOf(all []api.Event, turn string, kinds ...api.EventKind) (out []api.Event) {
	for _, e := range all {
		if e.Turn == turn && (len(kinds) == 0 || slices.Contains(kinds, e.Kind)) {
			out = append(out, e)
		}
	}
	return out
}

// contiguous fails where a number is missing or told twice.
func contiguous(t *testing.T, all []api.Event) {
	t.Helper()
	for i, e := range all {
		if e.Kind == api.EventGap || e.Seq != int64(i+1) {
			t.Fatalf("event %d of all is %+v", i+1, e)
		}
	}
}

// What happens to a turn is told in order. What a stopped turn does after that is
// marked, so that it wakes nobody.
func TestEventsOfATurn(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		r := readEvents(t, s, client.EventQuery{})
		x := s.begin(t, api.BeginRequest{Label: "told", Session: "a session"})
		quick := x.launch(helper(t, "exit", "7"))
		if _, err := s.WaitProcess(t.Context(), x.ID, quick.ID); err != nil {
			t.Fatal(err)
		}
		late := x.launch(api.LaunchRequest{Cwd: "/", Argv: []string{"/bin/sh", "-c", "trap 'sleep 0.2; exit 5' TERM; echo ready >&2; while :; do sleep 0.01; done"}})
		time.Sleep(50 * time.Millisecond) // so that it has its trap; without, the signal is told
		if rc := x.abandon(5000); !rc.Complete {
			t.Fatalf("%+v", rc)
		}
		r.until(t, "ended", func(e api.Event) bool { return e.Turn == x.ID && e.Kind == api.EventEnded })
		all := tellsOf(r.seen(), x.ID, api.EventBegun, api.EventLaunch, api.EventExit, api.EventEnding, api.EventEnded)
		var got []string
		for _, e := range all {
			got = append(got, fmt.Sprint(e.Kind, " ", e.Process, " ", e.Stopped))
			if e.Session != "a session" || e.Grade != g || e.Epoch != 1 || e.Owner != 0 {
				t.Errorf("%+v", e)
			}
		}
		want := []string{"begun  false", "launch " + quick.ID + " false", "exit " + quick.ID + " false", "launch " + late.ID + " false",
			"ending  true", "exit " + late.ID + " true", "ended  true"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if st := all[2].Status; st == nil || st.State != api.ProcessExited || st.Code != 7 {
			t.Errorf("exit is told with %+v", st)
		}
		if last := all[len(all)-1]; last.State != api.StateAbandoned || last.Reason != api.ReasonStop {
			t.Errorf("%+v", last)
		}
		contiguous(t, r.seen())
		askedFor(t, s, x)
	})
}

// askedFor: queries narrow, and an acknowledgement holds over a restart.
func askedFor(t *testing.T, s *service, x *turn) {
	t.Helper()
	read := func(q client.EventQuery) (out []api.Event) {
		es, err := s.Events(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		defer es.Close()
		for {
			e, err := es.Next()
			if errors.Is(err, io.EOF) {
				return out
			} else if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
	exits := read(client.EventQuery{Turn: x.ID, Kinds: []api.EventKind{api.EventExit}})
	if len(exits) != 2 || exits[0].Kind != api.EventExit {
		t.Fatalf("%+v", exits)
	}
	for _, q := range []client.EventQuery{{Turn: "0000000000000000"}, {Session: "another"}, {After: -1}} {
		if out := read(q); len(out) != 0 {
			t.Errorf("%+v finds %+v", q, out)
		}
	}
	for i := range 2 {
		a, err := s.AckEvents(t.Context(), "waker", exits[0].Seq)
		if err != nil || a.Repeated != (i > 0) || a.Seq != exits[0].Seq {
			t.Errorf("acknowledged: %+v %v", a, err)
		}
		s.kill()
		s.restart()
	}
	out := read(client.EventQuery{Consumer: "waker", Kinds: []api.EventKind{api.EventExit}})
	if len(out) != 1 || out[0].Seq != exits[1].Seq {
		t.Errorf("the consumer goes on with %+v", out)
	}
	_, err := s.AckEvents(t.Context(), "waker", 1<<40)
	wantCode(t, err, api.CodeBadRequest)
}

// The service is killed again and again, with launches, exits and endings going
// on. A reader that comes back with its cursor is told each of them once, in
// order, and nothing that was not.
func TestEventsWhileServiceIsKilled(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		const tries = 5
		for n := range tries {
			told := false
			t.Run(strconv.Itoa(n), func(t *testing.T) { told = toldOverKills(t, g) })
			if told || t.Failed() {
				return
			}
			t.Log("the disk took no events for a while, and what was told meanwhile is lost with a service: once more")
		}
		t.Errorf("%d times the disk took no events for a while", tries)
	})
}

// toldOverKills is false where the service could not write events, and said so: then it
// tells readers what the next one tells anew, and numbers are passed over.
func toldOverKills(t *testing.T, g api.Grade) bool {
	s := serve(t, g, options{})
	r := readEvents(t, s, client.EventQuery{})
	rounds := max(10/run.slow, 3)
	for range rounds {
		c := newCrash(t, s)
		r.until(t, "the turn's begin", func(e api.Event) bool { return e.Turn == c.kept.ID }) // so that an answer is under way
		c.killAmidst(rand.N(patience(60 * time.Millisecond)))
		s.restart()
		c.checkKept()
		c.checkEnded()
		if t.Failed() {
			return true
		}
	}
	list, err := s.Turns(t.Context(), true, "")
	if err != nil {
		t.Fatal(err)
	}
	mark := s.begin(t, api.BeginRequest{Label: "the last"})
	r.until(t, "the last turn", func(e api.Event) bool { return e.Turn == mark.ID })
	for _, v := range list.Turns { // one that is over is listed as that before its receipt is stored and its end told
		if v.State.Terminal() {
			r.until(t, "the end of turn "+v.ID, func(e api.Event) bool { return e.Turn == v.ID && e.Kind == api.EventEnded })
		}
	}
	if log, _ := os.ReadFile(s.dir + "/log"); bytes.Contains(log, []byte("events wait to be written")) {
		return false
	}
	all := r.seen()
	contiguous(t, all)
	launches := 0
	for _, v := range list.Turns {
		launches += toldOnce(t, v, tellsOf(all, v.ID))
	}
	if launches == 0 || r.cuts < rounds {
		t.Errorf("%d launches in %d turns, %d answers cut off: that is no test", launches, len(list.Turns), r.cuts)
	}
	t.Logf("%d events of %d turns, %d launches, %d kills, %d answers cut off", len(all), len(list.Turns), launches, rounds, r.cuts)
	return true
}

// toldOnce: a turn's begin, its launches, their exits and its end, each once and
// in order. It returns the number of launches.
func toldOnce(t *testing.T, v api.Turn, all []api.Event) int {
	t.Helper()
	at := map[string]int64{}
	for _, e := range all {
		switch e.Kind {
		case api.EventBegun, api.EventLaunch, api.EventExit, api.EventEnded:
		default:
			continue
		}
		what := string(e.Kind) + " " + e.Process
		if at[what] != 0 {
			t.Errorf("%s of turn %s is told as %d and as %d", what, v.ID, at[what], e.Seq)
		}
		at[what] = e.Seq
	}
	want := 1
	before := func(a, b string) {
		t.Helper()
		want++
		if at[a] == 0 || at[b] <= at[a] {
			t.Errorf("of turn %s (%s, %s): %q is told as %d, %q as %d", v.ID, v.Label, v.State, a, at[a], b, at[b])
		}
	}
	if at["begun "] == 0 {
		t.Errorf("the begin of turn %s is not told", v.ID)
	}
	for _, p := range v.Processes {
		before("begun ", "launch "+p.ID)
		if p.Status.State != api.ProcessRunning {
			before("launch "+p.ID, "exit "+p.ID)
		}
	}
	if v.State.Terminal() {
		before("begun ", "ended ")
		for _, p := range v.Processes {
			if p.Status.State != api.ProcessRunning && at["exit "+p.ID] > at["ended "] && v.State == api.StateAbandoned {
				t.Errorf("of turn %s: %s ended after all", v.ID, p.ID)
			}
		}
	}
	if len(at) < want {
		t.Errorf("of turn %s %d things are told, of %d", v.ID, len(at), want)
	}
	return len(v.Processes)
}

// A reader that asks and does not read delays nobody, and another sees all.
func TestStuckEventReader(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		for range 20 {
			c, err := net.Dial("unix", s.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "GET /v1/events?follow=true HTTP/1.1\r\nHost: pinfold\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		r := readEvents(t, s, client.EventQuery{}) // all: when it begins to read is not known
		x := s.begin(t, api.BeginRequest{})
		var wg sync.WaitGroup
		many := 600 / run.slow
		for range 4 {
			wg.Go(func() {
				for range many / 4 {
					if _, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Cwd: "/", Argv: []string{"/bin/true"}}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if rc := x.abandon(0); !rc.Complete {
			t.Errorf("%+v", rc)
		}
		r.until(t, "ended", func(e api.Event) bool { return e.Turn == x.ID && e.Kind == api.EventEnded })
		all := r.seen()
		if n := len(tellsOf(all, x.ID, api.EventExit)); n != many/4*4 {
			t.Errorf("%d exits are told, of %d", n, many)
		}
		for i, e := range all[1:] {
			if e.Seq != all[i].Seq+1 {
				t.Fatalf("after %+v comes %+v", all[i], e)
			}
		}
	})
}

// turnsTold are the turns of which events are told, of one or all.
func turnsTold(ctx context.Context, c *client.Client, turn string) (turns []string, err error) {
	es, err := c.Events(ctx, client.EventQuery{Turn: turn})
	if err != nil {
		return nil, err
	}
	defer es.Close()
	for {
		e, err := es.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(turns)
			return slices.Compact(turns), nil
		} else if err != nil {
			return nil, err
		}
		turns = append(turns, e.Turn)
	}
}

// What runs in a turn may neither read what happens nor acknowledge it; another
// user sees what is its own, and has consumers of its own.
func TestWhoMayReadEvents(t *testing.T) {
	const ann = 54321
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "answers")
		x.launch(helper(t, "peer", s.dir+"/sock", f[0], "events", "events:"+x.ID, "ack"))
		wantAnswers(t, f[0], forbidden, forbidden, forbidden)
		a := s.asUser(t, ann, ann, []string{"events", "begin"}, yes, yes)
		mine := a[1].Turns[0]
		eventually(t, "hers is told", func() bool { // a busy disk takes longer than readers are held for it
			told, err := turnsTold(t.Context(), s.Client, mine)
			return err == nil && len(told) == 1
		})
		b := s.asUser(t, ann, ann, []string{"events", "events:" + x.ID, "ack"}, yes, yes, yes)
		if len(a[0].Turns) != 0 || !slices.Equal(b[0].Turns, []string{mine}) || len(b[1].Turns) != 0 {
			t.Errorf("ann sees %q, %q and %q; hers is %s", a[0].Turns, b[0].Turns, b[1].Turns, mine)
		}
		if a, err := s.AckEvents(t.Context(), "peer", 1); err != nil || a.Repeated {
			t.Errorf("root's consumer is ann's: %+v %v", a, err)
		}
	})
}
