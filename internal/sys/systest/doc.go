// Package systest is for tests that need real processes: helper programs that
// are the test binary itself, an account of descriptors left open, and the one
// way to skip.
package systest
