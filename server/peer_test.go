package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// helper prepares this test binary to run as a helper. It dies with the test.
func helper(t *testing.T, name, socket string, attr syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(within(t), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "SERVER_TEST_HELPER="+name, "SERVER_TEST_SOCKET="+socket)
	cmd.SysProcAttr = &attr
	cmd.Stderr = os.Stderr
	return cmd
}

// helperRules tries everything on three turns and prints what came of it.
func helperRules(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &client.Client{Socket: socket}
	say := func(what string, err error) {
		var e *api.Error
		switch {
		case err == nil:
			fmt.Println(what, "ok")
		case errors.As(err, &e):
			fmt.Println(what, e.Code)
		default:
			fmt.Println(what, err)
		}
	}
	_, err := c.Host(ctx)
	say("host", err)
	l, err := c.Turns(ctx, true, "")
	var ids []string
	for _, t := range l.Turns {
		ids = append(ids, t.ID)
	}
	say(strings.TrimSpace("list "+strings.Join(ids, ",")), err)
	_, err = c.Receipts(ctx, 0)
	say("receipts", err)
	for _, id := range []string{"mine", "other", "absent"} {
		_, err := c.Turn(ctx, id)
		say("read "+id, err)
		p, err := c.Launch(ctx, id, api.LaunchRequest{Argv: []string{"x"}})
		if err == nil && int(p.UID) != os.Getuid() {
			err = fmt.Errorf("launched as %d", p.UID)
		}
		say("launch "+id, err)
		_, err = c.Signal(ctx, id, "p1", api.SignalRequest{Signal: "TERM"})
		say("signal "+id, err)
		_, err = c.WaitProcess(ctx, id, "p0")
		say("wait "+id, err)
		_, err = c.Abandon(ctx, id, api.AbandonRequest{})
		say("abandon "+id, err)
	}
	_, err = c.Begin(ctx, api.BeginRequest{})
	say("begin", err)
	return nil
}

func runRules(t *testing.T, s *service, attr syscall.SysProcAttr) []string {
	t.Helper()
	out, err := helper(t, "rules", s.socket, attr).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func sameLines(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func asNobody() *syscall.Credential {
	return &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{7, 8}}
}

func TestAnotherUserSeesItsOwnOnly(t *testing.T) {
	needRoot(t)
	s := start(t, Config{})
	s.engine.add("mine", nobody)
	s.engine.add("other", 0)
	sameLines(t, runRules(t, s, syscall.SysProcAttr{Credential: asNobody()}), []string{
		"host ok", "list mine ok", "receipts ok",
		"read mine ok", "launch mine ok", "signal mine ok", "wait mine not_found", "abandon mine ok",
		"read other not_found", "launch other not_found", "signal other not_found", "wait other not_found", "abandon other not_found",
		"read absent not_found", "launch absent not_found", "signal absent not_found", "wait absent not_found", "abandon absent not_found",
		"begin ok",
	})
	if v, _ := s.engine.get("other"); v.State != api.StateOpen {
		t.Errorf("the other user's turn is %s", v.State)
	}
	c := s.engine.callers[0]
	if c.UID != nobody || c.GID != nobody || !slices.Equal(c.Groups, []uint32{7, 8}) || c.PID == 0 || c.Cgroup == "" || c.Admin {
		t.Errorf("caller: %+v", c)
	}
}

func TestRootAndAdminsSeeAll(t *testing.T) {
	needRoot(t)
	group := uint32(8)
	for name, attr := range map[string]syscall.SysProcAttr{"root": {}, "admin": {Credential: asNobody()}} {
		s := start(t, Config{AdminGroup: &group})
		s.engine.add("mine", 1)
		s.engine.add("other", 2)
		got := runRules(t, s, attr)
		for _, want := range []string{"list mine,other ok", "read other ok", "launch mine ok", "abandon other ok", "read absent not_found"} {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %q in %q", name, want, got)
			}
		}
	}
}

func TestFromInsideATurn(t *testing.T) {
	needRoot(t)
	dir, line := turnCgroup(t)
	for name, cred := range map[string]*syscall.Credential{"root": nil, "owner": asNobody()} {
		s := start(t, Config{})
		owner := uint32(0)
		if cred != nil {
			owner = cred.Uid
		}
		s.engine.add("mine", owner)
		s.engine.add("other", owner)
		s.engine.mu.Lock()
		s.engine.cgroups[strings.TrimSuffix(line, "/work/p1")] = "mine"
		s.engine.mu.Unlock()
		attr := syscall.SysProcAttr{Credential: cred, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		t.Run(name, func(t *testing.T) {
			sameLines(t, runRules(t, s, attr), []string{
				"host ok", "list forbidden", "receipts forbidden",
				"read mine ok", "launch mine ok", "signal mine ok", "wait mine not_found", "abandon mine forbidden",
				"read other forbidden", "launch other forbidden", "signal other forbidden", "wait other forbidden", "abandon other forbidden",
				"read absent forbidden", "launch absent forbidden", "signal absent forbidden", "wait absent forbidden", "abandon absent forbidden",
				"begin forbidden",
			})
		})
	}
}

// turnCgroup makes a cgroup v2 directory two below a turn's, for a helper, and
// tells its 0:: line.
func turnCgroup(t *testing.T) (*os.File, string) {
	t.Helper()
	mount := ""
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if head, fs, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(fs, "cgroup2 ") {
			mount = strings.Fields(head)[4]
		}
	}
	need(t, "cgroup v2 mount", mount != "")
	top := filepath.Join(mount, fmt.Sprintf("pinfold-test.server.%d", os.Getpid()))
	leaf := filepath.Join(top, "work", "p1")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(leaf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dir.Close()
		for _, d := range []string{leaf, filepath.Dir(leaf), top} {
			for range 3000 {
				if err = syscall.Rmdir(d); err != syscall.EBUSY {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Errorf("remove %s: %v", d, err)
			}
		}
	})
	cat := exec.Command("cat", "/proc/self/cgroup")
	cat.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cat.Output()
	if err != nil {
		t.Fatal(err)
	}
	line, err := unifiedPath(out)
	if err != nil || !strings.HasSuffix(line, "/work/p1") {
		t.Fatalf("%q %v", line, err)
	}
	return dir, line
}

// helperOrphan connects, hands the connection to descriptor 3 and is gone.
func helperOrphan(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	return syscall.Sendmsg(3, []byte{0}, syscall.UnixRights(int(f.Fd())), nil, 0)
}

// A peer that died before anybody looked could have been in a turn.
func TestDeadPeerIsUnverifiable(t *testing.T) {
	s := &service{engine: newMemory(), socket: filepath.Join(shortDir(t), "s")}
	s.engine.add("mine", uint32(os.Getuid()))
	s.Server = New(Config{Engine: s.engine})
	l, err := Listen(s.socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	c := orphan(t, s.socket) // while nobody accepts
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	r := bufio.NewReader(c)
	for path, want := range map[string]int{"/v1/host": 200, "/v1/turns": 403, "/v1/turns/mine": 403, "/v1/receipts": 403} {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want {
			t.Errorf("%s: %s %s", path, resp.Status, b)
		}
		if want == 403 && asError(t, b).Code != api.CodePeerUnverifiable {
			t.Errorf("%s: %s", path, b)
		}
	}
}

// orphan is a connection whose maker was reaped.
func orphan(t *testing.T, path string) net.Conn {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	cmd := helper(t, "orphan", path, syscall.SysProcAttr{})
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Run()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, 64)
	_, n, _, _, err := syscall.Recvmsg(int(ours.Fd()), make([]byte, 1), oob, 0)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		t.Fatal(msgs, err)
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// helperHang sends half a request, with a descriptor, and hangs.
func helperHang(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte("POST /v1/turns/one/processes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"),
		syscall.UnixRights(0, 1), nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	time.Sleep(time.Minute)
	return nil
}

func sysProcNobody() syscall.SysProcAttr { return syscall.SysProcAttr{Credential: asNobody()} }
