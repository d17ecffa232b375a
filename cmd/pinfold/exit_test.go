package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

func TestCodeOf(t *testing.T) {
	for code, want := range map[api.Code]int{
		api.CodeNotFound: exitNotFound, api.CodeForbidden: exitRefused, api.CodeTurnOver: exitRefused,
		api.CodeStaleEpoch: exitRefused, api.CodeGradeUnavailable: exitRefused, api.CodeTimeout: exitTimeout,
		api.CodeInternal: exitService, api.CodeUnavailable: exitService, api.CodeKeeperLost: exitService,
	} {
		if got := codeOf(fmt.Errorf("wrapped: %w", api.Errorf(code, "x"))); got != want {
			t.Errorf("codeOf(%s) = %d, want %d", code, got, want)
		}
	}
	if got := codeOf(errors.New("x")); got != exitService {
		t.Errorf("codeOf(other) = %d, want %d", got, exitService)
	}
}

func TestLaunchError(t *testing.T) {
	exec := api.Errorf(api.CodeExecFailed, "x")
	for want, err := range map[int]error{
		exitNoExec:  exec.With("errno_name", "ENOENT"),
		exitNotExec: exec.With("errno_name", "EACCES"),
		exitService: api.Errorf(api.CodeLaunchRefused, "x").With("errno_name", "ENOENT"),
	} {
		var e *exitError
		if !errors.As(launchError(err), &e) || e.code != want {
			t.Errorf("launchError(%v) exits %v, want %d", err, e, want)
		}
	}
}

// A status that nobody saw is no code, least of all 0 or 255.
func TestExitAs(t *testing.T) {
	a := &app{}
	for want, s := range map[int]api.Status{
		0:   {State: api.ProcessExited},
		7:   {State: api.ProcessExited, Code: 7},
		143: {State: api.ProcessSignaled, SignalNumber: 15},
		137: {State: api.ProcessOOM, SignalNumber: 9},
	} {
		if got := a.exitCode(exitAs(api.Process{Status: s})); got != want {
			t.Errorf("exit as %+v: %d, want %d", s, got, want)
		}
	}
	for _, s := range []api.Status{{State: api.ProcessLost, Why: "keeper killed"}, {State: api.ProcessRunning}, {}} {
		var told strings.Builder
		a := &app{stderr: &told}
		if got := a.exitCode(exitAs(api.Process{ID: "p1", Status: s})); got != exitService || told.Len() == 0 {
			t.Errorf("exit as %+v: %d, told %q", s, got, told.String())
		}
	}
}

func TestInsist(t *testing.T) {
	for _, c := range []struct {
		name  string
		fail  error
		calls int
	}{
		{"the service's own error is final", api.Errorf(api.CodeNotFound, "x"), 1},
		{"an unreachable service is asked again", api.Errorf(api.CodeUnavailable, "x"), 3},
		{"so is one whose connection broke", errors.New("broken"), 3},
	} {
		n := 0
		err := insist(context.Background(), func(context.Context) error {
			if n++; n < 3 {
				return c.fail
			}
			return nil
		})
		if n != c.calls || (err == nil) != (c.calls == 3) {
			t.Errorf("%s: %d calls, error %v", c.name, n, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := insist(ctx, func(context.Context) error { return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Errorf("insist with an ended context: %v", err)
	}
}

func TestComplain(t *testing.T) {
	for want, err := range map[string]error{
		"pinfold: no turn x\n":                          api.Errorf(api.CodeNotFound, "no turn x"),
		"pinfold: no turn x\n  try: pinfold ps\n":       api.Errorf(api.CodeNotFound, "no turn x").WithRemedy("pinfold ps"),
		"pinfold: wait: no turn x\n  try: pinfold ps\n": fmt.Errorf("wait: %w", api.Errorf(api.CodeNotFound, "no turn x").WithRemedy("pinfold ps")),
		"pinfold: plain\n":                              errors.New("plain"),
		"pinfold: evil \\x1b[2J\n":                      errors.New("evil \x1b[2J"),
		"pinfold: one\n  try: this\npinfold: two\n":     errors.Join(api.Errorf(api.CodeNotFound, "one").WithRemedy("this"), errors.New("two")),
	} {
		var told strings.Builder
		(&app{stderr: &told}).complain(err)
		if told.String() != want {
			t.Errorf("complain(%v) wrote %q, want %q", err, told.String(), want)
		}
	}
}

// What is told when the time of a wait is over: no end was seen. That something
// still runs nobody has looked at then, and a service that is away is told.
func TestWaitFailed(t *testing.T) {
	over, cancel := context.WithTimeoutCause(context.Background(), 1, errWaitTimeout)
	defer cancel()
	<-over.Done()
	a := &app{}
	for _, x := range []struct {
		err  error
		code int
		told string
	}{
		{&exitError{exitService, fmt.Errorf("GET: %w", context.DeadlineExceeded)}, exitTimeout, "no end was seen within 3s\n"},
		{api.Errorf(api.CodeTimeout, "still running"), exitTimeout, "no end was seen within 3s\n"},
		{&exitError{exitService, api.Errorf(api.CodeUnavailable, "nobody listens")}, exitTimeout, "no end was seen within 3s: nobody listens\n"},
		{api.Errorf(api.CodeNotFound, "no turn"), exitNotFound, "no turn\n"},
	} {
		var told strings.Builder
		a.stderr = &told
		if got := a.exitCode(waitFailed(over, 3*time.Second, x.err)); got != x.code || !strings.HasPrefix(told.String(), "pinfold: "+x.told) {
			t.Errorf("%v: exits with %d, told %q", x.err, got, told.String())
		}
		if err := waitFailed(context.Background(), 3*time.Second, x.err); err != x.err {
			t.Errorf("%v before its time: %v", x.err, err)
		}
	}
}

// Patience is for one absence of the service, however many there are.
func TestWasThere(t *testing.T) {
	lost, away := api.Errorf(api.CodeUnavailable, "the connection was lost"), api.Errorf(api.CodeUnavailable, "nobody listens").With("socket", "/x")
	for _, x := range []struct {
		held time.Duration
		err  error
		want bool
	}{{10 * time.Second, lost, true}, {patience + time.Second, lost, true}, {10 * time.Millisecond, lost, false}, {patience + time.Second, away, false}} {
		if got := wasThere(x.held, x.err); got != x.want {
			t.Errorf("held for %s, then %v: %v", x.held, x.err, got)
		}
	}
}
