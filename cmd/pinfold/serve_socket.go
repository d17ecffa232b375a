package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/internal/hold"
	"pinfold.dev/server"
	"pinfold.dev/systemd"
)

// handed is what systemd has handed over, sorted.
type handed struct {
	unit    net.Listener // of a socket unit; nil: there is none
	kept    *os.File     // what an earlier service listened on; nil: none
	name    string       // of kept, as systemd has it
	handles []hold.Kept  // of processes
	stored  []systemd.Passed
	strange []string // names that mean nothing here
}

// socketPrefix begins the name of the listening socket that systemd keeps.
const socketPrefix = "listen."

// sortHanded sorts what systemd has handed over, and closes what has no use.
// said is what --socket, or its variable, says; it may be blank.
func sortHanded(all []systemd.Passed, said string) (h handed, err error) {
	for _, p := range all {
		switch {
		case hold.IsKeptHandle(p.Name):
			h.handles, h.stored = append(h.handles, hold.Kept{Name: p.Name, FD: p.FD}), append(h.stored, p)
		case strings.HasPrefix(p.Name, socketPrefix) && h.kept == nil:
			h.kept, h.name, h.stored = os.NewFile(uintptr(p.FD), p.Name), p.Name, append(h.stored, p)
		case strings.HasPrefix(p.Name, socketPrefix) || !isSocket(p.FD):
			_ = syscall.Close(p.FD)
			h.strange, h.stored = append(h.strange, p.Name), append(h.stored, p)
		default:
			l, lerr := unitSocket(p)
			switch {
			case lerr != nil:
				err = lerr
			case h.unit != nil:
				err = fmt.Errorf("systemd passes two sockets, %s and %s: leave one in pinfold.socket", h.unit.Addr(), l.Addr())
			default:
				h.unit = l
			}
		}
	}
	if err == nil && h.unit != nil && said != "" && said != h.unit.Addr().String() {
		err = fmt.Errorf("systemd passes the socket %s, and %s is asked for: change ListenStream= in pinfold.socket, or leave out --socket and PINFOLD_SOCKET",
			h.unit.Addr(), said)
	}
	return h, err
}

// isSocket tells a socket from other descriptors.
func isSocket(fd int) bool {
	_, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE)
	return err == nil
}

// unitSocket makes a listener of a socket unit's descriptor, if it is one that
// the service can answer on.
func unitSocket(p systemd.Passed) (net.Listener, error) {
	f := os.NewFile(uintptr(p.FD), p.Name)
	defer f.Close() // the listener has a duplicate
	listens, err := syscall.GetsockoptInt(p.FD, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return nil, fmt.Errorf("systemd passes %q, on which nobody listens: pinfold.socket wants ListenStream= and Accept=no", p.Name)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take the socket %q of systemd: %w", p.Name, err)
	}
	a, ok := l.Addr().(*net.UnixAddr)
	if !ok || a.Net != "unix" || !filepath.IsAbs(a.Name) {
		l.Close()
		return nil, fmt.Errorf("systemd passes the socket %s %s: pinfold.socket wants ListenStream=/a/path", l.Addr().Network(), l.Addr())
	}
	if fi, err := os.Lstat(a.Name); err != nil || fi.Mode().Type() != os.ModeSocket {
		l.Close()
		return nil, fmt.Errorf("systemd passes the socket %s, but no socket is there any more: systemctl restart pinfold.socket", a.Name)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it is the unit's
	return l, nil
}

// listen is how the service comes to its socket: from a socket unit, from what
// systemd has kept, else new. stop is called when the service has been told to
// stop, before it stops listening.
func (o serveOptions) listen() (l net.Listener, stop func(context.Context), err error) {
	stop = func(context.Context) {}
	name := o.handed.name
	if o.handed.unit != nil {
		if o.handed.kept != nil { // there was no socket unit then
			o.handed.kept.Close()
			o.notifier.Remove(name)
		}
		return o.handed.unit, stop, nil
	}
	if o.handed.kept != nil {
		l, err = server.Kept(o.handed.kept, o.Socket, strings.TrimPrefix(name, socketPrefix))
		if err != nil {
			o.Log.Warn("the socket that systemd has kept is of no use; whoever waits there has to ask again", "error", err)
			o.notifier.Remove(name)
		}
	}
	if l == nil {
		if l, err = server.Listen(o.Socket, socketMode()); err != nil {
			return nil, stop, err
		}
		if name = o.keepSocket(l); name == "" {
			return l, stop, nil
		}
	}
	return l, func(ctx context.Context) {
		if o.stopsForGood(ctx) {
			o.notifier.Remove(name)
			server.Drop(l)
		}
	}, nil
}

// keepSocket has systemd keep the listening socket, so that whoever connects
// while the service restarts is answered by the next one. It returns the name
// there; blank: it is not kept.
func (o serveOptions) keepSocket(l net.Listener) string {
	if !o.notifier.Stores() {
		return ""
	}
	fd, name, err := server.Keep(l)
	if err != nil {
		o.Log.Warn("have systemd keep the socket", "error", err)
		return ""
	}
	if !o.notifier.Store(socketPrefix+name, fd, 0) {
		server.Drop(l)
		return ""
	}
	return socketPrefix + name
}

// stopAskTime bounds the question whether the service is to come back.
const stopAskTime = 2 * time.Second

// stopsForGood asks systemd whether it stops the service without starting it
// again. In doubt it does not: a socket that nobody answers on is told of, one
// that goes in a restart is missed.
func (o serveOptions) stopsForGood(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, stopAskTime)
	defer cancel()
	m, err := systemd.Connect(ctx, systemd.Config{User: os.Geteuid() != 0})
	if err != nil {
		return false
	}
	defer m.Close()
	final, err := m.Stopping(ctx)
	return err == nil && final
}
