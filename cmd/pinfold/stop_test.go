package main

import (
	"testing"

	"pinfold.dev/api"
)

// What a turn that is over holds may be unknown: then it is no turn to pass over.
func TestStopHolds(t *testing.T) {
	for _, x := range []struct {
		state api.State
		alive int
		holds bool
	}{
		{api.StateOpen, 0, true}, {api.StateOpen, -1, true}, {api.StateUnkillable, 0, true},
		{api.StateFinished, 2, true}, {api.StateFinished, -1, true}, {api.StateFinished, 0, false}, {api.StateLost, 0, false},
	} {
		if got := holds(api.Turn{State: x.state, Alive: x.alive}); got != x.holds {
			t.Errorf("%s with %d alive: %v", x.state, x.alive, got)
		}
	}
}
