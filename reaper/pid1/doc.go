// Package pid1 is the init of a container: it starts one command, passes signals
// on to it, reaps whatever the kernel makes its child, and ends as the command
// did. What it does and how that compares is in docs/init.md.
//
// # Before the runtime
//
// The program can be linked with -E pinfold.dev/reaper/pid1.early. Then the
// kernel starts it in early (early_linux_*.s), not in the Go runtime: all signals
// are blocked by the first system call, and boot runs the whole life of the init
// on the stack that the kernel made. There is one thread, no heap, no collector;
// mask and dispositions are those that were inherited, and nothing has to be made
// later that could be refused. What is not an init's work (help, the keeper) goes
// on into the runtime as if nothing had been.
//
// Without -E the runtime starts as always, and Run leaves it for the same code:
// on a stack and a g of its own, the calling thread never to come back. Signals
// that the kernel gives to other threads are passed to this one by a handler
// (redirect). That costs start-up time, memory, the first millisecond's signals
// and the part of the inherited mask that the runtime unblocks.
//
// With --serve all that stays so: the service is one more child, watched by the
// same loop (serve_linux.go), its readiness read from a pipe. What that needs is in
// pages of its own (service), which an init without it does not have.
//
// # Rules for code that runs there
//
// All that boot reaches is ordinary Go, with a zeroed g: no stack check fires, no
// write barrier is on. It must not need what the runtime sets up:
//
//   - no allocation: no new, make, append, closures, string concatenation, nothing
//     that escapes; state is in init_, which is a local variable of boot
//   - no maps, channels, interfaces (so no errors, no fmt), defer, panic, go
//   - package variables are constant tables
//   - system calls only through the functions of sys_linux.go
//   - an index out of range is a crash: of arrays take constant sizes and check
//
// TestNeedsNoRuntime reads the compiler's output and names the line that breaks
// them. The clone in which a command starts shares the memory (childMain), so
// it changes nothing but what its parent expects.
package pid1
