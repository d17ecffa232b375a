//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/internal/sys"
)

// The extended attributes that hold the nonce. Whoever owns the directory can
// forge user.*; trusted.* takes CAP_SYS_ADMIN in the first user namespace to
// read and to write. Neither is inherited by a child, and both go with the
// directory. user.* works on cgroup v2 from Linux 5.7.
const (
	attrTrusted = "trusted.pinfold"
	attrUser    = "user.pinfold"
)

// Mark writes the nonce into the directory's extended attribute: a trusted one
// where we may, else a user one.
func (d *Dir) Mark(nonce string) error {
	err := d.fd.Use(func(fd int) error {
		err := sys.Fsetxattr(fd, attrTrusted, []byte(nonce))
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EOPNOTSUPP) {
			err = sys.Fsetxattr(fd, attrUser, []byte(nonce))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("mark cgroup %s: %w", d.path, err)
	}
	return nil
}

// Nonce reads it back, the trusted one first. ENODATA: it bears none that we
// may read.
func (d *Dir) Nonce() (string, error) {
	var b []byte
	err := d.fd.Use(func(fd int) (err error) {
		if b, err = sys.Fgetxattr(fd, attrTrusted); err != nil {
			b, err = sys.Fgetxattr(fd, attrUser)
		}
		return
	})
	if err != nil {
		return "", fmt.Errorf("read mark of cgroup %s: %w", d.path, err)
	}
	return string(b), nil
}
