package inits

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// called runs pinfold-init by another name.
func called(t *testing.T, bin, name string, env []string, args ...string) (code int, out string) {
	t.Helper()
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(bin, link); err != nil {
		t.Fatal(err)
	}
	return result(t, stage{Argv: append([]string{link}, args...)}, func(c *exec.Cmd) { c.Env = append(c.Env, env...) })
}

// By another's name it takes that one's options, and says what scripts look for.
func TestPersonas(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		args string
		code int
		says string
	}{
		{"tini", nil, "--version", 0, "tini version 0.19.0"},
		{"tini", nil, "-h", 0, "supervision of a valid init process"},
		{"tini", nil, "", 1, "more verbose"},
		{"tini", nil, "-z", 1, "supervision of a valid init process"},
		{"tini", nil, "-e 256 -- true", 1, "256"},
		{"tini", nil, "-e 1 -- false", 0, ""},
		{"tini", nil, "-p TERM -s -g -w -vv -- sh -c exit", 0, ""},
		{"tini", []string{"TINI_VERBOSITY=3"}, "-- true", 0, "Received SIGCHLD"},
		{"tini", nil, "-w -- sh -c (:&);(:&);sleep${IFS}2", 0, "Reaped zombie process with pid="},
		{"tini", nil, "-- nosuch", 127, "exec nosuch failed: No such file or directory"},
		{"docker-init", nil, "-- true", 0, ""},
		{"dumb-init", nil, "--version", 0, "dumb-init v1.2.5\n"},
		{"dumb-init", nil, "--yolo", 1, "dumb-init: unrecognized option '--yolo'\n"},
		{"dumb-init", nil, "", 1, "Usage: dumb-init [option] program [args]\nTry dumb-init --help for full usage.\n"},
		{"dumb-init", nil, "-r 1:40 true", 1, "1:40"},
		{"dumb-init", nil, "-v true", 0, "[dumb-init] setsid complete.\n[dumb-init] Child spawned with PID "},
		{"dumb-init", []string{"DUMB_INIT_DEBUG=1", "DUMB_INIT_SETSID=0"}, "sh -c exit", 0, "exited with exit status 0."},
		{"dumb-init", nil, "/doesnotexist", 2, "[dumb-init] /doesnotexist: No such file or directory\n"},
		{"catatonit", nil, "-V", 0, "tini version 0.19.0_catatonit"},
		{"catatonit", nil, "-- nosuch", 1, "No such file or directory"},
		{"catatonit", nil, "-g -- sh -c exit", 0, ""},
	} {
		t.Run(c.name+" "+c.args, func(t *testing.T) {
			builds(t, func(t *testing.T, bin string) {
				code, out := called(t, bin, c.name, c.env, strings.Fields(c.args)...)
				if code != c.code || !strings.Contains(out, c.says) {
					t.Errorf("%v: code %d, want %d; %q does not say %q", c.env, code, c.code, out, c.says)
				}
			})
		})
	}
}

// -P reaps and ends when it is told to, by any name.
func TestPause(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for _, sig := range []string{"TERM", "INT"} {
			code, out := result(t, stage{Argv: []string{"/bin/sh", "-c", `(sleep 0.3; kill -HUP 1; while :; do kill -` + sig + ` 1; sleep 0.3; done) & exec "$0" -P`, bin}})
			if code != 0 || out != "" {
				t.Errorf("%s: code %d, %q", sig, code, out)
			}
		}
	})
}

// An unknown option, no command: the code is our own, the line says which.
func TestUsage(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for args, says := range map[string]string{"--yolo": "unknown option --yolo", "-e 300 -- true": "300", "--": "no command", "-r 1 true": "--rewrite wants FROM:TO, two signals, bad value: 1",
			"--kill-remaining=x -- true": "--kill-remaining wants a time such as 5s or 500ms, bad value: x",
			"--status here -- true":      "--status wants the absolute path of a file, bad value: here", "-p": "-p"} {
			code, out := result(t, stage{Argv: append([]string{bin}, strings.Fields(args)...)})
			if code != 125 || !strings.Contains(out, says) {
				t.Errorf("%s: code %d, %q", args, code, out)
			}
		}
	})
}
