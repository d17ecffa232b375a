package server

import (
	"context"
	"net/http"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
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
	c.settle() // what was large is over, the process may take its time
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
	fault.Point("rights.taken")
	p, err := c.s.cfg.Engine.Launch(ctx, c.turn, c.caller(), req, files)
	if !p.Repeated {
		c.status = http.StatusCreated
	}
	return p, err
}

func showProcess(ctx context.Context, c *call) (api.Process, error) {
	return c.s.cfg.Engine.Process(ctx, c.turn, c.proc)
}

func signal(ctx context.Context, c *call, req api.SignalRequest) (api.SignalAnswer, error) {
	return c.s.cfg.Engine.Signal(ctx, c.turn, c.proc, req)
}

// drain is the parameter drain_ms; -1 when it is not there.
func (c *call) drain() (time.Duration, error) {
	if !c.query.Has("drain_ms") {
		return -1, nil
	}
	ms, err := c.number("drain_ms", 0, maxWait.Milliseconds())
	return time.Duration(ms) * time.Millisecond, err
}

func acknowledge(ctx context.Context, c *call, _ struct{}) (api.Process, error) {
	return c.s.cfg.Engine.Acknowledge(ctx, c.turn, c.proc)
}

func resize(ctx context.Context, c *call, req api.ResizeRequest) (api.ResizeAnswer, error) {
	return c.s.cfg.Engine.Resize(ctx, c.turn, c.proc, req)
}

// join hands on the caller's own process, as the kernel names it for this very
// connection (SO_PEERPIDFD, Linux 6.5).
func join(ctx context.Context, c *call, req api.JoinRequest) (api.Process, error) {
	peer, err := c.conn.process()
	if err != nil {
		return api.Process{}, err
	}
	defer peer.Close()
	c.status = http.StatusCreated
	return c.s.cfg.Engine.Join(ctx, c.turn, c.caller(), req, peer)
}

func waitProcess(ctx context.Context, c *call) (api.Process, error) {
	drain, err := c.drain()
	if err != nil {
		return api.Process{}, err
	}
	return wait(ctx, c, func(ctx context.Context) (api.Process, error) {
		p, err := c.s.cfg.Engine.WaitProcess(ctx, c.turn, c.proc)
		if err != nil || drain < 0 {
			return p, err
		}
		return c.s.cfg.Engine.Drain(ctx, c.turn, c.proc, drain)
	})
}
