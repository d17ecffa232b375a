package containment

import "pinfold.dev/api"

// An event is something that happened to a turn.
type event int

const (
	evFinish   event = iota // the gateway says that the work is done
	evAbandon               // somebody, or a clock, ends the turn
	evLeave                 // the same, by a rule that keeps the processes
	evEmpty                 // its cgroup was seen empty
	evSettled               // the leftovers are dealt with, and run on
	evBoundOut              // the time for ending it ran out, survivors remain
	evLost                  // its record is of another boot, or its cgroup is foreign
)

// An effect is what must be done because of an event; next only names it.
type effect int

const (
	doNothing effect = iota
	doFinish         // fence, deal with leftovers, account
	doEnd            // fence, ask, kill, see, account, remove
	doLeave          // fence, list what runs on, account
	doWatch          // wait for survivors to go
	doClose          // account for what nobody holds any more
)

// step is what next answers. joined tells that the event came second: the
// first ending stands, and its receipt is the answer.
type step struct {
	state  api.State
	effect effect
	joined bool
}

// life is the whole of a turn's life: state and event to state and effect.
// What is not in it cannot happen and changes nothing.
var life = map[api.State]map[event]step{
	api.StateOpen: {
		evFinish:  {state: api.StateFinishing, effect: doFinish},
		evAbandon: {state: api.StateEnding, effect: doEnd},
		evLeave:   {state: api.StateEnding, effect: doLeave},
		evLost:    {state: api.StateLost, effect: doClose},
	},
	api.StateFinishing: {
		evFinish:   {state: api.StateFinishing, joined: true},
		evAbandon:  {state: api.StateFinishing, joined: true}, // finished was first
		evLeave:    {state: api.StateFinishing, joined: true},
		evSettled:  {state: api.StateFinished},
		evEmpty:    {state: api.StateFinished},
		evBoundOut: {state: api.StateUnkillable, effect: doWatch},
		evLost:     {state: api.StateLost, effect: doClose},
	},
	api.StateEnding: {
		evFinish:   {state: api.StateEnding, joined: true},
		evAbandon:  {state: api.StateEnding, joined: true},
		evLeave:    {state: api.StateEnding, joined: true},
		evSettled:  {state: api.StateAbandoned},
		evEmpty:    {state: api.StateAbandoned},
		evBoundOut: {state: api.StateUnkillable, effect: doWatch},
		evLost:     {state: api.StateLost, effect: doClose},
	},
	api.StateUnkillable: {
		evFinish:  {state: api.StateUnkillable, joined: true},
		evAbandon: {state: api.StateUnkillable, joined: true},
		evLeave:   {state: api.StateUnkillable, joined: true},
		evEmpty:   {state: api.StateAbandoned},
		evLost:    {state: api.StateLost, effect: doClose},
	},
}

// next decides. It is pure: the same state and event always give the same step.
func next(s api.State, ev event) step {
	if st, ok := life[s][ev]; ok {
		return st
	}
	return step{state: s, joined: true} // terminal states never change
}

// asked is the event that a decided ending is.
func asked(e EndRequest) event {
	switch {
	case e.Reason == api.ReasonFinished:
		return evFinish
	case e.Keep:
		return evLeave
	}
	return evAbandon
}
