package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Client speaks to one service. The zero value is ready; it must not be copied
// after its first use, and may be used by many goroutines.
type Client struct {
	// Socket is the service's. Empty: $PINFOLD_SOCKET; else
	// $XDG_RUNTIME_DIR/pinfold/pinfold.sock where there is one; else
	// /run/pinfold/pinfold.sock.
	Socket string
	// Dial makes the connections; nil connects to the socket's path. Launch
	// with files needs a *net.UnixConn of it.
	Dial func(ctx context.Context, socket string) (net.Conn, error)

	once sync.Once
	http http.Client
}

// idle is how long an unused connection is kept: well under the service's own
// limit, so that a request does not meet a connection that is being closed.
const idle = 30 * time.Second

func (c *Client) client() *http.Client {
	c.once.Do(func() {
		c.http.Transport = newTransport(c.dial)
		c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	})
	return &c.http
}

// Close closes connections that are not in use. The Client may be used again.
func (c *Client) Close() error {
	c.client().CloseIdleConnections()
	return nil
}

// get asks for what is at a path.
func get[Resp any](ctx context.Context, c *Client, q url.Values, path ...string) (Resp, error) {
	return do[Resp](ctx, c, http.MethodGet, q, nil, nil, path)
}

// post sends a request to a path.
func post[Resp, Req any](ctx context.Context, c *Client, req Req, q url.Values, files []*os.File, path ...string) (Resp, error) {
	body, err := encode(req)
	if err != nil {
		var none Resp
		return none, err
	}
	return do[Resp](ctx, c, http.MethodPost, q, body, files, path)
}

// do is all of the HTTP: one request, with files along, and its answer or error.
func do[Resp any](ctx context.Context, c *Client, method string, q url.Values, body []byte, files []*os.File, path []string) (Resp, error) {
	ask := request{method: method, q: q, files: files, path: path, body: bytes.NewReader(body)}
	if body != nil {
		ask.typ = "application/json"
	}
	return read[Resp](ctx, c, ask)
}

// request is one request as it is asked.
type request struct {
	method string
	q      url.Values
	path   []string
	body   io.Reader
	typ    string // of the body
	accept string
	files  []*os.File
}

// send asks and returns an answer that is 2xx, whose body is to be closed.
func (c *Client) send(ctx context.Context, ask request) (*http.Response, error) {
	u, err := target(ask.q, ask.path)
	if err != nil {
		return nil, err
	}
	load, err := newCargo(ask.files)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(load.along(ctx), ask.method, u, ask.body)
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "make request: %v", err)
	}
	if ask.typ != "" {
		r.Header.Set("Content-Type", ask.typ)
	}
	if ask.accept != "" {
		r.Header.Set("Accept", ask.accept)
	}
	resp, err := c.client().Do(r)
	if err != nil {
		return nil, broken(ctx, ask.method, r.URL.Path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, broken(ctx, ask.method, r.URL.Path, err)
	}
	return nil, refusal(resp, b)
}

// read asks and decodes the answer.
func read[Resp any](ctx context.Context, c *Client, ask request) (Resp, error) {
	var v Resp
	resp, err := c.send(ctx, ask)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	at := resp.Request.URL.Path
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return v, broken(ctx, ask.method, at, err)
	}
	fault.Point("answer.read")
	if err := json.Unmarshal(b, &v); err != nil {
		return v, api.Errorf(api.CodeInternal, "read the answer to %s %s: %v", ask.method, at, err)
	}
	return v, nil
}

// target makes the URL. The host is for form's sake. Ids are checked here too:
// a blank one would be another path.
func target(q url.Values, path []string) (string, error) {
	u := "http://pinfold/v1"
	for _, p := range path {
		if p == "" || p == "." || p == ".." {
			return "", api.Errorf(api.CodeBadRequest, "%q is not an id", p)
		}
		u += "/" + url.PathEscape(p)
	}
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	return u, nil
}

// encode makes JSON of a request. JSON has no bytes that are not UTF-8:
// encoding/json would replace them, so they are refused.
func encode(req any) ([]byte, error) {
	if where, bad := notUTF8(req); bad {
		return nil, api.Errorf(api.CodeBadRequest, "%s is not UTF-8, which JSON cannot carry", where)
	}
	b, err := json.Marshal(req)
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "encode request: %v", err)
	}
	return b, nil
}

// refusal is the error that an answer tells.
func refusal(resp *http.Response, body []byte) error {
	var e api.Error
	if err := json.Unmarshal(body, &e); err == nil && e.Code != "" {
		return &e
	}
	code := api.CodeBadRequest
	if resp.StatusCode >= 500 {
		code = api.CodeInternal
	}
	return api.Errorf(code, "the service answered %s: %s", resp.Status, bytes.TrimSpace(body[:min(len(body), 200)]))
}

// broken is the error of a request that got no answer. It is not sent again:
// the service may have acted on it.
func broken(ctx context.Context, method, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", method, path, ctx.Err())
	}
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return api.Errorf(api.CodeUnavailable, "%s %s: the connection to the service was lost before it answered: %v", method, path, err).
		WithRemedy("it may have acted all the same: look before you ask again")
}

// socketPath is where the service listens.
func (c *Client) socketPath() string {
	if c.Socket != "" {
		return c.Socket
	}
	if s := os.Getenv("PINFOLD_SOCKET"); s != "" {
		return s
	}
	return findSocket(os.Getenv("XDG_RUNTIME_DIR"), systemSocket, inContainer())
}

const systemSocket = "/run/pinfold/pinfold.sock"

// findSocket is the user's own service's, else the system's, else the one that
// `pinfold-init --serve` has put elsewhere, in that order, as far as they are there.
func findSocket(runtimeDir, system string, elsewhere []string) string {
	var places []string
	if runtimeDir != "" {
		places = append(places, runtimeDir+"/pinfold/pinfold.sock")
	}
	for _, path := range append(append(places, system), elsewhere...) {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return system
}
