package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
)

// Bounds of a request's body.
const (
	maxBody   = 4 << 20  // too_large above
	smallBody = 64 << 10 // above, it counts as heavy
)

// call is one request whose peer may make it.
type call struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	conn   *conn
	route  *route
	turn   string // ids, blank where the path has none
	proc   string
	job    string // its turn is turn
	query  url.Values
	watch  *watch
	heavy  bool // the party's leave to use much memory is held
	read   bool // the body was read to its end, or for as long as it may take
	status int  // of the answer, when it is not 200
}

func (c *call) caller() containment.Caller {
	who := c.conn.peer.caller()
	who.Process = c.conn.process
	return who
}

// handler makes a route's answer. The types are what the API's description is
// held against; nil where there is none, or more than one.
type handler struct {
	serve     func(ctx context.Context, c *call) (any, error)
	req, resp reflect.Type
	raw       bool // the body is bytes
}

// reads makes a handler of a function that takes no body.
func reads[Resp any](f func(context.Context, *call) (Resp, error)) handler {
	serve := func(ctx context.Context, c *call) (any, error) {
		c.dropFDs()
		if c.r.ContentLength != 0 { // unread, it would hide that the client has gone
			return nil, api.Errorf(api.CodeBadRequest, "%s takes no body", c.r.Method)
		}
		return f(ctx, c)
	}
	return handler{serve: serve, resp: reflect.TypeFor[Resp]()}
}

// takes makes a handler of a function that takes a JSON body. An empty body is
// the empty object.
func takes[Req, Resp any](f func(context.Context, *call, Req) (Resp, error)) handler {
	serve := func(ctx context.Context, c *call) (any, error) {
		var req Req
		if err := c.decode(&req); err != nil {
			return nil, err
		}
		if t := reflect.TypeFor[Req](); t != reflect.TypeFor[api.LaunchRequest]() && t != reflect.TypeFor[api.AdoptRequest]() {
			c.dropFDs()
		}
		fault.Point("request.read")
		return f(ctx, c, req)
	}
	return handler{serve: serve, req: reflect.TypeFor[Req](), resp: reflect.TypeFor[Resp]()}
}

// streams makes a handler of a function that reads the raw body by itself.
func streams[Resp any](f func(context.Context, *call) (Resp, error)) handler {
	serve := func(ctx context.Context, c *call) (any, error) {
		c.dropFDs()
		return f(ctx, c)
	}
	return handler{serve: serve, resp: reflect.TypeFor[Resp](), raw: true}
}

// dropFDs closes descriptors that came with a request that has no use for them.
func (c *call) dropFDs() {
	fds, _ := c.conn.rights.take()
	c.conn.rights.drop(fds)
}

// files are the descriptors that came with the request; the caller calls done.
func (c *call) files() (files []*os.File, done func(), err error) {
	fds, lost := c.conn.rights.take()
	if lost {
		c.conn.rights.drop(fds)
		return nil, func() {}, api.Errorf(api.CodeTooLarge, "too many descriptors: a request carries at most %d, all requests of a user %d",
			maxFDs, maxFDsParty)
	}
	return c.conn.rights.files(fds)
}

// decode reads the body: JSON, of bounded size, valid UTF-8 (bytes that are not
// would be replaced silently), one value, no field that nobody knows, and none twice.
func (c *call) decode(req any) error {
	body, err := c.body()
	if err != nil || len(body) == 0 {
		return err
	}
	switch t, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); {
	case err != nil || t != "application/json":
		return api.Errorf(api.CodeBadRequest, "the body's content type is %q, not application/json", clip(c.r.Header.Get("Content-Type"))).
			WithRemedy("send Content-Type: application/json (curl: --json)")
	case !utf8.Valid(body):
		return api.Errorf(api.CodeBadRequest, "the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(req); err != nil {
		return badJSON(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return api.Errorf(api.CodeBadRequest, "something follows the JSON value")
	}
	for _, refuse := range []func([]byte, any) error{noneTwice, noNulls, noSoftless} {
		if err := refuse(body, req); err != nil {
			return err
		}
	}
	return nil
}

func badJSON(err error) *api.Error {
	var typ *json.UnmarshalTypeError
	field, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	switch {
	case unknown:
		return api.Errorf(api.CodeBadRequest, "unknown field %s", clip(field)).
			WithRemedy("GET /v1/openapi.json describes the request")
	case errors.As(err, &typ) && typ.Field != "":
		return api.Errorf(api.CodeBadRequest, "field %q must be %s, not %s", clip(typ.Field), wanted(typ.Type), clip(typ.Value)).
			WithRemedy("GET /v1/openapi.json describes the request")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return api.Errorf(api.CodeBadRequest, "the JSON ends too early")
	}
	return api.Errorf(api.CodeBadRequest, "the body is not the JSON that was expected: %s", clip(strings.TrimPrefix(err.Error(), "json: ")))
}

// wanted is what JSON a Go type takes, in words.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "string"
	}
	return "whole number within its bounds"
}

// body reads the whole body within its time. A large one waits for its
// party's leave first.
func (c *call) body() ([]byte, error) {
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(c.s.cfg.BodyTimeout))
	in := http.MaxBytesReader(c.w, c.r.Body, maxBody)
	b, err := io.ReadAll(io.LimitReader(in, smallBody))
	if err == nil && len(b) == smallBody {
		if err = c.lift(); err == nil {
			var rest []byte
			rest, err = io.ReadAll(in)
			b = append(b, rest...)
		}
	}
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return nil, api.Errorf(api.CodeTooLarge, "the body is larger than %d bytes", maxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.read = true // there is no more time for the rest
		return nil, api.Errorf(api.CodeTimeout, "the body did not arrive within %s", c.s.cfg.BodyTimeout)
	case err != nil:
		return nil, asAPI(err, api.CodeBadRequest, "read the body")
	}
	c.read = true
	return b, rc.SetReadDeadline(time.Time{})
}

// lift waits for leave to use much memory; settle gives it back, once.
func (c *call) lift() error {
	if c.heavy {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), c.s.cfg.BodyTimeout)
	defer cancel()
	if err := c.conn.share.begin(ctx); err != nil {
		return api.Errorf(api.CodeUnavailable, "too many large requests at a time for uid %d", c.conn.peer.UID)
	}
	c.heavy = true
	return nil
}

func (c *call) settle() {
	if c.heavy {
		c.heavy = false
		c.conn.share.done()
	}
}

// ServeHTTP answers one request. It keeps the call's share until the answer is
// written.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r}
	defer c.settle()
	if c.conn, _ = connOf(r.Context()); c.conn != nil {
		c.conn.ours.Store(true)
		var ctx context.Context
		ctx, c.watch = c.conn.watch(r.Context())
		defer c.watch.end()
		c.r = r.WithContext(ctx)
	}
	v, err := c.answer()
	if err != nil {
		v = s.fail(c, err)
	}
	if a, ok := v.(streamer); ok {
		a.stream(c)
		return
	}
	if c.watch != nil {
		c.watch.stop()
	}
	c.write(v)
}

// answer checks the request and hands it to its route.
func (c *call) answer() (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.s.cfg.Log.Error("panic while answering", "method", c.r.Method, "path", clip(c.r.URL.Path), "panic", p, "stack", string(debug.Stack()))
			v, err = nil, api.Errorf(api.CodeInternal, "the service made a mistake; its log has the stack")
		}
	}()
	if c.conn == nil {
		return nil, errors.New("request without a connection")
	}
	route, ids, aerr := match(c.s.routes, c.r.Method, c.r.URL)
	if aerr != nil {
		return nil, aerr
	}
	c.route, c.turn, c.proc, c.job = route, ids["turn"], ids["process"], ids["job"]
	if c.job != "" { // whoever may deal with the turn that launched it may deal with the job
		var ok bool
		if c.turn, _, ok = containment.JobTurn(c.job); !ok {
			return nil, noJob(c.job)
		}
	}
	if err := c.allowed(c.r.Context()); err != nil {
		return nil, err
	}
	if err := c.parseQuery(); err != nil {
		return nil, err
	}
	if route.heavy {
		if err := c.lift(); err != nil {
			return nil, err
		}
	}
	return route.answer.serve(c.r.Context(), c)
}

// allowed applies the rules. Whose turn it is is asked only where that matters.
func (c *call) allowed(ctx context.Context) error {
	t := target{id: c.turn}
	if t.id != "" && c.conn.peer.Known && (c.conn.peer.InTurn == "" || c.conn.peer.InTurn == t.id) {
		owner, err := c.s.cfg.Engine.Owner(ctx, t.id)
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			return err
		}
		t.owner, t.found = owner, err == nil
	}
	if err := decide(c.conn.peer, c.route.does, t); err != nil {
		if c.job != "" && err.Code == api.CodeNotFound {
			return noJob(c.job)
		}
		return err
	}
	return nil
}

func (c *call) parseQuery() error {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "the query cannot be read: %s", clip(err.Error()))
	}
	for name, values := range q {
		switch {
		case !slices.Contains(c.route.query, name):
			return api.Errorf(api.CodeBadRequest, "unknown parameter %q", clip(name)).WithRemedy("this path takes %s", cmpList(c.route.query))
		case len(values) > 1:
			return api.Errorf(api.CodeBadRequest, "parameter %q is given %d times", name, len(values))
		}
	}
	c.query = q
	return nil
}

// notBlank refuses parameters that are given and say nothing: a filter that is
// blank would mean everything.
func (c *call) notBlank(names ...string) error {
	for _, name := range names {
		if c.query.Has(name) && c.query.Get(name) == "" {
			return api.Errorf(api.CodeBadRequest, "%s is blank", name).WithRemedy("leave it out, or name one")
		}
	}
	return nil
}

func cmpList(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
