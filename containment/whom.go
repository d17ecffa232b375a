package containment

import (
	"errors"
	"strconv"

	"pinfold.dev/api"
)

// whom settles user, group and groups; set tells that they are not what the
// service's own processes have anyway.
func (m *Manager) whom(c Caller, req api.LaunchRequest) (u User, set bool, err error) {
	if u, set, err = m.user(c, req); err != nil {
		return u, set, err
	}
	if req.Group == "" && req.Groups == nil {
		return u, set, nil
	}
	if c.UID != 0 || m.cfg.UID != 0 {
		return u, false, api.Errorf(api.CodeForbidden, "uid %d may not choose groups", c.UID).
			WithRemedy("only root may, at the system service; leave group and groups out")
	}
	if req.Group != "" {
		if u.GID, err = m.group(req.Group); err != nil {
			return u, false, err
		}
	}
	if req.Groups != nil {
		u.Groups = []uint32{}
		for _, name := range req.Groups {
			gid, err := m.group(name)
			if err != nil {
				return u, false, err
			}
			u.Groups = append(u.Groups, gid)
		}
	}
	return u, true, nil
}

// nobody is -1, which means to leave an id as it is, see setresuid(2).
const nobody = 1<<32 - 1

func (m *Manager) group(name string) (uint32, error) {
	gid, err := m.cfg.Users.Group(name)
	if err == nil && gid == nobody {
		err = errors.New("no such group")
	}
	if err != nil {
		return 0, api.Errorf(api.CodeLaunchRefused, "look up group %q: %v", name, err).
			WithRemedy("name a group of this host, or a gid").With("step", "user")
	}
	return gid, nil
}

// user is whom the process runs as.
func (m *Manager) user(c Caller, req api.LaunchRequest) (u User, set bool, err error) {
	name := req.User
	if name == "" {
		u, err = m.cfg.Users.ByUID(c.UID)
		if err != nil { // a uid without an entry is no mistake: containers have many
			u = unlisted(c.UID)
		}
		u.UID, u.GID, u.Groups = c.UID, c.GID, c.Groups
		if c.UID != m.cfg.UID && m.cfg.UID != 0 {
			return u, false, api.Errorf(api.CodeForbidden, "the service runs as uid %d and cannot launch as uid %d", m.cfg.UID, c.UID).
				WithRemedy("use the system service, or one of your own")
		}
		return u, m.cfg.UID == 0, nil
	}
	if u, err = m.named(name, req.Group != ""); err != nil {
		return u, false, err
	}
	if u.UID != c.UID && c.UID != 0 {
		return u, false, api.Errorf(api.CodeForbidden, "uid %d may not launch as user %q", c.UID, name).
			WithRemedy("only root may name another user")
	}
	if u.UID != m.cfg.UID && m.cfg.UID != 0 {
		return u, false, api.Errorf(api.CodeForbidden, "the service runs as uid %d and cannot launch as user %q", m.cfg.UID, name).
			WithRemedy("use the system service")
	}
	return u, m.cfg.UID == 0, nil
}

// named finds a user. A uid that the host has no entry for can be used with a
// group: nothing says which one would be its own.
func (m *Manager) named(name string, grouped bool) (User, error) {
	u, err := m.cfg.Users.ByName(name)
	if err == nil {
		return u, nil
	}
	e := api.Errorf(api.CodeLaunchRefused, "look up user %q: %v", name, err).With("step", "user")
	uid, nerr := strconv.ParseUint(name, 10, 32)
	switch {
	case nerr != nil || uid == nobody:
		return u, e.WithRemedy("name a user of this host, or a uid")
	case !grouped:
		return u, e.WithRemedy("name a group, too: this host has no entry for the uid")
	}
	return unlisted(uint32(uid)), nil
}

func unlisted(uid uint32) User {
	return User{UID: uid, Home: "/", Shell: "/bin/sh", Name: strconv.FormatUint(uint64(uid), 10), Groups: []uint32{}}
}
