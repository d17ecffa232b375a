//go:build linux

package inspect

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// A member that is connected to a socket on which a process outside listens is told,
// with that; one that is connected to a member is not, whoever else is to that.
func TestServed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ network, listen, dial string }{
		{"unix", filepath.Join(dir, "%s.sock"), ""},
		{"unix", fmt.Sprintf("@pinfold-test-%d.%%s", os.Getpid()), ""},
		{"tcp4", "127.0.0.1:0", ""},
		{"tcp", "[::]:0", "127.0.0.1:%d"},
		{"tcp6", "[::1]:0", ""},
	} {
		t.Run(c.network+" "+c.listen, func(t *testing.T) {
			kind := strings.TrimRight(c.network, "46")
			if kind == "unix" {
				_, err := sys.UnixSockets()
				systest.Lacking(t, "unix_diag in the kernel", err)
			}
			listen := func(name string) (p *systest.Proc, at string) {
				p = mustStart(t, "listen", c.network, strings.Replace(c.listen, "%s", name, 1))
				if at = p.Line(t); c.dial != "" {
					at = fmt.Sprintf(c.dial, netip.MustParseAddrPort(at).Port())
				}
				return p, at
			}
			dial := func(to string) *systest.Proc {
				p := mustStart(t, "dial", kind, to)
				p.Line(t)
				return p
			}
			daemon, at := listen("daemon")
			mate, inside := listen("mate")
			members := []*pidfd.Handle{handle(t, mate.PID()), handle(t, dial(inside).PID())}
			dial(at) // which is no member
			dial(inside)
			if a, err := sockets(t.Context(), members...); len(a.Served) > 0 || len(a.Notes) > 0 || len(a.Servers) != 1 || err != nil {
				t.Errorf("of those who use a member only: %+v, %v", a, err)
			}
			client := dial(at)
			members = append(members, handle(t, client.PID()))
			a, err := sockets(t.Context(), members...)
			want := []Served{{PID: client.PID(), Comm: comm(t, client.PID()), Socket: kind + ":" + at, By: []int{daemon.PID()}}}
			if err != nil || len(a.Notes) > 0 || len(a.Servers) != 1 || !reflect.DeepEqual(a.Served, want) {
				t.Errorf("%+v, not %+v (%v)", a, want, err)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := sockets(over, members...); err == nil {
				t.Error("it looked on without time")
			}
			daemon.End()
			systest.Until(t, "the end of the connection to one that went", func() bool {
				a, err := sockets(t.Context(), members...)
				return len(a.Served) == 0 && err == nil
			})
		})
	}
}

// What a member was given as its standard streams, what has no listener, and what it
// asks of ourselves is no work that it gives away.
func TestServedIsNot(t *testing.T) {
	_, err := sys.UnixSockets()
	systest.Lacking(t, "unix_diag in the kernel", err)
	dir := t.TempDir()
	daemon := mustStart(t, "listen", "unix", dir+"/daemon")
	daemon.Line(t)
	for _, c := range []struct {
		name string
		as   func(*systest.Proc, *os.File)
		want int
	}{
		{"standard input", func(p *systest.Proc, f *os.File) { p.Stdin = f }, 0},
		{"another descriptor", func(p *systest.Proc, f *os.File) { p.ExtraFiles = []*os.File{f} }, 1},
	} {
		conn, err := net.Dial("unix", dir+"/daemon")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // it was accepted
			t.Fatal(err)
		}
		f, err := conn.(*net.UnixConn).File()
		if err != nil {
			t.Fatal(err)
		}
		p := &systest.Proc{Cmd: suite.Command(t, "user", "cwd", dir)}
		c.as(p, f)
		p = systest.Start(t, p.Cmd)
		f.Close()
		conn.Close()
		p.Line(t)
		if a, err := sockets(t.Context(), handle(t, p.PID())); err != nil || len(a.Served) != c.want {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := []*os.File{os.NewFile(uintptr(pair[0]), "one"), os.NewFile(uintptr(pair[1]), "other")}
	defer ends[0].Close()
	cmd := suite.Command(t, "user", "cwd", dir)
	cmd.ExtraFiles = ends[1:]
	paired := systest.Start(t, cmd)
	ends[1].Close()
	paired.Line(t)
	l, err := net.Listen("unix", dir+"/ours")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asks := mustStart(t, "dial", "unix", dir+"/ours")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	asks.Line(t)
	if a, err := sockets(t.Context(), handle(t, paired.PID()), handle(t, asks.PID())); err != nil || len(a.Served) > 0 || len(a.Notes) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// A daemon that we may not look at is told all the same, unless it may be a member.
func TestServedBySomebody(t *testing.T) {
	systest.Root(t)
	_, err := sys.UnixSockets()
	systest.Lacking(t, "unix_diag in the kernel", err)
	at := fmt.Sprintf("@pinfold-test-%d.root", os.Getpid())
	mustStart(t, "listen", "unix", at).Line(t)
	roots := mustStart(t, "dial", "unix", at)
	roots.Line(t)
	as := &syscall.Credential{Uid: 65534, Gid: 65534}
	cmd := suite.Command(t, "dial", "unix", at)
	cmd.SysProcAttr.Credential = as
	theirs := systest.Start(t, readable(t, cmd))
	theirs.Line(t)
	for _, c := range []struct {
		members []string
		want    string
	}{
		{[]string{strconv.Itoa(theirs.PID())}, fmt.Sprintf("[{%d test unix:%s []}]", theirs.PID(), at)},
		{[]string{strconv.Itoa(theirs.PID()), strconv.Itoa(roots.PID())}, "[]"},
	} {
		cmd := suite.Command(t, "served", c.members...)
		cmd.SysProcAttr.Credential = as
		if got := systest.Start(t, readable(t, cmd)).Line(t); got != c.want {
			t.Errorf("of %s, nobody sees %s, not %s", c.members, got, c.want)
		}
	}
}

// sayServed is PID...: it looks by whom they are served.
func sayServed(args []string) error {
	var members []*pidfd.Handle
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		h, err := pidfd.Open(pid)
		if err != nil {
			return err
		}
		members = append(members, h)
	}
	a, err := sockets(noContext(), members...)
	fmt.Println(a.Served)
	return err
}

func comm(t *testing.T, pid int) string {
	t.Helper()
	b, err := sys.ProcFile(pid, "comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}
