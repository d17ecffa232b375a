package server

import (
	"context"
	"net/http"

	"pinfold.dev/api"
)

func listProcesses(ctx context.Context, c *call) (api.ProcessList, error) {
	t, err := c.s.cfg.Engine.Turn(ctx, c.turn)
	if t.Processes == nil {
		t.Processes = []api.Process{}
	}
	return api.ProcessList{Processes: t.Processes, Grade: t.Grade}, err
}

// launch starts a process. With wait=true it answers when that has ended; where
// the wait ends first, with the process as it was: it runs, so there is no
// error to tell.
func launch(ctx context.Context, c *call, req api.LaunchRequest) (api.Process, error) {
	stay, err := c.flag("wait", false)
	if err == nil {
		_, err = c.number("timeout_ms", 0, maxWait.Milliseconds())
	}
	if err != nil {
		c.dropFDs()
		return api.Process{}, err
	}
	p, err := launchNow(ctx, c, req)
	if err != nil || !stay {
		return p, err
	}
	c.proc = p.ID
	ended, err := waitProcess(ctx, c)
	if err != nil {
		return p, nil
	}
	return ended, nil
}

// launchNow hands the descriptors that came with the request to the engine, and
// closes the service's copies when it has answered.
func launchNow(ctx context.Context, c *call, req api.LaunchRequest) (api.Process, error) {
	files, done, err := c.files()
	defer done()
	if err != nil {
		return api.Process{}, err
	}
	c.status = http.StatusCreated
	return c.s.cfg.Engine.Launch(ctx, c.turn, c.caller(), req, files)
}

func showProcess(ctx context.Context, c *call) (api.Process, error) {
	return c.s.cfg.Engine.Process(ctx, c.turn, c.proc)
}

func signal(ctx context.Context, c *call, req api.SignalRequest) (api.SignalAnswer, error) {
	return c.s.cfg.Engine.Signal(ctx, c.turn, c.proc, req)
}

func waitProcess(ctx context.Context, c *call) (api.Process, error) {
	return wait(ctx, c, func(ctx context.Context) (api.Process, error) {
		return c.s.cfg.Engine.WaitProcess(ctx, c.turn, c.proc)
	})
}
