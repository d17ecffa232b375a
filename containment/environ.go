package containment

import (
	"slices"
	"strings"
)

// managerVars belong to a service manager's protocol with one process. Passed
// on, they make a child speak for the service: claim its readiness, its
// sockets, its unit (see sd_notify(3), sd_listen_fds(3), systemd.exec(5)).
var managerVars = [...]string{"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID",
	"INVOCATION_ID", "JOURNAL_STREAM", "WATCHDOG_PID", "WATCHDOG_USEC", "MAINPID", "MANAGERPID", "MANAGERPIDFDID",
	"SYSTEMD_EXEC_PID", "FDSTORE", "CREDENTIALS_DIRECTORY", "RUNTIME_DIRECTORY", "STATE_DIRECTORY",
	"CACHE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"}

// scrub leaves those out.
func scrub(env []string) []string {
	out := make([]string, 0, len(env))
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !managerVar(name) {
			out = append(out, kv)
		}
	}
	return out
}

// WithoutManagers leaves out of an environment what belongs to a service
// manager's protocol with one process, as every launch does.
func WithoutManagers(env []string) []string { return scrub(env) }

func managerVar(name string) bool {
	for _, v := range managerVars {
		if v == name {
			return true
		}
	}
	return false
}

// environ is a launch's environment: what was said, or the base, changed by add.
// Nil env is the base, with a TERM for a process that gets a terminal; an empty
// one is empty.
func environ(env, add []string, u User, terminal bool) []string {
	if env == nil {
		env = baseEnv(u)
		if terminal {
			env = append(env, "TERM=xterm") // which every terminal of today understands
		}
	} else {
		env = scrub(env)
	}
	for _, kv := range scrub(add) {
		name, _, sets := strings.Cut(kv, "=")
		env = slices.DeleteFunc(env, func(had string) bool {
			n, _, _ := strings.Cut(had, "=")
			return n == name
		})
		if sets {
			env = append(env, kv)
		}
	}
	return env
}

// baseEnv is what a process gets whose request names no environment.
func baseEnv(u User) []string {
	path := "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
	if u.UID == 0 {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return []string{"PATH=" + path, "HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=" + u.Shell,
		"LANG=C.UTF-8"}
}
