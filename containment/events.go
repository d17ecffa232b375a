package containment

import (
	"strings"
	"time"

	"pinfold.dev/api"
)

// tell adds an event about the turn; the lock is held. The key makes one that an
// earlier service has told of be told once.
func (t *turn) tell(kind api.EventKind, key string, with func(*api.Event)) {
	if t.events == nil {
		return
	}
	e := api.Event{At: time.Now().UTC(), Kind: kind, Owner: t.owner, Turn: t.id, Epoch: t.view.Epoch, Session: t.view.Session,
		State: t.view.State, Stopped: t.view.State != api.StateOpen, Grade: t.view.Grade}
	if with != nil {
		with(&e)
	}
	if key != "" {
		key = strings.Join([]string{t.id, string(kind), key}, "/")
	}
	t.events.Add(key, e)
}
