// Package hosts holds the service to what it claims on hosts that lack things: each
// is made, by mount namespaces and seccomp filters, and nothing of it is played.
// The table in docs/grades.md is what the tests have seen (-update writes it).
package hosts
