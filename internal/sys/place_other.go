//go:build !linux

package sys

// PlaceOf returns ENOSYS.
func PlaceOf(name string) (Place, error) { return Place{}, nosys("statx " + name) }
