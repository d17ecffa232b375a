package client

import (
	"context"

	"pinfold.dev/api"
)

// Records tells what is on disk, and, to those who may tidy up, what is left over.
func (c *Client) Records(ctx context.Context) (api.RecordList, error) {
	return get[api.RecordList](ctx, c, nil, "records")
}

// GC removes what is left over of turns and is the service's own.
func (c *Client) GC(ctx context.Context, req api.GCRequest) (api.GCAnswer, error) {
	return post[api.GCAnswer](ctx, c, req, nil, nil, "gc")
}
