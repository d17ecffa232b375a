// Package spool is the bounded file that keeps what one output stream said. A
// keeper writes it (Writer: one thread, no allocation, no lock); any number of
// readers in any process read it meanwhile and afterwards (Reader), also when
// the writer was killed between any two instructions.
//
// A byte has an absolute offset, which never changes. The file keeps the first
// quarter of its size, the head, for good, and the latest bytes in the rest, a
// ring. What is between, and what could not be written, is a Gap.
//
// The file is a header page, the head and the ring, and grows as it is written.
// The header has a fixed part and two slots, which are written in turn; a slot
// has a sequence number and a checksum, so that a torn one is known and the
// other one holds. What is in a slot is the State: how far the stream is
// (total), how far the ring was given to the writer (written), what was lost.
// The rules:
//
//   - total is published after the bytes below it are in the file;
//   - written is published before bytes of the ring are overwritten; what is a
//     ring's length below it is gone;
//   - a reader looks at written again after it has copied.
//
// Slots go through pwrite(2) and pread(2), not through a mapping: a store to a
// mapped page of a copy-on-write file system that is full, or a load behind the
// end of a file that somebody truncated, is SIGBUS.
//
// Nothing is synced: the file outlives its writer, not the machine.
package spool
