package main

import (
	"os"
	"testing"
	"time"
)

// A window is closed: its terminal hangs up. As with any program on it, that is
// HUP for the command, with -t and without; one that wants none of it goes on,
// and its turn with it, but nothing is left that waits on a terminal that is gone.
func TestTTYHangup(t *testing.T) {
	b := newBed(t)
	for _, c := range []struct {
		name string
		head []string
	}{{"terminal", []string{"pinfold", "run", "-t", "--"}}, {"streams", []string{"pinfold", "run", "--"}}, {"in place", []string{"pinfold", "run", "--in-place", "--"}}} {
		t.Run(c.name, func(t *testing.T) {
			_ = os.Remove(b.dir + "/got")
			// It goes on speaking, which has the reader of our side let go of that.
			p := b.sit(append(c.head, "bash", "-c", `trap 'echo HUP >got; exit 9' HUP; echo ready; while :; do echo . 2>/dev/null; sleep 0.05; done`)...)
			p.sees("ready")
			if err := p.tty.Close(); err != nil {
				t.Fatal(err)
			}
			if got := b.word("got"); got != "HUP" {
				t.Errorf("it got %q", got)
			}
			select {
			case <-p.gone:
			case <-time.After(time.Minute):
				t.Fatal("run has not ended")
			}
			if got := p.cmd.ProcessState.ExitCode(); got != 9 {
				t.Errorf("%v", p.cmd.ProcessState)
			}
			for _, r := range b.allOver() {
				if !r.Complete || len(r.Leftovers) != 0 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}
