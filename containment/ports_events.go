package containment

import (
	"context"

	"pinfold.dev/api"
)

// Events keeps what happened, in order. It is implemented by package
// internal/events.
type Events interface {
	// Add numbers an event and keeps it. It never waits for a disk. One whose key
	// was added before, also by an earlier service, is dropped; "" is no key.
	Add(key string, e api.Event)
	// After reads at most n events after seq, in order. Where some are not kept
	// any more, a gap is among them, also when seq is of a log that was lost: then
	// next is below it. next is the number to go on after.
	After(ctx context.Context, seq int64, n int) (events []api.Event, next int64, err error)
	// Wait returns when there is an event after seq, or ctx ends.
	Wait(ctx context.Context, seq int64) error
	// Last is the newest number; 0: there was none.
	Last() int64
	// Ack notes that a consumer has dealt with everything up to seq, durably.
	// repeated: it had before.
	Ack(owner uint32, consumer string, seq int64) (now int64, repeated bool, err error)
	// Acked is how far a consumer is; 0 for a new one.
	Acked(owner uint32, consumer string) (int64, error)
	// Flush returns when all that was added outlives this process, or ctx ends.
	Flush(ctx context.Context) error
	// Trouble is why events are kept in memory only at present; nil: they are not.
	Trouble() error
	// Forget drops the keys that belong to a turn which is over.
	Forget(turn string)
}

// noEvents keeps none.
type noEvents struct{}

func (noEvents) Add(string, api.Event) {}
func (noEvents) After(_ context.Context, seq int64, _ int) ([]api.Event, int64, error) {
	return nil, seq, nil
}
func (noEvents) Wait(ctx context.Context, _ int64) error        { <-ctx.Done(); return ctx.Err() }
func (noEvents) Last() int64                                    { return 0 }
func (noEvents) Ack(uint32, string, int64) (int64, bool, error) { return 0, false, nil }
func (noEvents) Acked(uint32, string) (int64, error)            { return 0, nil }
func (noEvents) Flush(context.Context) error                    { return nil }
func (noEvents) Trouble() error                                 { return nil }
func (noEvents) Forget(string)                                  {}
