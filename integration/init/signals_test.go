package inits

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listen is a command that takes every signal that can be taken, and prints each,
// until there has been none for a second after there was a file.
const listen = `
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
procmask, timedwait = (14, 128) if platform.machine() == "x86_64" else (135, 137)
class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("n", ctypes.c_long)]
every, quiet = (ctypes.c_uint8 * 8)(*([255] * 8)), Time(1, 0)
libc.syscall(procmask, 2, every, 0, 8)
print("listening", flush=True)
while True:
    s = libc.syscall(timedwait, every, 0, ctypes.byref(quiet), 8)
    if s > 0 and s != 17:
        print("got", s, flush=True)
    elif s < 0 and ctypes.get_errno() == 11 and os.path.exists(sys.argv[1]):
        break
`

// listener runs that under an init.
func listener(t testing.TB, bin string, flags ...string) *box {
	t.Helper()
	python, err := lookPython()
	if err != nil {
		missing(t, "the program python3 (scripts/deps.sh installs it)")
	}
	stop := filepath.Join(t.TempDir(), "stop")
	b := start(t, stage{Argv: append(append([]string{bin}, flags...), "--", python, "-c", listen, stop)})
	b.stop = stop
	b.says("listening")
	return b
}

// hears waits until so many signals have arrived, but not longer than that, and ends
// the listener.
func (b *box) hears(n int, most time.Duration) {
	b.t.Helper()
	for end := time.Now().Add(most); len(got(b.out.String())) < n && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := os.WriteFile(b.stop, nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.code()
}

// got are the signals that arrived.
func got(out string) (all []int) {
	for line := range strings.Lines(out) {
		if s, ok := strings.CutPrefix(line, "got "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(s))
			all = append(all, n)
		}
	}
	return all
}

// sendAll sends each signal that a process can take, and waits for all to arrive, some
// of them more than once, but not longer than that.
func sendAll(b *box, most time.Duration) (arrived []int) {
	for s := 1; s <= 64; s++ {
		switch s {
		case 9, 17, 19:
			continue
		}
		b.signal(syscall.Signal(s))
		if s >= 20 && s <= 22 { // dumb-init stops itself; and CONT removes what has not arrived
			said := fmt.Sprintf("got %d\n", s)
			for end := time.Now().Add(most); !strings.Contains(b.out.String(), said) && time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			b.signal(syscall.SIGCONT)
			time.Sleep(50 * time.Millisecond)
		}
	}
	for end := time.Now().Add(most); len(arrivals(b)) < 61 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	b.hears(0, 0)
	return arrivals(b)
}

// arrivals are the signals that arrived, each once.
func arrivals(b *box) []int {
	all := got(b.out.String())
	slices.Sort(all)
	return slices.Compact(all)
}

// notForwarded are those of all signals that did not arrive.
func notForwarded(arrived []int) (list []string) {
	for s := 1; s <= 64; s++ {
		if s != 9 && s != 17 && s != 19 && !slices.Contains(arrived, s) {
			list = append(list, strconv.Itoa(s))
		}
	}
	return list
}

func TestForwardsEverySignal(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for _, flags := range [][]string{nil, {"-g"}, {"-c"}, {"--session", "-g"}} {
			t.Run(strings.Join(flags, ""), func(t *testing.T) {
				t.Parallel()
				if left := notForwarded(sendAll(listener(t, bin, flags...), patience)); len(left) > 0 {
					t.Errorf("%q: signals %v are not passed on", flags, left)
				}
			})
		}
	})
}

// Real-time signals queue: as many arrive as were sent.
func TestRealTimeSignalsQueue(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		b := listener(t, bin)
		for range 100 {
			b.signal(syscall.Signal(40))
		}
		b.hears(100, patience)
		if n := len(got(b.out.String())); n != 100 {
			t.Errorf("%d of 100 arrived", n)
		}
	})
}

// A burst of signals while children end as fast as they can.
func TestSignalsInAStorm(t *testing.T) {
	buildsAlone(t, func(t *testing.T, bin string) {
		b := start(t, script(bin, nil, `n=0; trap 'n=$((n+1)); echo usr1' USR1; trap 'echo bye; exit 3' TERM
			sh -c 'i=0; while [ $i -lt 3000 ]; do (: &); i=$((i+1)); done; echo stormed' & echo up; while :; do wait; sleep 0.1; done`))
		b.says("up")
		for range 50 {
			b.signal(syscall.SIGUSR1)
		}
		b.says("usr1")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 3 {
			t.Errorf("code %d\n%s", code, b.out.String())
		}
	})
}

// kill(2) of PID 1 from inside the namespace, with signals that are deadly.
func TestDeadlySignalsFromInside(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for _, s := range []int{4, 5, 6, 7, 8, 11, 31, 9, 19, 27, 64} {
			text := fmt.Sprintf(`trap "" ILL TRAP ABRT BUS FPE SEGV SYS PROF 64; kill -%d 1; sleep 0.1; echo alive`, s)
			if s == 64 {
				text = strings.Replace(text, " 64; kill", "; trap '' 64; kill", 1)
			}
			code, out := result(t, stage{Argv: []string{bin, "-q", "--", bash(t), "-c", text}})
			if code != 0 || !strings.Contains(out, "alive") {
				t.Errorf("signal %d: code %d, %q", s, code, out)
			}
		}
	})
}

// What was ignored and blocked outside is so in the command.
func TestInheritedSignals(t *testing.T) {
	needRoot(t)
	t.Parallel()
	const ignore, block = 1<<1 | 1<<9 | 1<<10 | 1<<12 | 1<<21 | 1<<16 | 1<<27, 1<<3 | 1<<14 | 1<<20 | 1<<39
	s := stage{Ignore: ignore, Block: block, Argv: []string{run.early, "-q", "--", "/bin/sed", "-n", "/^Sig[BI][lg][kn]/p", "/proc/self/status"}}
	want(t, s, 0, fmt.Sprintf("SigBlk:\t%016x\nSigIgn:\t%016x", block, ignore))
	s.Ignore, s.Block, s.Argv[0] = 1, 1<<20|1<<39, run.plain // of what the runtime leaves alone
	want(t, s, 0, fmt.Sprintf("SigBlk:\t%016x\nSigIgn:\t%016x", 1<<20|1<<39, 1))
}
