// Package reaper is the keeper's engine: the parent of everything that is
// launched in one turn, and its child subreaper. It launches, reaps, keeps the
// journal, and answers the service over the protocol of internal/wire.
//
// Two threads do everything, under one lock. The loop waits in epoll for the
// listening socket, the connections and the pipes of launches that are not
// decided; nothing it does waits for anybody, so that a connection that does
// not read, or a launch into a cgroup that was frozen meanwhile, holds up
// nothing. The reaper waits in waitid(2) for any child, and only peeks there:
// it reaps under the lock, so that a launch is always known before its end is
// seen. An idle keeper is never woken. Neither thread, nor the garbage
// collector, ever needs a thread that does not exist yet: the Go runtime dies
// when it cannot make one, and what runs in the turn may have used up all pids.
package reaper
