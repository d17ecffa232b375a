package server

import (
	"context"
	"net/http"
	"os"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// Adopting is the part of an Engine that takes running processes into turns.
type Adopting interface {
	// Adopt takes a process in. The pidfd came along with the request, or is nil;
	// it stays the server's, and may be any descriptor.
	Adopt(ctx context.Context, id string, c containment.Caller, req api.AdoptRequest, pidfd *os.File) (api.Process, error)
}

// adopt hands on the descriptor that came with the request.
func adopt(ctx context.Context, c *call, req api.AdoptRequest) (api.Process, error) {
	files, done, err := c.files()
	defer done()
	if err != nil {
		return api.Process{}, err
	}
	var pidfd *os.File
	switch {
	case len(files) > 1:
		return api.Process{}, api.AdoptAmbiguous.Refuse(req.Process.PID, "%d descriptors came with the request", len(files)).WithRemedy("send one pidfd, or none")
	case len(files) == 1:
		pidfd = files[0]
	}
	p, err := c.s.cfg.Engine.Adopt(ctx, c.turn, c.caller(), req, pidfd)
	if !p.Repeated {
		c.status = http.StatusCreated
	}
	return p, err
}
