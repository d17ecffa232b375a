package inits

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// prepared has a shell do something before it becomes the init.
func prepared(s stage, text string) stage {
	s.Argv = append([]string{"/bin/sh", "-c", text + `; exec "$@"`, "sh"}, s.Argv...)
	return s
}

// What the environment names is found from the directory that the init was started
// in, by the service, by its clients, and by the ending; empty, it names nothing.
func TestServeNamed(t *testing.T) {
	const life = `tail -1 /proc/self/cgroup; echo at $PINFOLD_SOCKET; cd /var; pinfold ps >/dev/null && echo found; ls /run/state/history.db; exit 3`
	builds(t, func(t *testing.T, bin string) {
		for name, c := range map[string]struct{ before, at, state string }{
			"empty":    {"export PINFOLD_RUNTIME_DIR= PINFOLD_STATE_DIR= PINFOLD_SOCKET= PINFOLD_GRADE= PINFOLD_CGROUP_PARENT= PINFOLD_INIT=", "/run/pinfold/pinfold.sock", ""},
			"relative": {"cd /run; export PINFOLD_RUNTIME_DIR=here PINFOLD_STATE_DIR=state", "/run/here/pinfold.sock", "/run/state/history.db\n"},
			"socket":   {"cd /run; export PINFOLD_SOCKET=a.sock", "/run/a.sock", ""},
			"no state": {"export PINFOLD_RUNTIME_DIR=/run/here; touch /var/lib/pinfold; cd /run; ln -s here/state state", "/run/here/pinfold.sock", "/run/state/history.db\n"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := container(t, bin, "rw", nil, life)
				code, out := result(t, prepared(s, c.before))
				if code != 3 || !strings.Contains(out, "grade cgroup: the service is ready on "+c.at+"\n0::/pinfold-command.1\nat "+c.at+"\nfound\n"+c.state) {
					t.Errorf("code %d\n%s", code, out)
				}
			})
		}
	})
}

// --serve=PATH is as it is for the shell that says so.
func TestServeProgramNearby(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := container(t, bin, "rw", nil, "exit 3")
		pinfold := strings.TrimPrefix(s.Argv[1], "--serve=")
		s.Argv[1] = "--serve=./" + filepath.Base(pinfold)
		if code, out := result(t, prepared(s, "cd "+filepath.Dir(pinfold))); code != 3 {
			t.Errorf("code %d\n%s", code, out)
		}
	})
}

// Where the service can have no directory, the command starts only if it may
// without.
func TestServeNowhere(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for want, flags := range map[int][]string{125: nil, 3: {"--serve-optional", "--status=/dev/shm/status"}} {
			s := container(t, bin, "none", flags, "echo command; while ! grep down /dev/shm/status; do sleep 0.05; done; exit 3")
			s.UID, s.ReadOnly, s.Tmpfs = 20_000+int(run.made.n.Add(1)), true, append(s.Tmpfs, "/dev/shm")
			stands := fmt.Sprintf("pinfold-%d", s.UID)
			t.Cleanup(func() { _ = os.Remove("/tmp/" + stands) })
			code, out := result(t, prepared(s, "touch /dev/shm/"+stands+" /tmp/"+stands))
			if code != want || !strings.Contains(out, "no directory for the service") || strings.Contains(out, "command\n") != (want == 3) {
				t.Errorf("code %d, want %d\n%s", code, want, out)
			}
		}
	})
}

// A gateway that goes into the background has its service, and its turns, for as
// long as it is waited for.
func TestServeWaitsForOrphans(t *testing.T) {
	const daemon = `pinfold run --detach -- sleep 1000 >/dev/null; setsid sh -c 'trap "" TERM; sleep 0.5; pinfold ps | grep -c open; echo late; %s' & exit 4`
	builds(t, func(t *testing.T, bin string) {
		for end, tries := range map[string][][]string{"exit": {{"--wait-orphans"}},
			"sleep 1000": {{"--wait-orphans=8s", "--kill-remaining=1s"}, {"--wait-orphans=45s", "--kill-remaining=1s"}}} {
			code, out := 0, ""
			for _, flags := range tries { // a busy machine may not come to say it in the shorter time
				if code, out = result(t, container(t, bin, "rw", flags, fmt.Sprintf(daemon, end))); strings.Contains(out, "late\n") {
					break
				}
			}
			_, after, ok := strings.Cut(out, "\n1\nlate\n")
			if code != 4 || !ok || !strings.Contains(after, "state=abandoned") || strings.Contains(after, "orphans are left") != (end != "exit") {
				t.Errorf("code %d\n%s", code, out)
			}
		}
	})
}
