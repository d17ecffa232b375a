package main

import (
	"context"
	"errors"
)

// runServe is the service: it puts the packages together and serves until ctx
// ends.
func runServe(ctx context.Context, o serveOptions) error {
	return errors.New("serve: not wired yet")
}
