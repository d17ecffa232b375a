// Package archtest holds the tree to its own rules: which package may import
// what and why, one package comment each, files and functions that fit a
// screen, no package state, and nothing that names the machine it was written
// on. It has tests only.
package archtest
