package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// playConmon: DIR TERMINAL RUNTIME [OPTION]... It is what an engine leaves beside a
// container: it makes the container, is handed the terminal if there is to be one,
// and is the container's parent, who sees how it ends. The container's directory
// and name are DIR.
func playConmon(words []string) int {
	dir, tty, rt := words[0], words[1] == "true", words[2:]
	_, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, 36, 1, 0) // PR_SET_CHILD_SUBREAPER
	if e != 0 {
		check(e)
	}
	call := func(words ...string) {
		cmd := exec.Command(rt[0], append(append([]string{}, rt[1:]...), words...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		check(cmd.Run())
	}
	id, pidFile := filepath.Base(dir), filepath.Join(dir, "pid")
	create := []string{"create", "--bundle", dir, "--pid-file", pidFile}
	said := make(chan error, 1)
	if tty {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "console")})
		check(err)
		call(append(create, "--console-socket", l.Addr().String(), id)...)
		terminal := handed(l)
		go func() { _, _ = io.Copy(terminal, os.Stdin) }()
		go func() {
			_, err := io.Copy(os.Stdout, terminal)
			said <- err
		}()
	} else {
		call(append(create, id)...)
		said <- nil
	}
	text, err := os.ReadFile(pidFile)
	check(err)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	check(err)
	call("start", id)
	var ws syscall.WaitStatus
	for got := 0; got != pid; {
		if got, err = syscall.Wait4(pid, &ws, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			check(err)
		}
	}
	if err := <-said; err != nil && !errors.Is(err, syscall.EIO) { // what a terminal answers when nobody has it open
		check(err)
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// handed takes the terminal that the runtime sends.
func handed(l *net.UnixListener) *os.File {
	c, err := l.AcceptUnix()
	check(err)
	defer c.Close()
	data, oob := make([]byte, 4096), make([]byte, 64)
	_, n, _, _, err := c.ReadMsgUnix(data, oob)
	check(err)
	list, err := syscall.ParseSocketControlMessage(oob[:n])
	check(err)
	if len(list) != 1 {
		check(fmt.Errorf("%d control messages, not a terminal", len(list)))
	}
	fds, err := syscall.ParseUnixRights(&list[0])
	check(err)
	return os.NewFile(uintptr(fds[0]), strings.TrimRight(string(data), "\x00"))
}
