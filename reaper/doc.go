// Package reaper is the keeper's engine: the parent of everything that is
// launched in one turn, and its child subreaper. It launches, reaps, keeps the
// journal, and answers the service over the protocol of internal/wire.
//
// One thread does everything. It waits in epoll for the listening socket, the
// connections, the pipes of launches that are not decided, the streams that it
// keeps for processes, and the counter that the handler of SIGCHLD adds to;
// nothing it does then waits for anybody (a slow disk apart, see package spool),
// and a stream brings 64 KiB at most before it is another's turn, so a
// connection that does not read, or a launch into a cgroup that was frozen
// meanwhile, holds up nothing. A child is cloned and reaped by the same thread,
// so a launch is always known before its end is seen. (A second thread in
// waitid(2) needs no signal handler, but costs every launch four thread
// switches more.)
//
// An idle keeper is never woken. It never needs a thread that does not exist
// yet: the Go runtime dies when it cannot make one, and what runs in the turn
// may have used up all pids.
package reaper
