package server

import (
	"context"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// Happenings is the part of an Engine that tells what happened. See Engine for
// what holds of all methods.
type Happenings interface {
	// Events reads what happened; see containment.Events.
	Events(ctx context.Context, q containment.EventQuery) (events []api.Event, next int64, err error)
	// WaitEvents returns when there is an event after seq, or ctx ends.
	WaitEvents(ctx context.Context, seq int64) error
	// Acknowledged is how far a consumer is, AckEvents says how far it is now.
	Acknowledged(ctx context.Context, owner uint32, consumer string) (int64, error)
	AckEvents(ctx context.Context, owner uint32, req api.AckRequest) (api.AckAnswer, error)
}
