package containment

import (
	"testing"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

var allStates = []api.State{api.StateOpen, api.StateFinishing, api.StateEnding, api.StateFinished,
	api.StateAbandoned, api.StateUnkillable, api.StateLost}

var allEvents = []event{evFinish, evAbandon, evLeave, evEmpty, evSettled, evBoundOut, evLost}

func TestTerminalStatesNeverChange(t *testing.T) {
	for _, s := range allStates {
		if !s.Terminal() {
			continue
		}
		for _, ev := range allEvents {
			if got := next(s, ev); got.state != s || got.effect != doNothing {
				t.Errorf("%s and event %d give %+v", s, ev, got)
			}
		}
	}
}

func TestLife(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []event
		want   api.State
	}{
		{"finished", []event{evFinish, evSettled}, api.StateFinished},
		{"finished, nothing left", []event{evFinish, evEmpty}, api.StateFinished},
		{"abandoned", []event{evAbandon, evEmpty}, api.StateAbandoned},
		{"finish first, then abandon", []event{evFinish, evAbandon, evSettled}, api.StateFinished},
		{"abandon first, then finish", []event{evAbandon, evFinish, evEmpty}, api.StateAbandoned},
		{"abandoned twice", []event{evAbandon, evAbandon, evEmpty, evAbandon}, api.StateAbandoned},
		{"unkillable, then gone", []event{evAbandon, evBoundOut, evEmpty}, api.StateAbandoned},
		{"unkillable stays so", []event{evAbandon, evBoundOut, evAbandon, evFinish}, api.StateUnkillable},
		{"left, not ended", []event{evLeave, evAbandon, evSettled}, api.StateAbandoned},
		{"left, and nothing is left", []event{evLeave, evEmpty}, api.StateAbandoned},
		{"lost", []event{evLost, evAbandon}, api.StateLost},
		{"nothing to settle while open", []event{evEmpty, evSettled, evBoundOut}, api.StateOpen},
	} {
		s := api.StateOpen
		for _, ev := range c.events {
			s = next(s, ev).state
		}
		if s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

// Whatever happens to a turn, exactly one ending is carried out.
func TestOneEnding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, endings := api.StateOpen, 0
		for _, ev := range rapid.SliceOf(rapid.SampledFrom(allEvents)).Draw(t, "events") {
			st := next(s, ev)
			if st.effect == doFinish || st.effect == doEnd || st.effect == doLeave {
				endings++
			}
			if s.Terminal() && st.state != s {
				t.Fatalf("%s became %s", s, st.state)
			}
			if s == api.StateOpen && st.state == api.StateUnkillable {
				t.Fatal("unkillable without an ending")
			}
			s = st.state
		}
		if endings > 1 {
			t.Fatalf("%d endings", endings)
		}
	})
}
