package containment

import (
	"context"
	"errors"

	"pinfold.dev/api"
)

// Input writes bytes to a process's stdin, at most MaxInput, and with eof closes
// it after them. It returns when they were taken, which is as fast as the
// process reads. When ctx ends first, they may be taken all the same. Nothing to
// write only asks whether that may be done.
func (m *Manager) Input(ctx context.Context, id, proc string, epoch int64, data []byte, eof bool) (api.Grade, error) {
	p, h, err := m.writableProcess(id, proc, epoch)
	if err != nil {
		return "", err
	}
	g := h.Facts().Grade
	if len(data) == 0 && !eof {
		return g, nil
	}
	// One at a time: what a keeper holds for a process stays bounded, also when
	// clients come, write and vanish.
	select {
	case p.input <- struct{}{}:
	case <-ctx.Done():
		return g, notRead(id, proc)
	}
	done := make(chan error, 1)
	go func() {
		err := h.Input(context.WithoutCancel(ctx), proc, data, eof)
		<-p.input
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, api.ErrStdinClosed) {
			return g, stdinClosed(id, proc)
		}
		if err != nil {
			return g, asAPI(err, api.CodeInternal, "write to stdin of "+proc)
		}
		return g, nil
	case <-ctx.Done():
		return g, notRead(id, proc)
	}
}

func notRead(id, proc string) *api.Error {
	return api.Errorf(api.CodeTimeout, "process %s of turn %s does not read its stdin", proc, id)
}

// writableProcess finds a process whose stdin can be written to.
func (m *Manager) writableProcess(id, proc string, epoch int64) (*process, Hold, error) {
	v, t, err := m.look(id, proc)
	if err != nil {
		return nil, nil, err
	}
	if v.Stdin == "" {
		return nil, nil, api.Errorf(api.CodeBadRequest, "stdin of process %s in turn %s cannot be written to", proc, id).
			WithRemedy("launch with stdin of mode pipe or pty")
	}
	if t == nil {
		return nil, nil, stdinClosed(id, proc)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case epoch != 0 && epoch != t.view.Epoch:
		return nil, nil, staleEpoch(id, epoch, t.view.Epoch)
	case t.hold == nil || t.lost != "":
		return nil, nil, stdinClosed(id, proc)
	}
	t.clocks.active(t.clock(), api.ActivityTouch)
	return t.byID[proc], t.hold, nil
}

func stdinClosed(id, proc string) *api.Error {
	return api.Errorf(api.CodeStdinClosed, "nobody reads stdin of process %s in turn %s any more", proc, id)
}

// Resize changes the size of a process's terminal.
func (m *Manager) Resize(ctx context.Context, id, proc string, req api.ResizeRequest) (api.ResizeAnswer, error) {
	v, t, err := m.look(id, proc)
	if err != nil {
		return api.ResizeAnswer{}, err
	}
	if !v.Terminal {
		return api.ResizeAnswer{}, api.Errorf(api.CodeBadRequest, "process %s in turn %s has no terminal", proc, id).
			WithRemedy("launch with a stream of mode pty")
	}
	size := clamp(api.WinSize{Rows: req.Rows, Cols: req.Cols})
	a := api.ResizeAnswer{Process: proc, Rows: size.Rows, Cols: size.Cols, Grade: v.Grade}
	if t == nil {
		return a, nil // nobody looks at it any more
	}
	if err := t.checkEpoch(req.Epoch); err != nil {
		return a, err
	}
	h := t.held()
	if h == nil {
		return a, nil
	}
	if err := h.Resize(ctx, proc, size); err != nil {
		return a, asAPI(err, api.CodeInternal, "resize the terminal of "+proc)
	}
	return a, nil
}
