// Package feature finds out what the kernel can do here, by trying it.
//
// A probe has three outcomes: nil, it is there; an error that is
// ErrNotSupported, it conclusively is not; any other error, it cannot be told,
// which is not remembered. Version numbers decide nothing: seccomp filters,
// backports and emulators make liars of them. They are only in the text.
package feature
