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

func rows() []row {
	return []row{
		{"the command exits with 42; is killed by KILL", askCodes, "42; 137", ""},
		{"it is missing; is a directory", askMissing, "127; 126", "as a shell has it"},
		{"it is a script without `#!`", askScript, "runs", ""},
		{"orphans are reaped as PID 1", askOrphans, "yes", ""},
		{"and not as PID 1, without options", askSubreaper, "yes", "a subreaper by itself, and says so"},
		{"signals that are not passed on", askSignals, "none", "KILL, STOP and CHLD apart; a fault's is passed on where kill(2) sent it"},
		{"real-time signals that arrive of 5", askQueued, "5", ""},
		{"SEGV from inside to PID 1", askSegv, "lives", ""},
		{"the command keeps ignored signals; the mask", askInherited, "yes; yes", "begins before the runtime"},
		{"standard input is closed", askClosed, "runs", ""},
		{"does not start where these are refused", askRefused, "none", "what it can do without is not asked twice"},
		{"^Z, under a shell with job control", askStopOutside, "the shell goes on", "stops with its command, and gives the terminal back"},
		{"^Z, in a shell that it runs", askStopInside, "works", ""},
		{"descriptors of others are kept open by it", askDescriptors, "no", "else a pipe's other end waits for the container"},
		{"its working directory", askDirectory, "/", "else a mount cannot be removed"},
		{"`LISTEN_PID` is the command's", askListenPID, "yes", "socket activation works"},
		{"starts in 20 MB of address space", askAddressSpace, "yes", "begins before the runtime"},
		{"wake-ups while idle", askIdle, "none", ""},
		{"what is left when the command ends", askLeft, "killed at once", "`--kill-remaining`: asked, and waited for"},
	}
}

func yes(ok bool) string { return either(ok, "yes", "no") }

func either(ok bool, a, b string) string {
	if ok {
		return a
	}
	return b
}

func askCodes(t *testing.T, p peer) string {
	a, _ := result(t, script(p.bin, nil, "exit 42"))
	b, _ := result(t, script(p.bin, nil, "kill -KILL $$"))
	return fmt.Sprintf("%d; %d", a, b)
}

func askMissing(t *testing.T, p peer) string {
	a, _ := result(t, stage{Argv: []string{p.bin, "--", "/no/such"}})
	b, _ := result(t, stage{Argv: []string{p.bin, "--", "/etc"}})
	return fmt.Sprintf("%d; %d", a, b)
}

func askScript(t *testing.T, p peer) string {
	file := filepath.Join(t.TempDir(), "s")
	program(t, file, "echo ran\n")
	_, out := result(t, stage{Argv: []string{p.bin, "--", file}})
	return either(strings.Contains(out, "ran"), "runs", "fails")
}

func askOrphans(t *testing.T, p peer) string {
	file := filepath.Join(t.TempDir(), "pid")
	_, out := result(t, stage{Argv: []string{p.bin, "--", "/bin/sh", "-c", "(sleep 0.1 & echo $! >\"$0\"); read -r pid <\"$0\"; i=0; while [ -e /proc/$pid ] && [ $i -lt 600 ]; do i=$((i+1)); sleep 0.1; done; [ -e /proc/$pid ] || echo reaped", file}})
	return yes(strings.Contains(out, "reaped"))
}

// askSubreaper asks an orphan, below an init that is not PID 1, for its parent.
func askSubreaper(t *testing.T, p peer) string {
	f := filepath.Join(t.TempDir(), "f")
	text := p.bin + ` -- /bin/sh -c 'echo init $PPID; (sh -c "until [ -e ` + f + `.go ]; do sleep 0.02; done; grep PPid /proc/\$\$/status; : >` + f + `.done" & )
		: >` + f + `.go; until [ -e ` + f + `.done ]; do sleep 0.02; done'; :`
	_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", text}})
	var init, parent int
	for line := range strings.Lines(out) {
		_, _ = fmt.Sscanf(line, "init %d", &init)
		_, _ = fmt.Sscanf(line, "PPid:\t%d", &parent)
	}
	if init == 0 || parent == 0 {
		t.Fatalf("%s: %q", p.name, out)
	}
	return yes(init == parent)
}

func askSignals(t *testing.T, p peer) string {
	left := notForwarded(sendAll(listener(t, p.bin), patient(p)))
	return either(len(left) == 0, "none", strings.Join(left, " "))
}

func askQueued(t *testing.T, p peer) string {
	b := listener(t, p.bin)
	for range 5 {
		b.signal(syscall.Signal(40))
	}
	b.hears(5, patient(p))
	return fmt.Sprint(len(got(b.out.String())))
}

func askSegv(t *testing.T, p peer) string {
	code, out := result(t, script(p.bin, nil, `trap "" SEGV; kill -SEGV 1; sleep 0.1; echo alive`))
	return either(code == 0 && strings.Contains(out, "alive"), "lives", "dies")
}

func askInherited(t *testing.T, p peer) string {
	const ignore, block = 1<<12 | 1<<14, 1<<9 | 1<<14
	s := stage{Ignore: ignore, Block: block, Argv: []string{p.bin, "--", "/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}}
	_, out := result(t, s)
	return yes(strings.Contains(out, fmt.Sprintf("SigIgn:\t%016x", ignore))) + "; " +
		yes(strings.Contains(out, fmt.Sprintf("SigBlk:\t%016x", block)))
}

func askClosed(t *testing.T, p peer) string {
	s := script(p.bin, nil, "echo runs")
	s.Close = []int{0}
	_, out := result(t, s)
	return either(strings.Contains(out, "runs\n"), "runs", "fails")
}

func askRefused(t *testing.T, p peer) string {
	var fatal []string
	for _, call := range []string{"setpgid", "setsid", "ioctl", "prctl", "rt_sigtimedwait", "signalfd4"} {
		s := script(p.bin, nil, "echo runs; exit 5")
		s.Errno, s.Calls = int(syscall.EPERM), []string{call}
		b := start(t, s)
		if !b.endsIn(5*patient(p)) || b.code() != 5 || !strings.Contains(b.out.String(), "runs") {
			fatal = append(fatal, call)
		}
	}
	return either(len(fatal) == 0, "none", strings.Join(fatal, ", "))
}

func askDescriptors(t *testing.T, p peer) string {
	_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", `exec 7</dev/null; exec "$0" -- sh -c 'i=0; while [ -e /proc/1/fd/7 ] && [ $i -lt 60 ]; do i=$((i+1)); sleep 0.1; done; [ -e /proc/1/fd/7 ] && echo kept; :'`, p.bin}})
	return yes(strings.Contains(out, "kept"))
}

func askDirectory(t *testing.T, p peer) string {
	_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", `cd /usr; exec "$0" -- sh -c 'i=0; while [ "$(readlink /proc/1/cwd)" != / ] && [ $i -lt 60 ]; do i=$((i+1)); sleep 0.1; done; readlink /proc/1/cwd'`, p.bin}})
	return either(strings.TrimSpace(out) == "/", "/", "as it was")
}

func askListenPID(t *testing.T, p peer) string {
	_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", `LISTEN_PID=1 exec "$0" -- sh -c '[ "$LISTEN_PID" = $$ ] && echo same; :'`, p.bin}})
	return yes(strings.Contains(out, "same"))
}

func askAddressSpace(t *testing.T, p peer) string {
	_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", `ulimit -v 20000; exec "$0" -- /bin/echo fits`, p.bin}})
	return yes(strings.Contains(out, "fits\n"))
}

func askIdle(t *testing.T, p peer) string {
	b := start(t, script(p.bin, nil, "echo up; exec sleep 60"))
	b.says("up")
	time.Sleep(300 * time.Millisecond)
	words := ""
	for range 4 { // on a busy machine it may only now be through with its start, which shows as one
		before, began := switches(t, b.cmd.Process.Pid), time.Now()
		time.Sleep(3 * time.Second)
		n, most := switches(t, b.cmd.Process.Pid)-before, int(1.7*time.Since(began).Seconds())
		if words = either(n == 0, "none", either(n < most, "1 a second", "many")); words != "many" && n != 1 && (n == 0 || p.bin != run.early && p.bin != run.plain) {
			break
		}
	}
	return words
}

// patient is how long to wait for what is to come: with the others, which do not have
// all of it, not for long.
func patient(p peer) time.Duration {
	if p.bin == run.early || p.bin == run.plain {
		return patience
	}
	return 3 * time.Second
}

// switches are the voluntary ones of all threads.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var k int
			if m, _ := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &k); m == 1 {
				n += k
			}
		}
	}
	return n
}

func askLeft(t *testing.T, p peer) string {
	_, out := result(t, script(p.bin, nil, `setsid sh -c 'trap "sleep 0.1; echo asked; exit" TERM; while :; do sleep 0.02; done' & sleep 0.3`))
	return either(strings.Contains(out, "asked"), "asked", "killed at once")
}
