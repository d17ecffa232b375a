// Package events keeps what happened to turns: one log for all of them, in
// segments below the state directory. It implements containment.Events.
//
// A segment is a file of JSON lines, named after the first number that it may
// have. Its first line has what is needed to go on from there without the
// segments before it. Each line ends with a sum of itself: one that is damaged is
// left out, and told as a gap. Lines are written by one goroutine and never
// synced: they survive the service, not the host. After a crash of the host, and
// when numbers may have been told that are on no disk, the log goes on after a
// leap, so that no number is used for two events; the leap is told as a gap.
//
// Readers see an event once it was written. While the disk does not take any
// (it is full, read-only, or hangs), events are kept in memory, up to a bound,
// and readers see them from there, as soon as the number up to which they might
// have is noted in the runtime directory, which is on another file system.
//
// There is no queue for a reader: it asks for what comes after a number, and is
// answered from memory, or from a segment. What it has not asked for costs
// nothing.
package events
