package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// answering is the socket of one that answers as it is told to.
func answering(t *testing.T, answer http.HandlerFunc) (path string) {
	t.Helper()
	path = t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: answer}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return path
}

// A service that goes away while a turn of run's own is launched into, and comes
// back, is asked again to end that turn: nobody else knows of it.
func TestRunLeavesNoTurnOverARestart(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	path := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/turns":
			_, _ = io.WriteString(w, `{"id":"t"}`)
			return
		case "/v1/turns/t/abandon", "/v1/turns/t/finish":
			if asked.Add(1) > 1 {
				_, _ = io.WriteString(w, `{"turn":"t"}`)
				return
			}
		}
		panic(http.ErrAbortHandler) // it has gone
	})
	for name, start := range map[string]func(*runner) error{
		"run":      func(r *runner) error { _, err := r.start(t.Context()); return err },
		"in place": func(r *runner) error { r.turn, r.own = "t", true; r.letGo(t.Context()); return io.EOF },
	} {
		asked.Store(0)
		var said bytes.Buffer
		r := &runner{app: &app{stderr: &said}, client: &client.Client{Socket: path}, launch: api.LaunchRequest{Argv: []string{"true"}}}
		if err := start(r); err == nil || asked.Load() != 2 || said.Len() > 0 {
			t.Errorf("%s: %v, asked %d times, said %q", name, err, asked.Load(), said.String())
		}
	}
}

// Input on a connection that the service has no room for is not lost.
func TestInputIsGivenAgainWhenThereIsNoRoom(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	path := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(api.Errorf(api.CodeUnavailable, "too many").With("refused", "connection"))
			return
		}
		b, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(api.InputAnswer{Bytes: int64(len(b))})
	})
	f := feeder{client: &client.Client{Socket: path}, turn: "t", process: "p1"}
	if err := f.write(t.Context(), []byte("abc"), false); err != nil || f.taken != 3 || asked.Load() != 2 {
		t.Errorf("%v, %d bytes, asked %d times", err, f.taken, asked.Load())
	}
}

// An environment may hold anything; a command is not refused for that.
func TestRunLeavesOutWordsThatAreNoVariables(t *testing.T) {
	if os.Getenv("PINFOLD_TEST_NAMELESS") != "" {
		a := &app{getenv: os.Getenv}
		req, err := (&runFlags{cwd: "/"}).request(a.runCmd(), []string{"true"})
		if err != nil || !slices.Contains(req.Env, "A=1") || slices.Contains(req.Env, "NOTHING") || slices.Contains(req.Env, "=odd") {
			t.Errorf("%q (%v)", req.Env, err)
		}
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = []string{"PINFOLD_TEST_NAMELESS=1", "NOTHING", "=odd", "A=1"}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A turn of ours that could not be ended is ended by the service, if it is bound to us:
// there is nothing to be done about it. Others stay open.
func TestStillOpen(t *testing.T) {
	r, err := runner{turn: "k3v9"}, errors.New("no answer")
	if s := r.stillOpen(err, "pinfold finish k3v9"); s != "pinfold: the turn k3v9 is still open: no answer\n  try: pinfold finish k3v9\n" {
		t.Errorf("%q", s)
	}
	r.begin.Client.Bind = api.BindProcess
	if s := r.stillOpen(err, "pinfold finish k3v9"); strings.Contains(s, "try:") || !strings.Contains(s, "no answer; the service ends it") {
		t.Errorf("%q", s)
	}
}
