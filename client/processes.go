package client

import (
	"context"
	"net"
	"net/http"
	"os"

	"pinfold.dev/api"
)

// Launch starts a process in a turn. The files travel with the request; a
// stream whose mode is pass names one by its index. They stay the caller's.
func (c *Client) Launch(ctx context.Context, turn string, req api.LaunchRequest, files ...*os.File) (api.Process, error) {
	if len(files) == 0 {
		return post[api.Process](ctx, c, req, nil, "turns", turn, "processes")
	}
	// Descriptors go with a request's first byte, so it has a connection of
	// its own.
	h := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			nc, err := c.dial(ctx)
			if err != nil {
				return nil, err
			}
			return newSender(nc, files)
		},
	}}
	defer h.CloseIdleConnections()
	return send[api.Process](ctx, h, req, nil, []string{"turns", turn, "processes"})
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
	return post[api.SignalAnswer](ctx, c, req, nil, "turns", turn, "processes", process, "signal")
}
