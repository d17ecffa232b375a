package server

import (
	"context"
	"errors"
	"os"
	"testing"

	"pinfold.dev/api"
)

// upkeep notes for whom it is asked.
type upkeep struct {
	*memory
	owners []*uint32
	gcs    int
}

func (u *upkeep) RecordsOf(_ context.Context, owner *uint32) (api.RecordList, error) {
	u.owners = append(u.owners, owner)
	return api.RecordList{}, nil
}

func (u *upkeep) GC(context.Context, api.GCRequest) (api.GCAnswer, error) {
	u.gcs++
	return api.GCAnswer{}, nil
}

// Whoever looks after the service sees all and may tidy up; others see their own.
func TestWhoMayTidyUp(t *testing.T) {
	for name, c := range map[string]struct {
		peer Peer
		may  bool
	}{
		"root":          {Peer{UID: 0, Admin: true}, true},
		"admin":         {Peer{UID: 4000, Admin: true}, true},
		"its own user":  {Peer{UID: uint32(os.Geteuid())}, true},
		"somebody else": {Peer{UID: uint32(os.Geteuid()) + 4000}, false},
	} {
		u := &upkeep{memory: newMemory()}
		k := &call{s: New(Config{Engine: u}), conn: &conn{peer: c.peer}}
		_, err := gc(t.Context(), k, api.GCRequest{})
		var e *api.Error
		if forbidden := errors.As(err, &e) && e.Code == api.CodeForbidden; forbidden == c.may || (u.gcs == 1) != c.may {
			t.Errorf("%s: gc: %v", name, err)
		}
		if _, err := records(t.Context(), k); err != nil || len(u.owners) != 1 || (u.owners[0] == nil) != c.may {
			t.Errorf("%s: records of %v (%v)", name, u.owners, err)
		}
	}
}
