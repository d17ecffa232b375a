package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"pinfold.dev/api"
)

// Policy is what happens to the processes and jobs of a turn that says nothing,
// for each reason that it is ended for.
func (c *Client) Policy(ctx context.Context) (api.PolicyAnswer, error) {
	return get[api.PolicyAnswer](ctx, c, nil, "policy")
}

// Touch says that a turn is wanted: its lease is renewed, and it is not idle. An
// epoch that is not 0 must be the turn's.
func (c *Client) Touch(ctx context.Context, turn string, epoch int64) (api.TouchAnswer, error) {
	return post[api.TouchAnswer](ctx, c, api.TouchRequest{Epoch: epoch}, nil, nil, "turns", turn, "touch")
}

// Take makes this process a turn's client. The turn that it answers has a new
// epoch: calls that carry an older one are refused from then on.
func (c *Client) Take(ctx context.Context, turn string, epoch int64) (api.Turn, error) {
	return post[api.Turn](ctx, c, api.TakeRequest{Epoch: epoch}, nil, nil, "turns", turn, "take")
}

// Freeze stops every process of a turn, its clocks and its deadlines.
func (c *Client) Freeze(ctx context.Context, turn string, epoch int64) (api.Turn, error) {
	return post[api.Turn](ctx, c, api.FreezeRequest{Epoch: epoch}, nil, nil, "turns", turn, "freeze")
}

// Thaw lets them go on.
func (c *Client) Thaw(ctx context.Context, turn string, epoch int64) (api.Turn, error) {
	return post[api.Turn](ctx, c, api.FreezeRequest{Epoch: epoch}, nil, nil, "turns", turn, "thaw")
}

// Holding is a turn that is held: as long as it is not closed, its client is
// there.
type Holding struct {
	body io.Closer
	in   *bufio.Reader
}

// Hold holds a turn that is bound to a connection. It returns once that counts,
// and the turn is held until the Holding is closed or ctx ends.
func (c *Client) Hold(ctx context.Context, turn string, epoch int64) (*Holding, error) {
	ask := request{method: http.MethodGet, accept: api.NDJSON, path: []string{"turns", turn, "hold"}}
	if epoch != 0 {
		ask.q = url.Values{"epoch": {strconv.FormatInt(epoch, 10)}}
	}
	resp, err := c.send(ctx, ask)
	if err != nil {
		return nil, err
	}
	h := &Holding{body: resp.Body, in: bufio.NewReader(resp.Body)}
	if _, err := h.next(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Wait returns when the turn is over, with its state. api.ErrStaleEpoch: another
// has taken it; api.ErrUnavailable: the service has stopped, or the connection to
// it is lost, and the turn is to be held again.
func (h *Holding) Wait() (api.State, error) {
	l, err := h.next()
	switch {
	case err != nil:
		return "", err
	case l.Error != nil:
		return l.State, l.Error
	}
	return l.State, nil
}

// next is the next line that says something.
func (h *Holding) next() (l api.HoldLine, err error) {
	for l == (api.HoldLine{}) {
		b, err := h.in.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return l, api.Errorf(api.CodeUnavailable, "the connection that holds the turn was lost").WithRemedy("hold it again")
		case err != nil:
			return l, err
		}
		if err := json.Unmarshal(b, &l); err != nil {
			return l, fmt.Errorf("read a line of hold: %w", err)
		}
	}
	return l, nil
}

// Close lets the turn go.
func (h *Holding) Close() error { return h.body.Close() }
