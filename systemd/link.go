package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"
)

// D-Bus names of the manager.
const (
	busName      = "org.freedesktop.systemd1"
	managerPath  = "/org/freedesktop/systemd1"
	managerIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
	scopeIface   = "org.freedesktop.systemd1.Scope"
	getProperty  = "org.freedesktop.DBus.Properties.Get"
)

// link is one connection to a manager. go-systemd's own is not used for three
// reasons: it keeps a lock over StartTransientUnit, so that starts wait for one
// another; its AddMatch has no deadline; and it makes two connections.
type link struct {
	sock    *net.UnixConn
	conn    *dbus.Conn
	jobs    *jobs
	version string
}

// wakePause lets the manager's own socket settle after authentication: a call
// that arrives together with BEGIN can lie there unread until more comes (seen
// on systemd 247 to 257, not on every host; systemd issue 17425).
const wakePause = time.Millisecond

// dial connects, authenticates and reads the manager's version: a link that is
// returned has answered. ctx bounds it; it must have a deadline.
func dial(ctx context.Context, ep endpoint) (*link, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", ep.addr)
	if err != nil {
		return nil, err
	}
	sock := c.(*net.UnixConn)
	// Authentication and Hello take no context: the socket's deadline bounds
	// them, and is brought forward when ctx is cancelled.
	stop := context.AfterFunc(ctx, func() { _ = sock.SetDeadline(past) })
	defer stop()
	l := &link{sock: sock, jobs: newJobs()}
	l.conn, err = dbus.DialUnix(sock, dbus.WithSignalHandler(l.jobs))
	if err != nil {
		_ = sock.Close()
		return nil, err
	}
	if err = l.greet(ctx, ep); err == nil {
		err = l.get(ctx, managerPath, managerIface, "Version", &l.version)
	}
	if err != nil {
		l.close()
		return nil, errors.Join(ctx.Err(), err)
	}
	return l, nil
}

// greet authenticates as our uid and subscribes to the ends of jobs.
func (l *link) greet(ctx context.Context, ep endpoint) error {
	// By number: a look-up of the name would need a user database.
	if err := l.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		return err
	}
	if !ep.bus {
		time.Sleep(wakePause)
		return nil // the manager tells its direct peers of all jobs
	}
	if err := l.conn.Hello(); err != nil {
		return err
	}
	return l.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(busName),
		dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved"))
}

// get reads a property.
func (l *link) get(ctx context.Context, path dbus.ObjectPath, iface, name string, to any) error {
	var v dbus.Variant
	err := l.conn.Object(busName, path).CallWithContext(ctx, getProperty, 0, iface, name).Store(&v)
	if err != nil {
		return err
	}
	return v.Store(to)
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// close closes the connection. A write that hangs there would keep Close
// waiting, so it is ended first.
func (l *link) close() {
	_ = l.sock.SetDeadline(past)
	_ = l.conn.Close()
}
