package inits

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Where a filter refuses prctl(2) altogether, no keeper can begin: what is refused,
// and what helps, is told of every grade.
func TestServePrctlRefused(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := container(t, bin, "rw", nil, "echo command")
		s.Errno, s.Calls = int(syscall.EPERM), []string{"prctl"}
		code, out := result(t, s)
		const says = "(it said: pinfold-init: keeper: become undumpable (PR_SET_DUMPABLE): prctl: operation not permitted (let the filter of system calls, seccomp, allow prctl))"
		_, cgroup, ok := strings.Cut(out, "; cgroup: self-test: ")
		cgroup, _, _ = strings.Cut(cgroup, "; pidns: ")
		if code != 125 || !ok || !strings.Contains(cgroup, says) || strings.Count(out, says) < 3 || strings.Contains(out, "command\n") {
			t.Errorf("code %d\n%s", code, out)
		}
	})
}

// Not as PID 1 it leaves no cgroup behind either if the service could not remove
// them: but one of somebody else's.
func TestServeForcedEndAsChild(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		const nest = `c=$(tail -1 /proc/self/cgroup); mkdir -p /sys/fs/cgroup${c#0::}/own/deep /sys/fs/cgroup${c#0::}/beside && echo >$0; exec sleep 1000`
		text := `t=$(pinfold begin); pinfold run --detach --turn $t -- sleep 1000; pinfold run --turn $t -- sh -c '` + nest + `' ` + file + `.nested & until [ -e ` + file + `.nested ]; do sleep 0.05; done
			until grep -q '"service":"ready"' ` + file + `; do sleep 0.05; done; kill -STOP $(sed 's/.*"service_pid":\([0-9]*\).*/\1/' ` + file + `); exit 4`
		s := container(t, bin, "rw", []string{"--status", file, "--kill-remaining=300ms"}, text)
		s.Argv = append([]string{"/bin/sh", "-c", `mkdir /sys/fs/cgroup/pinfold-other; "$@"; echo code $?; find /sys/fs/cgroup -name 'pinfold-*'; for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || tr '\0' ' ' <$p/cmdline; done`, "sh"}, s.Argv...)
		_, out := result(t, s)
		_, after, _ := strings.Cut(out, "turns have not ended in time: killed\n")
		if _, after, _ = strings.Cut(after, "code 4\n"); after != "/sys/fs/cgroup/pinfold-other\n" {
			t.Error(out)
		}
	})
}

// A gateway in the background is asked before its turns, which go on until it has
// ended, or has had its time; a second stop signal ends both.
func TestServeStopsOrphansFirst(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for name, c := range map[string]struct {
			onTerm, grace string
			says          []string // in this order
		}{
			"heeds": {"sleep 0.3; pinfold ps | grep -c open; exit", "60s", []string{"gateway asked\n1\n", "turn asked\n", "turn ended"}},
			"deaf":  {"", "5s", []string{"gateway asked\n", "orphans have not ended after the stop signal\n", "turn asked\n", "turn ended"}},
			"twice": {"", "10m", []string{"gateway asked\n", "a stop signal: turns are killed at once\n"}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "status")
				text := `turn=$(pinfold begin); pinfold run --detach --turn $turn -- sh -c 'trap "echo turn asked >/proc/1/fd/2; exit" TERM; : >` + file + `.turn; while :; do sleep 0.02; done' >/dev/null
					setsid sh -c 'trap "echo gateway asked; ` + c.onTerm + `" TERM; until [ -e ` + file + `.turn ] && grep -q waiting ` + file + `; do sleep 0.05; done; echo up; while :; do sleep 0.05; done' & exit 4`
				b := start(t, container(t, bin, "rw", []string{"--wait-orphans", "--status", file, "--kill-remaining=" + c.grace}, text))
				b.says("up\n")
				b.signal(syscall.SIGTERM)
				b.says("gateway asked\n")
				if name == "twice" {
					b.signal(syscall.SIGTERM)
				}
				if !b.endsIn(patience) || b.code() != 4 || !inOrder(b.out.String(), c.says) {
					t.Errorf("it does not end, or not with 4, or does not say %q:\n%s", c.says, b.out.String())
				}
			})
		}
	})
}

func inOrder(out string, says []string) bool {
	for _, text := range says {
		_, after, ok := strings.Cut(out, text)
		if !ok {
			return false
		}
		out = after
	}
	return true
}

// Another user's children cannot be killed by an init that is not root. It says so.
func TestMayNotKill(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(run.dir, "setpriv."+filepath.Base(filepath.Dir(bin)))
		var fs syscall.Statfs_t
		if check(syscall.Statfs(run.dir, &fs)); fs.Flags&2 != 0 { // ST_NOSUID
			missing(t, "a temporary directory with set-uid programs")
		}
		text, err := os.ReadFile(needProgram(t, "setpriv"))
		check(err)
		program(t, file, string(text))
		check(os.Chmod(file, 0o755|os.ModeSetuid))
		user := 20_000 + int(run.made.n.Add(1))
		s := script(bin, []string{"--kill-remaining=50ms"}, file+" --reuid=0 sleep 1000 & until grep -q '^Uid:.0.0.0' /proc/$!/status; do sleep 0.05; done; exit 5")
		s.UID = user
		code, out := result(t, s)
		if code != 5 || out != "pinfold-init: 1 process may not be killed by user "+strconv.Itoa(user)+": Operation not permitted\n" {
			t.Errorf("code %d\n%s", code, out)
		}
	})
}
