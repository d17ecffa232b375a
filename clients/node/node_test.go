package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// TestNode runs each file of the client's own tests, with a service of its own.
func TestNode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	node := systest.Program(t, "node")
	files, err := filepath.Glob("test/*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of the client were found: %v", err)
	}
	bin := build(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s := serve(t, bin)
			if out, err := s.run(node, file); err != nil {
				t.Errorf("%v\n%s\n%s", err, out, s.log())
			} else if testing.Verbose() {
				t.Logf("%s", out)
			}
		})
	}
}

// run runs one file of tests, which ends the service and starts it again by
// requests to the control socket.
func (s *service) run(node, file string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, file)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "PINFOLD_SOCKET="+s.Socket, "PINFOLD_TEST_CONTROL="+s.dir+"/control")
	var out []byte
	err := onOneThread(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	}, cmd)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%s took more than ten minutes", file)
	}
	return out, err
}
