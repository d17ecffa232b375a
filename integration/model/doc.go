// Package model lets chance drive the whole of Pinfold: a real service, its
// keepers, gateways of several users, turns, jobs and programs that fork, leave
// their session, outlive their parents and ignore TERM. Beside it goes a model
// that knows who must live and who must be gone; after every step the two are
// compared. It has tests only.
//
// It goes on for half a minute, with -short for 20 s, and for as long as
// PINFOLD_MODEL_FOR says (1h). A failure tells its seed and all steps; the seed
// is tried again with -rapid.seed, though time and the kernel have their part in
// what happens.
//
// It needs root and cgroup v2. In a test bed it follows PINFOLD_TEST_GRADE,
// PINFOLD_TEST_CGROUP, PINFOLD_BIN_DIR and PINFOLD_TEST_SLOW, as package turns
// does.
package model
