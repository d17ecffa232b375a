package inits

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// suiteCheck is one thing that the test suites of tini and dumb-init look at, in our
// words: a script, whose parent is no init, and what it must print. $I is the init.
type suiteCheck struct{ as, what, text, want string }

// raced is the check that dumb-init itself passes only if it is quick.
const raced = "its directory, at once"

// suiteHelpers are what those scripts use (bash with job control, without which it
// has what runs in the background ignore INT and QUIT): an init's child runs $2; processes whose command begins
// with $1; the state of one.
const suiteHelpers = `
	runs() { until c=$(cat /proc/$1/task/$1/children 2>/dev/null) && [ -n "$c" ] && [ "$(cat /proc/${c% }/comm 2>/dev/null)" = $2 ]; do sleep 0.01; done; c=${c% }; }
	alive() { n=0; for f in /proc/[0-9]*/cmdline; do w=; read -r w <$f; case $w in $1*) n=$((n+1)); esac; done 2>/dev/null; echo $n; }
	state() { sed 's/.*) \(.\) .*/\1/' /proc/$1/stat; }
	becomes() { i=0; until [ $(state $1) = $2 ] || [ $i = 5000 ]; do sleep 0.01; i=$((i+1)); done; state $1; }
	said() { i=0; until grep -q "^$1$" $O 2>/dev/null || [ $i = 5000 ]; do sleep 0.01; i=$((i+1)); done; }
	grown() { i=0; until [ "$(wc -c <$O)" != $n ] || [ $i = $1 ]; do sleep 0.01; i=$((i+1)); done; }
	traps='for s in HUP INT QUIT USR1 USR2 TERM CONT SYS WINCH TTIN TTOU TSTP; do trap "echo $s" $s; done; mkfifo $O.f; exec 9<>$O.f; echo ready; while :; do read x <&9; done'
`

var suiteChecks = []suiteCheck{
	{"tini", "codes that are expected, and others", `for c in 0 1 2 64 127 128 254 255; do
		"$I" -s -e $c -- sh -c "exit $c" || echo $c is not; "$I" -s -e 3 -e 4 -- sh -c "exit $c"; [ $? = $c ] || echo $c is; done`, ""},
	{"tini", "a subreaper before it is one after, and says nothing", `python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])' \
		"$I" -- sh -c '(sh -c "sleep 0.1; grep PPid /proc/\$\$/status" &); echo $PPID; sleep 3' | sed 's/PPid:.//' | uniq | wc -l`, "1\n"},
	{"tini", "-s and TINI_SUBREAPER reap in silence, -w aloud", `"$I" -s -- sh -c '(: &); sleep 0.1'; TINI_SUBREAPER= "$I" -- sh -c '(: &); sleep 0.1'
		"$I" -s -w -- sh -c '(sleep 0.05 &); sleep 3' 2>&1 | grep -c "Reaped zombie process with pid="`, "1\n"},
	{"tini", "without them it warns", `TINI_VERBOSITY=1 "$I" -- true 2>&1 | grep -c "zombie reaping won't work"`, "1\n"},
	{"tini", "a signal that ends the program", `for s in TERM USR1 USR2; do "$I" -s -- sleep 60 & p=$!; runs $p sleep; kill -$s $p; wait $p; echo $?; done 2>/dev/null`, "143\n138\n140\n"},
	{"tini", "-g and its variable reach the group", `for k in g v; do if [ $k = g ]; then "$I" -s -g -- sh -c 'trap : USR1; sleep 60; echo group' & else
		TINI_KILL_PROCESS_GROUP=1 "$I" -s -- sh -c 'trap : USR1; sleep 60; echo group' & fi; p=$!; runs $p sh; q=$c; runs $q sleep; kill -USR1 $p; wait $p; done 2>/dev/null`, "group\ngroup\n"},
	{"tini", "words that are no program", `"$I" -s -vvv -- true >/dev/null 2>&1 && echo good; "$I" -s -vvv -- -- true >/dev/null 2>&1 || echo bad`, "good\nbad\n"},

	{"dumb-init", "TERM reaches the session's group, with -c the child", `for f in -v -c; do "$I" $f sh -c 'sleep 61 | sleep 61 & sleep 61 | sleep 61' & p=$!; runs $p sh
		until [ $(alive sleep) = 4 ]; do sleep 0.01; done; kill -TERM $p; wait $p; sleep 0.1; i=0; until [ $f = -c ] || [ $(alive sleep) = 0 ] || [ $i = 500 ]; do sleep 0.01; i=$((i+1)); done; alive sleep; done 2>/dev/null`, "0\n4\n"},
	{"dumb-init", "the group gets TERM when the child ends, with -c does not", `for f in -- -c; do "$I" $f sh -c 'sh -c "trap \"echo $0; : >$O.told; exit\" TERM; echo ready >$O; sleep 60 & wait" & until [ -s $O ]; do sleep 0.01; done' $f
		i=0; until [ $f = -c ] || [ -e $O.told ] || [ $i = 3000 ]; do sleep 0.01; i=$((i+1)); done; rm $O; done; sleep 1`, "--\n"},
	{"dumb-init", "what cannot be executed", `for f in "" -- -c "--single-child --"; do "$I" $f /doesnotexist 2>&1 || echo $?; done`,
		strings.Repeat("[dumb-init] /doesnotexist: No such file or directory\n2\n", 4)},
	{"dumb-init", "bad rewriting", `try() { "$I" "$@" echo ran 2>/dev/null; echo -n "$? "; }; try -r; try -r ""; try -r herp; try -r herp:derp; try -r 15; try -r 15::12; try -r 15:derp; try -r 15:12 -r; try -r 15:12 -r 0; try -r 15:12 -r 1:32`,
		strings.Repeat("1 ", 10)},
	{"dumb-init", "what -v -c tells, in order", `"$I" -v -c true 2>&1 | sed 's/PID [0-9]*/PID N/'`, "[dumb-init] Child spawned with PID N.\n[dumb-init] Received signal 17.\n" +
		"[dumb-init] A child with PID N exited with exit status 0.\n[dumb-init] Forwarded signal 15 to children.\n[dumb-init] Child exited with status 0. Goodbye.\n"},
	{"dumb-init", raced, `cd /tmp; for i in 1 2 3 4 5 6 7 8 9 10; do "$I" sh -c 'readlink /proc/$PPID/cwd /proc/$$/cwd'; done | sort | uniq -c | sed 's/ *//'`, "10 /\n10 /tmp\n"},
	{"dumb-init", "codes, and signals' ones", `for f in -- -c; do for c in 0 1 2 32 64 127 254 255; do "$I" $f sh -c "exit $c"; [ $? = $c ] || echo $c; done
		for s in 15 1 3 9; do "$I" $f sh -c "kill -$s \$\$"; [ $? = $((128+s)) ] || echo $s; done; done 2>/dev/null`, ""},
	{"dumb-init", "signals that are made another, or nothing", `for r in "-r 15:2 -r 2:15 -r 3:3" "-r 1:31 -r 31:1" "-r 15:3 -r 2:0 -r 28:0"; do
		rm -f $O $O.f; "$I" $r sh -c "$traps" >$O & p=$!; said ready; for s in TERM QUIT CONT INT HUP SYS WINCH; do n=$(wc -c <$O); kill -$s $p; grown 200; done; kill -KILL $c $(cat /proc/$p/task/$p/children); wait $p 2>/dev/null; grep -v ready $O | tr '\n' ' '; echo; done 2>/dev/null`,
		"INT QUIT CONT TERM HUP SYS WINCH \nTERM QUIT CONT INT SYS HUP WINCH \nQUIT QUIT CONT HUP SYS \n"},
	{"dumb-init", "a terminal's stop signals stop both, and CONT wakes them", `exec 2>/dev/null; "$I" sh -c "$traps" >>$O & p=$!; said ready; runs $p sh
		for s in TSTP TTOU TTIN; do kill -$s $p; becomes $p T; becomes $c T; kill -CONT $p; said CONT; state $p | tr RSD W; >$O; done; kill -KILL $c; wait $p 2>/dev/null`, strings.Repeat("T\nT\nW\n", 3)},
	{"dumb-init", "with -c, or made another, they stop the init alone", `for f in "-c" "-r 20:1 -r 21:15 -r 22:2"; do rm -f $O $O.f; "$I" $f sh -c "$traps" >>$O & p=$!; said ready; runs $p sh
		for s in TSTP TTIN TTOU; do n=$(wc -c <$O); kill -$s $p; becomes $p T; grown 5000; n=$(wc -c <$O); kill -CONT $p; grown 5000; done; kill -KILL $c; wait $p 2>/dev/null; grep -v ready $O | tr '\n' ' '; echo; done 2>/dev/null`,
		"T\nT\nT\nTSTP CONT TTIN CONT TTOU CONT \nT\nT\nT\nHUP CONT TERM CONT INT CONT \n"},
}

// What the suites of tini and dumb-init look at holds for them, which shows that it
// is rightly understood, and for ours by their names.
func TestSuites(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, c := range suiteChecks {
		t.Run(c.as+" "+c.what, func(t *testing.T) {
			t.Parallel()
			for who, bin := range map[string]string{"peer": needProgram(t, c.as), "early": run.early, "plain": run.plain} {
				if who == "peer" && c.what == raced {
					continue
				}
				t.Run(who, func(t *testing.T) {
					t.Parallel()
					c.play(t, bin)
				})
			}
		})
	}
}

func (c suiteCheck) play(t *testing.T, bin string) {
	dir := t.TempDir()
	link := filepath.Join(dir, c.as)
	if err := os.Symlink(bin, link); err != nil {
		t.Fatal(err)
	}
	code, out := result(t, stage{Argv: []string{bash(t), "-c", "set -m\n" + suiteHelpers + c.text}}, func(cmd *exec.Cmd) {
		cmd.Env = append(without(cmd.Env, "DUMB_INIT_DEBUG", "DUMB_INIT_SETSID"), "I="+link, "O="+filepath.Join(dir, "out"))
	})
	var lines strings.Builder
	for line := range strings.Lines(out) {
		if c.as != "dumb-init" || !strings.HasPrefix(line, "[dumb-init] ") || strings.Contains(c.want, line) {
			lines.WriteString(line)
		}
	}
	if lines.String() != c.want {
		t.Errorf("code %d, %q, want %q; all of it:\n%s", code, lines.String(), c.want, out)
	}
}

// On a terminal: input and output work, a shell has job control, ^C ends a loop, and
// what giving up the terminal sends is not passed on.
func TestSuitesOnTerminal(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, as := range []string{"dumb-init", "tini"} {
		for who, bin := range map[string]string{"peer": needProgram(t, as), "early": run.early, "plain": run.plain} {
			t.Run(as+"/"+who, func(t *testing.T) {
				t.Parallel()
				link := filepath.Join(t.TempDir(), as)
				if err := os.Symlink(bin, link); err != nil {
					t.Fatal(err)
				}
				for _, flags := range [][]string{nil, {"-c"}} {
					if as == "tini" && flags != nil {
						continue
					}
					argv := append(append([]string{link}, flags...), "--")
					s := onTerminal(t, stage{Argv: append(argv, "tac")})
					s.types("1\n2\n3\n\x04\x04")
					if code := s.code(); code != 0 || !s.showsSoon("3\r\n2\r\n1\r\n") {
						t.Errorf("tac: code %d, %q", code, s.out.String())
					}
					s = onTerminal(t, stage{Argv: append(argv, bash(t), "--norc", "-m")})
					s.types("echo \"flags [$-]\"; exit 3\n")
					if code := s.code(); code != 3 || !s.showsJobControl() {
						t.Errorf("bash -m: code %d, %q", code, s.out.String())
					}
					s = onTerminal(t, stage{Argv: append(argv, "sh", "-c", "while :; do echo up; sleep 0.05; done")})
					s.says("up")
					s.types("\x03")
					if code := s.code(); code != 130 {
						t.Errorf("^C: code %d", code)
					}
				}
				if as == "dumb-init" {
					handOff(t, link)
				}
			})
		}
	}
}

func (s *screen) showsJobControl() bool {
	for end := time.Now().Add(patience); !jobControl(s.out.String()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func jobControl(out string) bool {
	_, flags, _ := strings.Cut(out, "\nflags [")
	flags, _, ok := strings.Cut(flags, "]")
	return ok && strings.Contains(flags, "m")
}

func handOff(t *testing.T, bin string) {
	s := onTerminal(t, stage{Argv: []string{bin, "-v", "sleep", "20"}})
	s.says("Ignoring tty hand-off signal 18.")
	time.Sleep(100 * time.Millisecond)
	s.signal(syscall.SIGHUP)
	code := s.code()
	s.showsSoon("Forwarded signal 1 to children.")
	if out := s.out.String(); code != 129 || !strings.Contains(out, "Ignoring tty hand-off signal 1.") || !strings.Contains(out, "Forwarded signal 1 to children.") ||
		strings.Contains(out, "Forwarded signal 18 to children.") {
		t.Errorf("code %d, %q", code, out)
	}
}
