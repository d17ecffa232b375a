package inits

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExitCodes(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		dir := t.TempDir()
		plain, noHead := filepath.Join(dir, "plain"), filepath.Join(dir, "nohead")
		write(t, plain, "echo ran $1\n")
		program(t, noHead, "echo ran $1\n")
		want(t, script(bin, nil, "exit 42"), 42, "")
		want(t, script(bin, nil, "kill -TERM $$"), 143, "pinfold-init: Main child exited with signal (with signal 'SIGTERM')")
		want(t, script(bin, []string{"-e", "143", "-e3"}, "kill -TERM $$"), 0, "pinfold-init: Main child exited with signal (with signal 'SIGTERM')")
		want(t, script(bin, []string{"-e", "143", "-e3"}, "exit 3"), 0, "")
		want(t, script(bin, []string{"-e", "143", "-e3"}, "exit 4"), 4, "")
		want(t, stage{Argv: []string{bin, "no-such"}}, 127, "pinfold-init: start no-such: No such file or directory")
		want(t, stage{Argv: []string{bin, plain}}, 126, "pinfold-init: start "+plain+": Permission denied")
		want(t, stage{Argv: []string{bin, "/etc"}}, 126, "pinfold-init: start /etc: Permission denied")
		want(t, stage{Argv: []string{bin, noHead, "here"}}, 0, "ran here")
	})
}

// What is left is asked, has its time, and is killed.
func TestKillRemaining(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "go")
		stubborn := `setsid sh -c 'trap "echo asked" TERM; echo up; while :; do sleep 0.05; done' & until [ -e ` + file + ` ]; do sleep 0.02; done; exit 9`
		t.Run("grace", func(t *testing.T) {
			b := start(t, script(bin, []string{"--kill-remaining=700ms"}, stubborn))
			b.says("up")
			began := time.Now() // nobody is asked before
			write(t, file, "")
			b.says("asked")
			if code := b.code(); code != 9 {
				t.Errorf("code %d", code)
			}
			if d := time.Since(began); d < 700*time.Millisecond {
				t.Errorf("killed after %v of 700 ms", d)
			}
			if n := strings.Count(b.out.String(), "asked"); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
		t.Run("a second stop signal shortens it", func(t *testing.T) {
			_ = os.Remove(file)
			b := start(t, script(bin, []string{"--kill-remaining=500s"}, stubborn))
			b.says("up")
			write(t, file, "")
			b.says("asked")
			b.signal(syscall.SIGTERM)
			if !b.endsIn(patience) || b.code() != 9 {
				t.Errorf("it does not end, or not with 9:\n%s", b.out.String())
			}
		})
		t.Run("it ends when they do", func(t *testing.T) {
			b := start(t, script(bin, []string{"--kill-remaining=500s"}, `setsid sleep 1000 & setsid sh -c 'sleep 1000 & wait' & exit 3`))
			if !b.endsIn(patience) || b.code() != 3 {
				t.Errorf("it does not end, or not with 3:\n%s", b.out.String())
			}
		})
	})
}

func TestWaitOrphans(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		const late, never = `setsid sh -c 'sleep 0.4; echo late' & exit 4`, `setsid sh -c 'sleep 1000; echo late' & exit 4`
		want(t, script(bin, nil, never), 4, "")
		want(t, script(bin, []string{"--wait-orphans"}, late), 4, "late")
		want(t, script(bin, []string{"--wait-orphans=100ms"}, never), 4, "pinfold-init: orphans are left after 100 ms")
	})
}

func TestHooks(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		flags := []string{"--on-start", "echo start", "--on-stop=echo stop; exit 7"}
		want(t, script(bin, flags, "echo main; exit 5"), 5, "start\nmain\nstop\npinfold-init: --on-stop ended with 7")
		want(t, script(bin, []string{"--on-start", "exit 6", "--on-stop", "echo stop"}, "echo main"), 6,
			"pinfold-init: --on-start ended with 6: the command is not started")
		// --stop-timeout is the command's, whether it heeds the signal or not.
		b := start(t, script(bin, []string{"--stop-timeout=300ms", "--on-stop=sleep 0.6; echo saved"}, `trap "exit 3" TERM; echo up; while :; do sleep 0.05; done`))
		b.says("up")
		b.signal(syscall.SIGTERM)
		if code := b.code(); !strings.Contains(b.out.String(), "saved") {
			t.Errorf("--on-stop was killed by the command's clock: code %d, %q", code, b.out.String())
		}
		b = start(t, script(bin, []string{"--on-start", "echo up; sleep 100"}, "echo main"))
		b.says("up")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 143 || strings.Contains(b.out.String(), "main") {
			t.Errorf("code %d, %q", code, b.out.String())
		}
	})
}

func TestStopTimeout(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		const deaf = `trap "" TERM; echo up; while :; do sleep 0.05; done`
		b := start(t, script(bin, []string{"--stop-timeout=300ms"}, deaf))
		b.says("up")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 137 || !strings.Contains(b.out.String(), "not ended 300 ms after the stop signal: killed") {
			t.Errorf("code %d, %q", code, b.out.String())
		}
		b = start(t, script(bin, []string{"--stop-timeout=500s"}, `trap "echo asked" TERM; echo up; while :; do sleep 0.05; done`))
		b.says("up")
		b.signal(syscall.SIGTERM)
		b.says("asked")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 137 || !strings.Contains(b.out.String(), "a second stop signal: the command is killed") {
			t.Errorf("asked twice: code %d, %q", code, b.out.String())
		}
		b = start(t, script(bin, nil, `trap "" TERM; echo up; exec sleep 1`))
		b.says("up")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 0 {
			t.Errorf("without the option: code %d", code)
		}
	})
}

func TestStatusFile(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		code, out := result(t, script(bin, []string{"--status", file}, `i=0; while [ $i -lt 20 ]; do (: &); i=$((i+1)); done
			until grep -q '"orphans":20' `+file+`; do sleep 0.05; done; kill -KILL $$`))
		b, err := os.ReadFile(file)
		wantText := `"orphans":20,"code":137,"signal":"SIGKILL"}`
		if code != 137 || err != nil || !strings.Contains(string(b), wantText) || !strings.Contains(string(b), `"state":"ended"`) {
			t.Errorf("code %d, status %q (%v), output %q", code, b, err, out)
		}
	})
}

func TestRewrite(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		const say = `for s in HUP USR1 USR2; do trap "echo $s" $s; done; trap 'echo QUIT; q=1' QUIT; echo up; until [ "$q" ]; do sleep 0.05; done`
		b := start(t, script(bin, []string{"-r", "15:3", "-rHUP:USR1", "--rewrite=10:0"}, say))
		b.says("up")
		b.signal(syscall.SIGHUP)
		b.says("USR1\n")
		b.signal(syscall.SIGUSR1)
		b.signal(syscall.SIGTERM)
		b.says("QUIT")
		if code := b.code(); code != 0 || strings.Count(b.out.String(), "USR1") != 1 {
			t.Errorf("code %d, %q", code, b.out.String())
		}
	})
}

// The parent-death signal reaches the command when the init's parent dies.
func TestParentDeath(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		f := filepath.Join(t.TempDir(), "f")
		text := fmt.Sprintf(`sh -c '%[1]s -q -p TERM -- sh -c "trap \"echo told; : >%[2]s.told; exit\" TERM; echo up; : >%[2]s.up; sleep 1000 & wait" & until [ -e %[2]s.up ]; do sleep 0.02; done; kill -KILL $$'
			i=0; until [ -e %[2]s.told ] || [ $i = 1000 ]; do i=$((i+1)); sleep 0.05; done; echo late`, bin, f)
		b := start(t, script(run.early, nil, text))
		b.says("late")
		if out := b.out.String(); !strings.Contains(out, "up\n") || !strings.Contains(out, "told") {
			t.Fatalf("the command was not told: %q", out)
		}
	})
}
