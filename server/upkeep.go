package server

import (
	"context"
	"os"

	"pinfold.dev/api"
)

// UpkeepEngine is the part of an Engine that tells what is on disk, and tidies
// up. See Engine for what holds of all methods.
type UpkeepEngine interface {
	// RecordsOf tells what is on disk; owner nil means everybody's, with what is
	// left over.
	RecordsOf(ctx context.Context, owner *uint32) (api.RecordList, error)
	// GC removes what is left over and ours.
	GC(ctx context.Context, req api.GCRequest) (api.GCAnswer, error)
}

// keeps tells that the peer may look after the service: root, admins, and the
// service's own user.
func (c *call) keeps() bool {
	return c.conn.peer.Admin || c.conn.peer.UID == uint32(os.Geteuid())
}

func records(ctx context.Context, c *call) (api.RecordList, error) {
	owner := c.seen()
	if c.keeps() {
		owner = nil
	}
	return c.s.cfg.Engine.RecordsOf(ctx, owner)
}

func gc(ctx context.Context, c *call, req api.GCRequest) (api.GCAnswer, error) {
	if !c.keeps() {
		return api.GCAnswer{}, api.Errorf(api.CodeForbidden, "uid %d may not tidy up after the service", c.conn.peer.UID).
			WithRemedy("ask as root, as a member of the admin group, or as the service's own user")
	}
	return c.s.cfg.Engine.GC(ctx, req)
}
