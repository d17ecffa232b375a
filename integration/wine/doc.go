// Package wine runs the Windows tests of the identity packages on Linux, with
// Wine, and holds docs/platforms.md to what came out. It has tests only.
package wine
