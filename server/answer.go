package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// status is the one place where an error becomes an HTTP status. A code that
// is not here is a mistake of ours.
func status(c api.Code) int {
	switch c {
	case api.CodeBadRequest:
		return http.StatusBadRequest
	case api.CodeForbidden, api.CodePeerUnverifiable:
		return http.StatusForbidden
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeMethod:
		return http.StatusMethodNotAllowed
	case api.CodeTimeout:
		return http.StatusRequestTimeout
	case api.CodeTurnOver, api.CodeStaleEpoch, api.CodeConflict, api.CodeStdinClosed:
		return http.StatusConflict
	case api.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case api.CodeExecFailed, api.CodeLaunchRefused, api.CodeGradeUnavailable, api.CodeLimitUnavailable, api.CodeAdoptRefused, api.CodeUnsupported:
		return http.StatusUnprocessableEntity
	case api.CodeKeeperLost, api.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// asAPI keeps an *api.Error and makes one of any other.
func asAPI(err error, code api.Code, what string) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return api.Errorf(code, "%s: %s", what, clip(err.Error()))
}

// fail turns an error into the answer's body and status.
func (s *Server) fail(c *call, err error) *api.Error {
	var e *api.Error
	if !errors.As(err, &e) {
		s.cfg.Log.Error("internal error", "method", c.r.Method, "path", clip(c.r.URL.Path), "error", err)
		e = api.Errorf(api.CodeInternal, "%v", err)
	}
	body := *e
	if body.Grade == "" {
		body.Grade = s.gradeOf(c, &body)
	}
	c.status = status(body.Code)
	if allow := body.Details["allow"]; body.Code == api.CodeMethod && allow != "" {
		c.w.Header().Set("Allow", allow)
	}
	return &body
}

// gradeOf is the grade of the turn that an error is about, where the peer may
// know it; else what new turns get.
func (s *Server) gradeOf(c *call, e *api.Error) api.Grade {
	switch e.Code {
	case api.CodeNotFound, api.CodeForbidden, api.CodePeerUnverifiable, api.CodeMethod, api.CodeInternal:
		return s.grade()
	}
	if c.turn == "" {
		return s.grade()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), time.Second)
	defer cancel()
	if t, err := s.cfg.Engine.Turn(ctx, c.turn); err == nil && t.Grade != "" {
		return t.Grade
	}
	return s.grade()
}

// grade is what new turns get. It is asked for while answering a panic too, so
// it must not panic again.
func (s *Server) grade() (g api.Grade) {
	defer func() { _ = recover() }()
	return s.cfg.Engine.Grade()
}

// document is an answer that is JSON already.
type document string

// write sends the answer, whole, within its time.
func (c *call) write(v any) {
	grade := c.s.grade()
	var body []byte
	if d, ok := v.(document); ok {
		body = []byte(d)
	} else {
		if f := reflect.Indirect(reflect.ValueOf(v)).FieldByName("Grade"); f.IsValid() && f.String() != "" {
			grade = api.Grade(f.String())
		}
		body = encode(v)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set(api.GradeHeader, string(grade))
	rc := http.NewResponseController(c.w)
	end := time.Now()
	if c.r.ContentLength != 0 && !c.read { // net/http reads the rest before it writes
		end = end.Add(c.s.cfg.BodyTimeout)
		_ = rc.SetReadDeadline(end)
	}
	_ = rc.SetWriteDeadline(end.Add(c.s.cfg.WriteTimeout))
	if c.status != 0 {
		c.w.WriteHeader(c.status)
	}
	fault.Point("answer.ready")
	_, _ = c.w.Write(body) // the peer may have gone
	fault.Point("answer.written")
}

// encode makes JSON with one line feed after it, for people with curl.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // the types of package api all can be
	}
	return b.Bytes()
}
