// Package client speaks to the Pinfold service over its unix socket. It stands
// on package api and the standard library only.
//
// The zero Client works. There is one method per route; each error is an
// *api.Error, so errors.Is(err, api.ErrNotFound) works, or the context's own.
//
//	var c client.Client
//	turn, err := c.Begin(ctx, api.BeginRequest{Label: "fix the build"})
//	p, err := c.Launch(ctx, turn.ID, api.LaunchRequest{Argv: []string{"make"}})
//	receipt, err := c.Abandon(ctx, turn.ID, api.AbandonRequest{})
package client
