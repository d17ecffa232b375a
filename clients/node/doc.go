// Package node has the Node client of Pinfold, which is not Go, and the Go test
// that runs its tests against a real service.
package node
