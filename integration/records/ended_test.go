package records

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"pinfold.dev/api"
)

// TestEndedOnAFullDisk ends turns whose runtime directory has no room, nor the
// reserve any more, and kills the service with SIGKILL after it has answered: what
// the next one has, while there is still no room and afterwards, is the receipt that
// was told, and not a turn that is open or lost. Only the state disk could take it.
func TestEndedOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for _, point := range []string{"receipt.announced", "putaway.removed"} { // its cgroup is there, and is not
		for name, end := range fullEndings() {
			if end.before != nil && point == "receipt.announced" {
				continue // that is before the answer
			}
			t.Run(name+", killed at "+point, func(t *testing.T) {
				t.Parallel()
				l := newFullLife(t, "run", point)
				l.endUnrecorded(end)
			})
		}
	}
}

// fullEnding is how a turn ends: on a disk that has room yet, then on one that has none.
type fullEnding struct {
	before, end func(l *fullLife, turn string) (api.Receipt, error)
	runs        bool // something is to be ended
}

func fullEndings() map[string]fullEnding {
	return map[string]fullEnding{
		"abandoned": {end: func(l *fullLife, turn string) (api.Receipt, error) {
			return l.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: new(int64(0))})
		}, runs: true},
		"finished": {end: func(l *fullLife, turn string) (api.Receipt, error) {
			return l.Finish(context.Background(), turn, api.FinishRequest{})
		}},
		"leftovers ended": {before: func(l *fullLife, turn string) (api.Receipt, error) {
			return l.Finish(context.Background(), turn, api.FinishRequest{Leftovers: api.LeftoversKeep})
		}, end: func(l *fullLife, turn string) (api.Receipt, error) {
			return l.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: new(int64(0)), Leftovers: true})
		}, runs: true},
	}
}

// endUnrecorded is such a turn's end, and the restart.
func (l *fullLife) endUnrecorded(e fullEnding) {
	t := l.t
	canary := newCanary(t, "")
	l.start()
	beside := l.begin(api.BeginRequest{Label: "beside"})
	neighbour := l.launch(beside.ID, "exec sleep 100000")
	v := l.begin(api.BeginRequest{})
	l.exits(v.ID, "exit 5")
	if e.runs {
		l.launch(v.ID, "exec sleep 100000")
	}
	if e.before != nil {
		if r, err := e.before(l, v.ID); err != nil || !r.Complete {
			t.Fatalf("%+v (%v)", r, err)
		}
	}
	if err := os.Remove(l.disk + "/reserve"); err != nil { // as if it had been used up
		t.Fatal(err)
	}
	l.fill()
	if err := os.WriteFile(l.armed, nil, 0o600); err != nil { // on another disk; it waits there
		t.Fatal(err)
	}
	told, err := e.end(l, v.ID)
	if err != nil || !told.Complete || has(told.Notes, "could not be stored") {
		t.Errorf("complete %v, notes %q (%v)", told.Complete, told.Notes, err)
	}
	eventually(t, "the point", l.reached)
	l.kill()
	_ = os.Remove(l.armed)
	l.faults = ""
	l.start()
	l.stands(v.ID, told)
	if s := stateOf(neighbour.PID); s == 0 || s == 'Z' || l.look(beside.ID).State != api.StateOpen {
		t.Error("the turn beside is not as it was after a restart")
	}
	eventually(t, "its cgroup is gone", func() bool { return !exists(v.Cgroup) })
	if err := os.Remove(l.filler); err != nil {
		t.Fatal(err)
	}
	l.archived(v.ID)
	l.stands(v.ID, told)
	l.end(beside.ID)
	l.archived(beside.ID)
	canary.lives()
}

// stands checks that the receipt of a turn, and what is shown of it, is what was told.
func (l *fullLife) stands(turn string, told api.Receipt) {
	l.t.Helper()
	v, err := l.Turn(context.Background(), turn)
	if err != nil || v.State != told.State || v.Reason != told.Reason || v.Alive > 0 {
		l.t.Errorf("the turn is %s for %q, %d alive (%v); told was %s for %q", v.State, v.Reason, v.Alive, err, told.State, told.Reason)
	}
	r, err := l.Receipt(context.Background(), turn)
	if err != nil {
		l.t.Fatal(err)
	}
	same := r.Complete == told.Complete && r.State == told.State && r.Reason == told.Reason && r.AskedAt.Equal(told.AskedAt) &&
		sameTime(r.SeenEmptyAt, told.SeenEmptyAt) && sameTime(r.LeftoversEndedAt, told.LeftoversEndedAt)
	same = same && slices.EqualFunc(r.Processes, told.Processes, func(a, b api.ReceiptProcess) bool { return a.ID == b.ID && a.Status == b.Status })
	if !same {
		is, _ := json.Marshal(r)
		was, _ := json.Marshal(told)
		l.t.Errorf("the receipt is\n%s\nwas\n%s", is, was)
	}
}

func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}
