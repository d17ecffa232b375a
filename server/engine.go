package server

import (
	"context"
	"os"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// Engine is what the routes stand on; containment.Manager implements it. It
// applies no peer rule: the server has done that before it calls. Its errors
// are *api.Error; any other is answered as internal.
type Engine interface {
	Happenings
	Clocks
	Targets
	JobEngine
	UpkeepEngine
	Adopting
	// Host tells what this host can do.
	Host(ctx context.Context) (api.Host, error)
	// Grade is what new turns get.
	Grade() api.Grade
	// Begin opens a turn that the caller owns.
	Begin(ctx context.Context, c containment.Caller, req api.BeginRequest) (api.Turn, error)
	// Turns lists turns, oldest first.
	Turns(ctx context.Context, filter containment.TurnFilter) ([]api.Turn, error)
	// Turn returns one turn, whoever owns it.
	Turn(ctx context.Context, id string) (api.Turn, error)
	// TurnOfCgroup tells which turn's cgroup contains path, a 0:: line.
	TurnOfCgroup(path string) (id string, ok bool)
	// Launch starts a process in a turn, as the caller. The descriptors stay
	// the server's, which closes them when Launch has returned.
	Launch(ctx context.Context, id string, c containment.Caller, req api.LaunchRequest, fds []*os.File) (api.Process, error)
	// Process returns one launched process.
	Process(ctx context.Context, turn, proc string) (api.Process, error)
	// WaitProcess returns once the process has ended.
	WaitProcess(ctx context.Context, turn, proc string) (api.Process, error)
	// WaitTurn returns once the turn is terminal.
	WaitTurn(ctx context.Context, id string) (api.Turn, error)
	// Drain waits, at most d, for the kept output of a process that has ended
	// to end.
	Drain(ctx context.Context, turn, proc string, d time.Duration) (api.Process, error)
	// Output opens a kept stream of a process for reading; the server closes it.
	Output(ctx context.Context, turn, proc string, s api.StreamName) (containment.Reading, error)
	// Input has at most containment.MaxInput bytes written to a process's stdin,
	// and with eof closes it after them.
	Input(ctx context.Context, turn, proc string, epoch int64, data []byte, eof bool) (api.Grade, error)
	// Resize changes the size of a process's terminal.
	Resize(ctx context.Context, turn, proc string, req api.ResizeRequest) (api.ResizeAnswer, error)
	// Acknowledge says that a process's exit and output were taken.
	Acknowledge(ctx context.Context, turn, proc string) (api.Process, error)
	// Join moves the caller's own process, held by its pidfd, into a turn. The
	// descriptor stays the server's.
	Join(ctx context.Context, id string, c containment.Caller, req api.JoinRequest, peer *os.File) (api.Process, error)
	// Signal sends to a launched process through its handle.
	Signal(ctx context.Context, turn, proc string, req api.SignalRequest) (api.SignalAnswer, error)
	// Tree lists what the turn's cgroup holds.
	Tree(ctx context.Context, id string) (api.Tree, error)
	// Finish closes the turn; leftovers by policy.
	Finish(ctx context.Context, id string, c containment.Caller, req api.FinishRequest) (api.Receipt, error)
	// Abandon ends the turn and waits for the receipt. When ctx ends first,
	// the ending goes on regardless, and the error is timeout. That holds for
	// a ctx that had ended before the call: it starts the ending, no more.
	Abandon(ctx context.Context, id string, c containment.Caller, req api.AbandonRequest) (api.Receipt, error)
	// Receipt returns the receipt of an ended turn.
	Receipt(ctx context.Context, id string) (api.Receipt, error)
	// Receipts lists receipts, newest first; owner nil means everybody's.
	Receipts(ctx context.Context, owner *uint32, limit int) ([]api.Receipt, error)
	// Owner tells whose turn it is, also of turns long ended.
	Owner(ctx context.Context, id string) (uint32, error)
}
