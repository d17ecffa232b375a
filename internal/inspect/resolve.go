//go:build linux

package inspect

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// mostLinks is how many symbolic links a path may lead through: as many as the
// kernel follows, see path_resolution(7).
const mostLinks = 40

// resolve follows the symbolic links of an absolute path as the kernel does, as
// far as there is something; what comes after that stays as it is said. A
// process can still use what is not there any more.
func resolve(path string) (string, error) {
	rest, done, links := strings.Split(path, "/"), "", 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, strings.LastIndexByte(done, '/'))]
			continue
		}
		next := done + "/" + name
		to, err := os.Readlink(next)
		switch {
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			done = next // no link, or nothing
			continue
		case err != nil:
			return "", err
		}
		if links++; links > mostLinks {
			return "", &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		if strings.HasPrefix(to, "/") {
			done = ""
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	if done == "" {
		return "/", nil
	}
	return done, nil
}
