package turns

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"pinfold.dev/api"
)

// unhurried tries something that has to be at a certain point before a clock runs
// out, which a busy machine may not be: then it is tried again, with three times as
// long. Try tells by an error that time was too short; what it does is to leave
// nothing that the next try could meet.
func unhurried(t *testing.T, clock time.Duration, try func(clock time.Duration) error) {
	t.Helper()
	for most := patience(time.Minute); ; clock *= 3 {
		err := try(clock)
		if err == nil {
			return
		}
		if clock > most {
			t.Fatalf("with %v: %v", clock, err)
		}
		t.Logf("with %v: %v; once more, with more time", clock, err)
	}
}

// stillOpen is an error when the turn is over.
func (x *turn) stillOpen(what string) error {
	x.t.Helper()
	if v := x.look(); v.State != api.StateOpen {
		return fmt.Errorf("%s: the turn is %s (%s)", what, v.State, v.Reason)
	}
	return nil
}

// beatsIn waits until all beat, or the turn is over, which is an error.
func (x *turn) beatsIn(hearts ...heart) error {
	x.t.Helper()
	for _, h := range hearts {
		was := h.size(x.t)
		var over error
		eventually(x.t, "a beat in "+filepath.Base(string(h)), func() bool {
			if h.size(x.t) > was {
				return true
			}
			over = x.stillOpen("no beat in " + filepath.Base(string(h)))
			return over != nil
		})
		if over != nil {
			return over
		}
	}
	return nil
}

// drop ends what a try in vain has left.
func (x *turn) drop() {
	x.t.Helper()
	r, err := x.s.Abandon(x.t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0)), Leftovers: true, Jobs: true})
	if err != nil || !r.Complete {
		x.t.Errorf("end turn %s: complete %v, %v", x.ID, r.Complete, err)
	}
}
