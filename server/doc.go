// Package server is the service's socket: HTTP/1.1 with JSON on a unix socket,
// descriptors as SCM_RIGHTS along with a request, and who may do what.
//
// To read it: route.go is the table of routes and of who may use them,
// access.go the decision, peer.go who is at the other end, serve.go the two
// generics that do all the HTTP, conn.go and rights.go how descriptors arrive,
// limits.go what one user can use up. The engine behind it all is an interface,
// engine.go, so nothing here knows how a turn is held.
package server
