package server

import (
	"context"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// Clocks is the part of an Engine that deals with what keeps a turn open.
type Clocks interface {
	// Touch renews the turn's lease and counts as activity.
	Touch(ctx context.Context, id string, req api.TouchRequest) (api.TouchAnswer, error)
	// Take makes the caller the turn's client, under a new epoch.
	Take(ctx context.Context, id string, c containment.Caller, req api.TakeRequest) (api.Turn, error)
	// Hold says that the turn's client is there until ctx ends, and returns when
	// the turn is over, another has taken it, or ctx ends. held is called once it
	// counts. A ctx that is cancelled with a cause of its own says that the
	// service stops, and nothing of the client.
	Hold(ctx context.Context, id string, epoch int64, held func(api.Turn)) (api.Turn, error)
	// Freeze stops every process of the turn, and its clocks; Thaw lets them go on.
	Freeze(ctx context.Context, id string, c containment.Caller, req api.FreezeRequest) (api.Turn, error)
	Thaw(ctx context.Context, id string, c containment.Caller, req api.FreezeRequest) (api.Turn, error)
}
