package containment

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

// keeper is a Manager that keeps output in memory.
func keeper(retention time.Duration, room int64) (*Manager, *memHost, *memOutputs) {
	h, out := &memHost{}, &memOutputs{}
	return New(Config{Host: h, Records: newMemRecords(), Users: memUsers{}, Boot: "b", Bound: time.Second, Outputs: out,
		Retention: retention, OutputRoom: room}), h, out
}

func spooled(t *testing.T, m *Manager, id string) string {
	t.Helper()
	p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"},
		Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioPipe}, Stdout: api.Stream{Mode: api.StdioSpool}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func isKept(t *testing.T, m *Manager, id, proc string) bool {
	t.Helper()
	r, err := m.Output(t.Context(), id, proc, api.StreamStdout)
	if err == nil {
		r.Close()
		return true
	}
	if !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	return false
}

// A list reads no output, and so tells nothing of how far it is: it told 0 bytes.
func TestOutputThatWasNotReadIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, out := keeper(time.Hour, 1<<20)
		id := begun(t, m, api.BeginRequest{})
		p := spooled(t, m, id)
		out.add(id, p, api.StreamStdout, "hello")
		l, err := m.Turns(t.Context(), TurnFilter{})
		if err != nil || len(l) != 1 || l[0].Processes[0].Output != nil {
			t.Errorf("%+v (%v)", l, err)
		}
		if v, err := m.Turn(t.Context(), id); err != nil || v.Processes[0].Output[api.StreamStdout].BytesTotal != 5 {
			t.Errorf("%+v (%v)", v, err)
		}
		_ = m.Close(context.Background())
	})
}

func TestOutputIsKeptUntilItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, out := keeper(time.Hour, 1<<20)
		id := begun(t, m, api.BeginRequest{})
		p := spooled(t, m, id)
		o := out.add(id, p, api.StreamStdout, "hello")
		if v, err := m.Process(t.Context(), id, p); err != nil || v.Output[api.StreamStdout].BytesTotal != 5 || v.Stdin != api.StdioPipe {
			t.Errorf("%+v (%v)", v, err)
		}
		o.write(", world", true)
		if _, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(59 * time.Minute)
		if !isKept(t, m, id, p) {
			t.Error("it went before its time")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if isKept(t, m, id, p) {
			t.Error("it is still there")
		}
		if v, err := m.Process(t.Context(), id, p); err != nil || v.Output[api.StreamStdout].BytesTotal != 12 || !v.Output[api.StreamStdout].EOF {
			t.Errorf("what it was is not known any more: %+v (%v)", v.Output, err)
		}
		_ = m.Close(context.Background())
	})
}

func TestAcknowledgedOutputGoes(t *testing.T) {
	m, h, out := keeper(time.Hour, 1<<20)
	id := begun(t, m, api.BeginRequest{})
	p, q := spooled(t, m, id), spooled(t, m, id)
	out.add(id, p, api.StreamStdout, "hello")
	out.add(id, q, api.StreamStdout, "hello")
	if _, err := m.Acknowledge(t.Context(), id, p); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("while it runs: %v", err)
	}
	h.holds[0].exit(p, 0)
	v, err := m.Acknowledge(t.Context(), id, p)
	if err != nil || !v.Acknowledged || v.Output[api.StreamStdout].BytesTotal != 5 || isKept(t, m, id, p) || !isKept(t, m, id, q) {
		t.Errorf("%+v (%v)", v, err)
	}
	if v, err := m.Acknowledge(t.Context(), id, p); err != nil || !v.Acknowledged { // again
		t.Errorf("%+v (%v)", v, err)
	}
}

// What has ended longest goes first: turns that are over, then processes. What
// runs stays.
func TestRoomForOutputIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, out := keeper(24*time.Hour, 25)
		old, young := begun(t, m, api.BeginRequest{}), begun(t, m, api.BeginRequest{})
		live := begun(t, m, api.BeginRequest{})
		for _, id := range []string{old, young} {
			out.add(id, spooled(t, m, id), api.StreamStdout, "ten bytes.")
			if _, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Minute)
		}
		first, second, running := spooled(t, m, live), spooled(t, m, live), spooled(t, m, live)
		for _, p := range []string{first, second, running} {
			out.add(live, p, api.StreamStdout, "ten bytes.")
		}
		for _, p := range []string{first, second} {
			h.holds[2].exit(p, 0)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		got := [5]bool{isKept(t, m, old, "p1"), isKept(t, m, young, "p1"), isKept(t, m, live, first), isKept(t, m, live, second), isKept(t, m, live, running)}
		if want := [5]bool{false, false, false, true, true}; got != want {
			t.Errorf("kept: %v, want %v", got, want)
		}
		_ = m.Close(context.Background())
	})
}

func TestReadingEnds(t *testing.T) {
	for name, end := range map[string]func(m *Manager, x *memHold, o *memOutput, id, p string){
		"closed":      func(_ *Manager, _ *memHold, o *memOutput, _, _ string) { o.write("", true) },
		"keeper lost": func(_ *Manager, x *memHold, _ *memOutput, _, _ string) { x.hooks.KeeperLost("killed") },
		"turn over": func(m *Manager, _ *memHold, _ *memOutput, id, _ string) {
			_, _ = m.Abandon(context.Background(), id, root, api.AbandonRequest{})
		},
		"process drained": func(_ *Manager, x *memHold, _ *memOutput, _, p string) { x.exit(p, 0) },
	} {
		synctest.Test(t, func(t *testing.T) {
			m, h, out := keeper(time.Hour, 1<<20)
			id := begun(t, m, api.BeginRequest{})
			p := spooled(t, m, id)
			o := out.add(id, p, api.StreamStdout, "hello")
			r, err := m.Output(t.Context(), id, p, api.StreamStdout)
			if err != nil {
				t.Fatal(err)
			}
			if over, err := r.Await(t.Context(), 3, 2*time.Second); over || err != nil {
				t.Errorf("%s: while there is more: %v (%v)", name, over, err)
			}
			begin := time.Now()
			go func() { time.Sleep(time.Second); end(m, h.holds[0], o, id, p) }()
			if over, err := r.Await(t.Context(), 5, 2*time.Second); !over || err != nil {
				t.Errorf("%s: %v (%v)", name, over, err)
			}
			want := time.Second
			if name == "process drained" {
				want = 3 * time.Second
			}
			if took := time.Since(begin); took != want {
				t.Errorf("%s: after %v, want %v", name, took, want)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if r.Exit() == nil && name == "process drained" {
				t.Error("no exit")
			}
			_, _ = r.Await(ctx, 5, -1)
			_ = m.Close(context.Background())
			synctest.Wait()
		})
	}
}

// Drain waits for the end of output, and no longer than it was told: a
// descendant may hold it for ever.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, out := keeper(time.Hour, 1<<20)
		id := begun(t, m, api.BeginRequest{})
		p := spooled(t, m, id)
		o := out.add(id, p, api.StreamStdout, "hello")
		h.holds[0].exit(p, 0)
		begin := time.Now()
		if _, err := m.Drain(t.Context(), id, p, 2*time.Second); err != nil || time.Since(begin) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		go func() { time.Sleep(time.Second); o.write("!", true) }()
		begin = time.Now()
		v, err := m.Drain(t.Context(), id, p, time.Minute)
		if took := time.Since(begin); err != nil || took != time.Second || !v.Output[api.StreamStdout].EOF {
			t.Errorf("after %v: %+v (%v)", took, v.Output, err)
		}
		_ = m.Close(context.Background())
	})
}

func TestOutputThatIsNotKept(t *testing.T) {
	m, _, _ := keeper(time.Hour, 1<<20)
	id := begun(t, m, api.BeginRequest{})
	p := launched(t, m, id)
	for _, s := range []api.StreamName{api.StreamStdout, api.StreamStderr} {
		if _, err := m.Output(t.Context(), id, p, s); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := m.Output(t.Context(), id, p, "stdin"); !errors.Is(err, api.ErrBadRequest) {
		t.Error(err)
	}
}

func TestOutputsBoundEndsTheTurn(t *testing.T) {
	for policy, want := range map[api.OutputPolicy]api.State{api.OutputStop: api.StateAbandoned, api.OutputDrop: api.StateOpen, "": api.StateOpen} {
		m, h, _ := keeper(time.Hour, 1<<20)
		id := begun(t, m, api.BeginRequest{OutputMax: 1000, OnOutputMax: policy})
		h.holds[0].hooks.OutputMax()
		if want != api.StateOpen {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := m.WaitTurn(ctx, id); err != nil {
				t.Fatal(err)
			}
			if r, err := m.Receipt(t.Context(), id); err != nil || r.Reason != api.ReasonLimit || r.Actor.Name != "pinfold" {
				t.Errorf("%+v (%v)", r, err)
			}
		}
		if v, err := m.Turn(t.Context(), id); err != nil || v.State != want || !v.OutputMaxed {
			t.Errorf("%q: %s, %v (%v)", policy, v.State, v.OutputMaxed, err)
		}
	}
}

// What a keeper holds for a process stays bounded: writers take turns, also
// when those before them have gone.
func TestOneInputAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := keeper(time.Hour, 1<<20)
		id := begun(t, m, api.BeginRequest{})
		p := spooled(t, m, id)
		h.holds[0].reader = make(chan string)
		for range 5 { // they give up
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := m.Input(ctx, id, p, 0, []byte("lost?"), false); !errors.Is(err, api.ErrTimeout) {
				t.Error(err)
			}
			cancel()
		}
		done := make(chan error)
		go func() { _, err := m.Input(t.Context(), id, p, 0, []byte("second"), false); done <- err }()
		first, second := <-h.holds[0].reader, <-h.holds[0].reader
		if err := <-done; err != nil || first != "lost?" || second != "second" {
			t.Errorf("%q, %q (%v)", first, second, err)
		}
		q := launched(t, m, id)
		if _, err := m.Input(t.Context(), id, q, 0, nil, false); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("stdin of mode null: %v", err)
		}
		if _, err := m.Input(t.Context(), id, p, 9, []byte("x"), false); !errors.Is(err, api.ErrStaleEpoch) {
			t.Errorf("stale: %v", err)
		}
		_ = m.Close(context.Background())
	})
}

// What cannot be read is no stream of 0 bytes: it says so.
func TestOutputThatCannotBeRead(t *testing.T) {
	m, _, out := keeper(time.Hour, 1<<20)
	id := begun(t, m, api.BeginRequest{})
	p := spooled(t, m, id)
	for _, broken := range []error{errors.New("damaged"), fs.ErrNotExist} {
		out.fail = broken
		v, err := m.Process(t.Context(), id, p)
		if st := v.Output[api.StreamStdout]; err != nil || st.Error == "" {
			t.Errorf("%v: %+v (%v)", broken, st, err)
		}
	}
}

// Who writes to a stdin that is closed is told which, and nothing of keepers.
func TestInputThatNobodyReads(t *testing.T) {
	m, _, _ := keeper(time.Hour, 1<<20)
	id := begun(t, m, api.BeginRequest{})
	p := spooled(t, m, id)
	_, err := m.Input(t.Context(), id, p, 0, []byte("x"), false)
	if want := stdinClosed(id, p); !errors.Is(err, api.ErrStdinClosed) || err.Error() != want.Error() {
		t.Errorf("%v, not %v", err, want)
	}
}
