package server

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A turn is held from the first line on, until the connection is closed.
func TestHoldIsAsLongAsTheConnection(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	c := s.client(t)
	h, err := c.Hold(t.Context(), "one", 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.engine.holders.Load(); n != 1 {
		t.Errorf("%d hold it", n)
	}
	h.Close()
	for end := time.Now().Add(time.Minute); s.engine.holders.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is held after the connection was closed")
		}
	}
	if _, err := c.Hold(t.Context(), "absent", 0); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestHoldTellsTheEnd(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	h, err := s.client(t).Hold(t.Context(), "one", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s.engine.change("one", func(t *api.Turn) { t.State = api.StateAbandoned })
	if st, err := h.Wait(); err != nil || st != api.StateAbandoned {
		t.Errorf("%q (%v)", st, err)
	}
	if _, err := h.Wait(); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("after the last line: %v", err)
	}
}

// whyNotHeld waits until n have ended to hold, and returns why.
func (s *service) whyNotHeld(t *testing.T, n int) []error {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.engine.mu.Lock()
		whys := slices.Clone(s.engine.whys)
		s.engine.mu.Unlock()
		if len(whys) >= n {
			return whys
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d have ended: %v", len(whys), n, whys)
		}
	}
}

// That a client has gone is told as such, however it is seen, and that the service
// stops never is: turns end for the one, and go on for the other.
func TestWhyAHoldEnds(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	c := s.raw(t)
	c.send(t, "GET /v1/turns/one/hold HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := c.in.ReadBytes('}'); err != nil {
		t.Fatal(err)
	}
	c.send(t, "G") // net/http hears no more of the connection
	time.Sleep(20 * time.Millisecond)
	c.Close()
	if whys := s.whyNotHeld(t, 1); !errors.Is(whys[0], context.Canceled) {
		t.Errorf("the client has gone: %v", whys[0])
	}
	const many = 50
	for range many {
		h, err := s.client(t).Hold(t.Context(), "one", 0)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	_ = s.Shutdown(now) // which closes connections at once
	for _, why := range s.whyNotHeld(t, 1+many)[1:] {
		if !errors.Is(why, errStopping) {
			t.Errorf("the service stops: %v", why)
		}
	}
}

func TestStoppingTellsWhoHolds(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	h, err := s.client(t).Hold(t.Context(), "one", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if st, err := h.Wait(); !errors.Is(err, api.ErrUnavailable) || st != api.StateOpen {
		t.Errorf("%q (%v)", st, err)
	}
}

func TestLifeThroughTheClient(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	c := s.client(t)
	if a, err := c.Touch(t.Context(), "one", 1); err != nil || a.Turn != "one" || a.Grade != api.GradeScope {
		t.Errorf("%+v (%v)", a, err)
	}
	if _, err := c.Touch(t.Context(), "one", 2); !errors.Is(err, api.ErrStaleEpoch) {
		t.Errorf("%v", err)
	}
	if v, err := c.Take(t.Context(), "one", 1); err != nil || v.Epoch != 2 {
		t.Errorf("%+v (%v)", v, err)
	}
	for _, who := range s.engine.callers {
		f, err := who.Process()
		if err != nil {
			t.Errorf("a handle on who took it: %v", err)
			continue
		}
		f.Close()
	}
	if v, err := c.Freeze(t.Context(), "one", 0); err != nil || !v.Frozen {
		t.Errorf("%+v (%v)", v, err)
	}
	if v, err := c.Thaw(t.Context(), "one", 0); err != nil || v.Frozen {
		t.Errorf("%+v (%v)", v, err)
	}
	if p, err := c.Policy(t.Context()); err != nil || p.Policy[api.ReasonStop].Processes != api.FateEnd || p.Policy[api.ReasonFinished].Processes != api.FateKeep {
		t.Errorf("%+v (%v)", p, err)
	}
}

// What keeps a turn open is for who is outside of it, as its ending is: what runs
// in a turn could keep it for ever.
func TestOnlyFromOutside(t *testing.T) {
	found := 0
	for _, r := range routes() {
		switch r.path {
		case "/v1/turns/{turn}/touch", "/v1/turns/{turn}/take", "/v1/turns/{turn}/hold", "/v1/turns/{turn}/freeze", "/v1/turns/{turn}/thaw":
			found++
			inside := Peer{UID: 0, Known: true, Admin: true, InTurn: "mine"}
			if err := decide(inside, r.does, target{"mine", 0, true}); err == nil || err.Code != api.CodeForbidden {
				t.Errorf("%s from inside: %v", r.path, err)
			}
			if err := decide(Peer{UID: 7, Known: true}, r.does, target{"mine", 0, true}); err == nil || err.Code != api.CodeNotFound {
				t.Errorf("%s by another: %v", r.path, err)
			}
			if err := decide(Peer{UID: 7, Known: true}, r.does, target{"mine", 7, true}); err != nil {
				t.Errorf("%s by the owner: %v", r.path, err)
			}
		}
	}
	if found != 5 {
		t.Errorf("%d routes", found)
	}
}

// Who asks for a job is told of a job, also where there is no such turn: jobs are
// asked for long after their turns have gone.
func TestNoJobIsToldAsAJob(t *testing.T) {
	c := start(t, Config{}).client(t)
	for _, id := range []string{"absent-p1", "absent"} {
		_, err := c.Job(t.Context(), id)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeNotFound || e.Message != "no job "+strconv.Quote(id) || !strings.Contains(e.Remedy, "pinfold jobs") {
			t.Errorf("%s: %+v", id, err)
		}
	}
}
