// Package inspect tells, for people, what processes use: files below a directory,
// and sockets that others are connected to. What it says authorises nothing, and
// what it could not look at it says, too.
package inspect
