// Package users looks people up in the host's user database, as far as Go's
// own reader of /etc/passwd and /etc/group goes: names that only NSS modules
// know (LDAP, systemd-homed) are found by uid alone, through the socket's peer
// credentials.
package users

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"

	"pinfold.dev/containment"
)

// Database reads /etc/passwd anew when it has changed, which every launch asks
// for, and /etc/group at each look-up of a name.
type Database struct {
	Passwd string // for tests; empty: /etc/passwd

	mu   sync.Mutex
	seen fs.FileInfo // of the text
	text []byte
}

// ByUID finds a user by uid, without groups: those come from the peer.
func (d *Database) ByUID(uid uint32) (containment.User, error) {
	return d.find(func(name string, id uint64) bool { return id == uint64(uid) })
}

// ByName finds a user by name, or by uid in decimal, with all groups.
func (d *Database) ByName(name string) (containment.User, error) {
	u, err := d.find(func(n string, _ uint64) bool { return n == name })
	if err != nil {
		id, perr := strconv.ParseUint(name, 10, 32)
		if perr != nil {
			return u, err
		}
		if u, err = d.ByUID(uint32(id)); err != nil {
			return u, err
		}
	}
	groups, err := (&user.User{Username: u.Name, Gid: strconv.FormatUint(uint64(u.GID), 10)}).GroupIds()
	if err != nil {
		return u, fmt.Errorf("list groups of %s: %w", u.Name, err)
	}
	for _, g := range groups {
		id, err := strconv.ParseUint(g, 10, 32)
		if err != nil {
			return u, fmt.Errorf("list groups of %s: group %q: %w", u.Name, g, err)
		}
		u.Groups = append(u.Groups, uint32(id))
	}
	return u, nil
}

// Group finds a group by name, or by gid in decimal, which need not have an
// entry.
func (d *Database) Group(name string) (uint32, error) {
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	gid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, errNoGroup
	}
	return uint32(gid), nil
}

var errNoGroup = errors.New("no such group")

func (d *Database) find(match func(name string, uid uint64) bool) (containment.User, error) {
	text, err := d.passwd()
	if err != nil {
		return containment.User{}, err
	}
	return parse(text, match)
}

// passwd is the file as it is now. Who changes it makes another file and renames
// that, or at least writes it: see passwd(5) and vipw(8).
func (d *Database) passwd() ([]byte, error) {
	path := d.Passwd
	if path == "" {
		path = "/etc/passwd"
	}
	now, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen != nil && os.SameFile(d.seen, now) && d.seen.ModTime().Equal(now.ModTime()) && d.seen.Size() == now.Size() {
		return d.text, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d.seen, d.text = now, text
	return text, nil
}

// errNone is the answer when no line matches.
var errNone = errors.New("no such user")

// parse finds the first line of a passwd(5) file that matches. Lines that are
// malformed are passed over, as getpwnam(3) does.
func parse(text []byte, match func(name string, uid uint64) bool) (containment.User, error) {
	for line := range bytes.Lines(text) {
		f := strings.Split(string(bytes.TrimSuffix(line, []byte("\n"))), ":")
		if len(f) != 7 || f[0] == "" || f[0][0] == '#' {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || !match(f[0], uid) {
			continue
		}
		u := containment.User{UID: uint32(uid), GID: uint32(gid), Name: f[0], Home: f[5], Shell: f[6]}
		if u.Shell == "" {
			u.Shell = "/bin/sh" // passwd(5)
		}
		if u.Home == "" {
			u.Home = "/"
		}
		return u, nil
	}
	return containment.User{}, errNone
}
