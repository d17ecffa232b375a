// Package containment is what Pinfold is about: turns, their life, and their
// ending. It decides, and it keeps the account; everything that touches the
// kernel, systemd or a disk is behind the ports in ports.go.
package containment
