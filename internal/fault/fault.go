//go:build !faultpoints

// Package fault marks the places where a crash is tried: before and after each
// step that the disk, the kernel or systemd remembers. In a usual build a point
// is nothing; with the build tag faultpoints the environment decides which one
// does what, see PINFOLD_FAULT in points.go. integration/crash lists the points
// from the source and crashes at each, so their names are literals and unique.
package fault

// Enabled tells a build with fault points.
const Enabled = false

// Point marks a step.
func Point(name string) {}

// Environ is what a child's environment needs to have the same points.
func Environ() []string { return nil }
