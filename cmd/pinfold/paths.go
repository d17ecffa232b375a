package main

import "path/filepath"

const (
	socketName = "pinfold.sock"
	initName   = "pinfold-init"
	systemDir  = "/run/pinfold"
)

// defaultDirs are where a service keeps its things when nobody says: the
// system's directories for root, the user's own otherwise. A part is empty
// where the environment does not tell.
type defaultDirs struct{ runtime, state string }

func dirsFor(uid int, getenv func(string) string) defaultDirs {
	if uid == 0 {
		return defaultDirs{runtime: systemDir, state: "/var/lib/pinfold"}
	}
	var d defaultDirs
	if run := getenv("XDG_RUNTIME_DIR"); run != "" {
		d.runtime = filepath.Join(run, "pinfold")
	}
	switch state, home := getenv("XDG_STATE_HOME"), getenv("HOME"); {
	case state != "":
		d.state = filepath.Join(state, "pinfold")
	case home != "":
		d.state = filepath.Join(home, ".local", "state", "pinfold")
	}
	return d
}
