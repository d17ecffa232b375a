package client

import (
	"context"
	"net/url"
	"os"

	"pinfold.dev/api"
)

// Launch starts a process in a turn. The files travel with the request; a
// stream whose mode is pass names one by its index. They stay the caller's. Words of argv and env need not be UTF-8.
func (c *Client) Launch(ctx context.Context, turn string, req api.LaunchRequest, files ...*os.File) (api.Process, error) {
	return post[api.Process](ctx, c, launchable(req), nil, files, "turns", turn, "processes")
}

// Run is Launch and WaitProcess in one request. When ctx ends first, the error
// is ctx's and the process goes on. A service that stops meanwhile answers with
// the process as it is then: it may be running still.
func (c *Client) Run(ctx context.Context, turn string, req api.LaunchRequest, files ...*os.File) (api.Process, error) {
	return post[api.Process](ctx, c, launchable(req), url.Values{"wait": {"true"}}, files, "turns", turn, "processes")
}

// Processes lists what was launched in a turn, oldest first.
func (c *Client) Processes(ctx context.Context, turn string) (api.ProcessList, error) {
	return get[api.ProcessList](ctx, c, nil, "turns", turn, "processes")
}

// Process returns one launched process.
func (c *Client) Process(ctx context.Context, turn, process string) (api.Process, error) {
	return get[api.Process](ctx, c, nil, "turns", turn, "processes", process)
}

// WaitProcess returns once the process has ended. When ctx ends first, the
// error is ctx's and the process goes on.
func (c *Client) WaitProcess(ctx context.Context, turn, process string) (api.Process, error) {
	return get[api.Process](ctx, c, nil, "turns", turn, "processes", process, "wait")
}

// Signal sends a signal to a launched process, through its handle.
func (c *Client) Signal(ctx context.Context, turn, process string, req api.SignalRequest) (api.SignalAnswer, error) {
	return post[api.SignalAnswer](ctx, c, req, nil, nil, "turns", turn, "processes", process, "signal")
}

// Acknowledge says that a process's exit and output were taken: the service
// keeps the output no longer.
func (c *Client) Acknowledge(ctx context.Context, turn, process string) (api.Process, error) {
	return post[api.Process](ctx, c, struct{}{}, nil, nil, "turns", turn, "processes", process, "ack")
}

// Resize changes the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, turn, process string, req api.ResizeRequest) (api.ResizeAnswer, error) {
	return post[api.ResizeAnswer](ctx, c, req, nil, nil, "turns", turn, "processes", process, "resize")
}

// Join moves this very process into a turn: it stays its parent's child, and
// ends with the turn.
func (c *Client) Join(ctx context.Context, turn string, req api.JoinRequest) (api.Process, error) {
	return post[api.Process](ctx, c, req, nil, nil, "turns", turn, "join")
}

// Adopt takes a process that runs already into a turn. pidfd names it, whatever
// becomes of its number; nil: req.Process has its start ticks or its pidfs inode.
// It stays the caller's.
func (c *Client) Adopt(ctx context.Context, turn string, req api.AdoptRequest, pidfd *os.File) (api.Process, error) {
	var files []*os.File
	if pidfd != nil {
		files = append(files, pidfd)
	}
	return post[api.Process](ctx, c, req, nil, files, "turns", turn, "adopt")
}
