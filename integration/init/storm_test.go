package inits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// 10,000 orphans, as fast as a shell forks twice: all are reaped, none is left.
func TestStormOfOrphans(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		const text = `i=0; while [ $i -lt 10000 ]; do (: &); i=$((i+1)); done; sleep 0.3
			for p in /proc/[0-9]*/stat; do read -r l <$p && case $l in *") Z "*) echo zombie;; esac; done 2>/dev/null; exit 5`
		code, out := result(t, script(bin, []string{"--status", file}, text))
		b, _ := os.ReadFile(file)
		if code != 5 || out != "" || !strings.Contains(string(b), `"orphans":10000,`) {
			t.Errorf("code %d, output %q, status %s", code, out, b)
		}
	})
}

// Many short programs while the command ends: its code is not mistaken.
func TestShortProgramsWhileTheCommandEnds(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		const text = `i=0; while [ $i -lt 500 ]; do setsid /bin/true & i=$((i+1)); done; exit 77`
		for range 3 {
			want(t, script(bin, []string{"--wait-orphans"}, text), 77, "")
			want(t, script(bin, []string{"--kill-remaining"}, text), 77, "")
			want(t, script(bin, nil, text), 77, "")
		}
	})
}

// The command is killed from outside by its number.
func TestCommandIsKilled(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		want(t, script(bin, []string{"-q"}, `sh -c 'sleep 0.1; kill -KILL '$$ & exec sleep 100`), 137, "")
	})
}
