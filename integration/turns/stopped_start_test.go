package turns

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A service that is stopped while it starts ends as asked, and says of no keeper and
// of no grade what it did not come to see.
func TestStoppedWhileItStarts(t *testing.T) {
	g := grades(t)[0]
	needCgroups(t, g)
	s := serve(t, g, options{})
	var all []*turn
	for range 8 {
		x := s.begin(t, api.BeginRequest{})
		x.launch(api.LaunchRequest{Argv: []string{"sleep", "1000"}})
		all = append(all, x)
	}
	stop := func() {
		t.Helper()
		if err := s.proc.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-s.proc.gone
		ws, _ := s.proc.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if s.proc.err != nil && ws.Signal() != syscall.SIGTERM { // it came before anything is done
			t.Errorf("stopped, it ended with %v", s.proc.err)
		}
	}
	s.Close()
	stop()
	log, err := os.OpenFile(s.dir+"/log", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for range 12 {
		cmd := exec.Command(run.bin+"/pinfold", s.args...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, "/", log, log
		if s.proc, err = run.kids.start(cmd); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(200 * time.Millisecond))
		stop()
	}
	s.start()
	b, err := os.ReadFile(s.dir + "/log")
	if err != nil || strings.Contains(string(b), "keeper lost") || strings.Contains(string(b), "fails its self-test") {
		t.Errorf("it says of what it did not come to see (%v)", err)
	}
	for _, x := range all {
		if v := x.look(); v.State != api.StateOpen || v.Alive != 1 {
			t.Errorf("%+v", v)
		}
		x.abandon(0)
	}
}
