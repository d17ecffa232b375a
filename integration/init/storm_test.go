package inits

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// 10,000 orphans, as fast as a shell forks twice: all are reaped, none is left.
func TestStormOfOrphans(t *testing.T) {
	buildsAlone(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		n := 10_000
		if bin == run.plain && !long() {
			n = 3000
		}
		text := fmt.Sprintf(`i=0; while [ $i -lt %[1]d ]; do (: &); i=$((i+1)); done
			until grep -q '"orphans":%[1]d[,}]' %[2]s; do sleep 0.1; done
			for p in /proc/[0-9]*/stat; do read -r l <$p && case $l in *") Z "*) echo zombie;; esac; done 2>/dev/null; exit 5`, n, file)
		code, out := result(t, script(bin, []string{"--status", file}, text))
		b, _ := os.ReadFile(file)
		if code != 5 || out != "" || !strings.Contains(string(b), fmt.Sprintf(`"orphans":%d,`, n)) {
			t.Errorf("code %d, output %q, status %s", code, out, b)
		}
	})
}

// Many short programs while the command ends: its code is not mistaken.
func TestShortProgramsWhileTheCommandEnds(t *testing.T) {
	buildsAlone(t, func(t *testing.T, bin string) {
		const text = `i=0; while [ $i -lt 500 ]; do setsid /bin/true & i=$((i+1)); done; exit 77`
		rounds := 1
		if long() {
			rounds = 3
		}
		for range rounds {
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

// Beside an orphan that is in state D (as the parent of a vfork is) the others are
// reaped.
func TestUninterruptibleOrphan(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		python, err := lookPython()
		if err != nil {
			missing(t, "the program python3 (scripts/deps.sh installs it)")
		}
		file := filepath.Join(t.TempDir(), "status")
		text := `(` + python + ` -c 'import ctypes, os, time, platform
nr = 56 if platform.machine() == "x86_64" else 220
if ctypes.CDLL(None).syscall(nr, 0x4011, 0, 0, 0, 0) == 0: time.sleep(60)' & echo $! >` + file + `.pid); read -r pid <` + file + `.pid
			i=0; while [ $i -lt 300 ]; do i=$((i+1)); read -r l </proc/$pid/stat; case $l in *") D "*) echo asleep; break;; esac; sleep 0.1; done
			i=0; while [ $i -lt 50 ]; do (: &); i=$((i+1)); done
			j=0; until grep -q '"orphans":50' ` + file + ` || [ $j = 300 ]; do j=$((j+1)); sleep 0.1; done; cat ` + file + `; exit 5`
		code, out := result(t, script(bin, []string{"--status", file, "--kill-remaining=100ms"}, text))
		if code != 5 || !strings.Contains(out, "asleep") || !strings.Contains(out, `"orphans":50}`) {
			t.Errorf("code %d, %q", code, out)
		}
	})
}
