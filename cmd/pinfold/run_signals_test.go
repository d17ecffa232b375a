package main

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A command may run before we are told that it does: what is sent to it meanwhile
// is passed on once we are. (The kernel itself keeps no order between signals that
// several threads may take.)
func TestSignalsBeforeTheAnswer(t *testing.T) {
	s := catchSignals()
	s.alone = time.Hour // else a busy machine would have TSTP stop this very process
	ctx, cancel := s.cancelOnStop(t.Context())
	sent := []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGTSTP}
	for _, sig := range sent {
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	<-ctx.Done() // TERM was seen
	cancel()
	over := sync.OnceFunc(s.stop)
	time.AfterFunc(time.Minute, over)
	var got []syscall.Signal
	s.forward(func(c caught) {
		if got = append(got, syscall.Signal(c)); len(got) == len(sent) {
			over()
		}
	})
	slices.Sort(got)
	if !slices.Equal(got, sent) { // by number, as they are above
		t.Errorf("%v were passed on, not %v", got, sent)
	}
}
