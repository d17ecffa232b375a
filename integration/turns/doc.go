// Package turns tests the whole of Pinfold from outside: the real service, its
// keepers and the Go client, on a real kernel, with programs that do all they
// can to outlive their turn. It has tests only.
//
// Every test runs once for each grade: those of PINFOLD_TEST_GRADE, or all that
// this host offers. It needs root and cgroup v2; inside a test bed it gets the
// programs in PINFOLD_BIN_DIR, and more time on a slow machine with
// PINFOLD_TEST_SLOW, a factor.
//
// The test binary plays the programs that run in turns, too: see helpers. It
// is a child subreaper, so whatever a test leaves running becomes its child and
// fails it; a guard process cleans up when the test binary is killed. So no test is
// parallel: what one has just now would be what another has left behind.
package turns
