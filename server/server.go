package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Config says what a Server stands on. Only Engine must be set; zero times are
// the defaults.
type Config struct {
	Engine Engine
	Log    *slog.Logger // nil: nothing is logged
	// AdminGroup's members see and end everybody's turns, as root does; nil:
	// nobody else.
	AdminGroup *uint32
	// Below tells which turn a peer, by its pidfd (-1: there is none) and its
	// number, descends from, for turns that no cgroup tells of; nil: there are no
	// such turns. An error that is Blind lets the peer pass as none of them:
	// nobody could tell.
	Below func(pidfd, pid int) (turn string, err error)
	Blind error

	HeaderTimeout time.Duration // for a request's line and headers; 10 s
	BodyTimeout   time.Duration // for its body; 30 s
	WriteTimeout  time.Duration // for an answer to be read by the client; 30 s
	IdleTimeout   time.Duration // between requests of a connection; 2 min
	StopTimeout   time.Duration // for requests under way when Serve's context ends; 5 s
}

// Server answers the API's requests on unix sockets.
type Server struct {
	cfg      Config
	routes   []route
	limits   limits
	bufs     sync.Pool // of *[chunk]byte
	http     http.Server
	stopping context.Context
	stop     context.CancelFunc
}

var errStopping = errors.New("the service is stopping")

// maxHeader bounds a request's line and headers; net/http allows 4 KiB more.
const maxHeader = 16 << 10

// New makes a Server; Serve starts it.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		v     *time.Duration
		usual time.Duration
	}{
		{&cfg.HeaderTimeout, 10 * time.Second},
		{&cfg.BodyTimeout, 30 * time.Second},
		{&cfg.WriteTimeout, 30 * time.Second},
		{&cfg.IdleTimeout, 2 * time.Minute},
		{&cfg.StopTimeout, 5 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.usual
		}
	}
	s := &Server{cfg: cfg, routes: routes()}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.http = http.Server{
		Handler: s, ReadHeaderTimeout: cfg.HeaderTimeout, IdleTimeout: cfg.IdleTimeout, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true, ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(c net.Conn, st http.ConnState) {
			if c, ok := c.(*conn); ok {
				c.between(st == http.StateIdle)
			}
		},
	}
	return s
}

// Serve answers requests that come in on l, a listener of unix sockets, until
// ctx ends; then it shuts down and returns nil. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	done := make(chan error, 1)
	go func() {
		done <- s.Also(l)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.StopTimeout)
	defer cancel()
	err := s.Shutdown(end)
	<-done
	return err
}

// Also answers on another listener, until Serve ends.
func (s *Server) Also(l net.Listener) error {
	err := s.http.Serve(&listener{Listener: l, limits: &s.limits, admin: s.cfg.AdminGroup,
		grade: s.grade, header: s.cfg.HeaderTimeout, inTurn: s.cfg.Engine.TurnOfCgroup, below: s.cfg.Below, blind: s.cfg.Blind, log: s.cfg.Log})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// Shutdown stops listening, answers those who wait for an ending with
// unavailable, and waits for the other requests under way; those left when ctx
// ends lose their connection. Turns go on.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}
