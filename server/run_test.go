package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// process is one that was answered.
func process(t *testing.T, body []byte) api.Process {
	t.Helper()
	var p api.Process
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return p
}

// launched waits until p2 of a turn is there.
func (s *service) launched(t *testing.T, turn string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		v, err := s.engine.get(turn)
		if err == nil && len(v.Processes) == 2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nothing was launched: %+v (%v)", v, err)
		}
	}
}

func TestLaunchAndWait(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	c, ctx := s.client(t), within(t)
	go func() {
		s.launched(t, "one")
		s.engine.change("one", func(t *api.Turn) { t.Processes[1].Status = api.Status{State: api.ProcessExited, Code: 3} })
	}()
	p := must[api.Process](t)(c.Run(ctx, "one", api.LaunchRequest{Argv: []string{"a"}}))
	if p.ID != "p2" || p.Status.State != api.ProcessExited || p.Status.Code != 3 {
		t.Errorf("answered with %+v", p)
	}
	if _, err := c.Run(ctx, "one", api.LaunchRequest{}); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("a launch that is refused: %v", err)
	}
}

// A wait that ends first is no error: the process runs, and the caller must
// learn its id.
func TestLaunchAndWaitEndsFirst(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	s.engine.add("two", 0)
	const path = "/v1/turns/one/processes?wait=true"
	status, body := s.ask(t, "POST", path+"&timeout_ms=20", `{"argv":["a"]}`)
	if v := process(t, body); status != http.StatusCreated || v.ID != "p2" || v.Status.State != api.ProcessRunning {
		t.Errorf("after its time: %d %s", status, body)
	}
	if status, body := s.ask(t, "POST", "/v1/turns/two/processes?wait=true&timeout_ms=x", `{"argv":["a"]}`); status != http.StatusBadRequest {
		t.Errorf("a bad timeout: %d %s", status, body)
	}
	if v, _ := s.engine.get("two"); len(v.Processes) != 1 {
		t.Error("a request that was refused has launched something")
	}
	go func() {
		s.launched(t, "two")
		_ = s.stop() // told by the cleanup
	}()
	status, body = s.ask(t, "POST", "/v1/turns/two/processes?wait=true", `{"argv":["a"]}`)
	if v := process(t, body); status != http.StatusCreated || v.ID != "p2" || v.Status.State != api.ProcessRunning {
		t.Errorf("of a service that stops: %d %s", status, body)
	}
}

// Large requests are few at a time while they are large: one that waits for its
// process is not any more, and keeps nobody from listing turns or from launching.
func TestWaitingIsNoLargeRequest(t *testing.T) {
	s := start(t, Config{BodyTimeout: 20 * time.Second})
	s.engine.add("one", uint32(os.Getuid()))
	large := launchText(`{"argv":["` + strings.Repeat("x", smallBody) + `"]}`)
	large = strings.Replace(large, "/processes", "/processes?wait=true", 1)
	for range maxHeavy {
		s.raw(t).send(t, large)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.engine.mu.Lock()
		n := len(s.engine.callers)
		s.engine.mu.Unlock()
		if n == maxHeavy {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d were launched", n)
		}
	}
	if _, err := s.client(t).Turns(within(t), false, ""); err != nil {
		t.Error(err)
	}
}

// However many wait for an ending, the next one begins at once.
func TestEndingsDoNotWaitForEndings(t *testing.T) {
	s := start(t, Config{})
	s.engine.slow = time.Hour
	state := func(id string) api.State {
		v, err := s.engine.get(id)
		if err != nil {
			t.Fatal(err)
		}
		return v.State
	}
	answers := make(chan error)
	for i := range maxHeavy + 2 {
		id := fmt.Sprintf("t%d", i)
		s.engine.add(id, uint32(os.Getuid()))
		s.engine.change(id, func(t *api.Turn) { t.Session = id })
		req := api.AbandonManyRequest{Session: id}
		if i%2 == 1 {
			req = api.AbandonManyRequest{Turns: []string{id}}
		}
		c := s.client(t)
		go func() {
			_, err := c.AbandonMany(context.Background(), req)
			answers <- err
		}()
		for end := time.Now().Add(time.Minute); state(id) == api.StateOpen; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d wait for the endings of others, and %s goes on", i, id)
			}
		}
	}
	for i := range maxHeavy + 2 {
		s.engine.change(fmt.Sprintf("t%d", i), func(t *api.Turn) { t.State = api.StateAbandoned })
	}
	for range maxHeavy + 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}
