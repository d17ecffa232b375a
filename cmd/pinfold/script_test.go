package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pinfold.dev/client"
)

// The test binary plays pinfold in the scripts.
func TestMain(m *testing.M) {
	testscript.Main(signalsAsUsual{m}, map[string]func(){"pinfold": main, "panicky": panicky})
}

// signalsAsUsual runs the tests. Whoever runs them under nohup, or in a script's
// background, has signals ignored, and so would all that they start: what is caught
// here, and dropped, begins with its default there, see execve(2).
type signalsAsUsual struct{ *testing.M }

func (m signalsAsUsual) Run() int {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	return m.M.Run()
}

// TestScripts runs the command line as a person types it: the txtar files of
// testdata/script. Beside testscript's own commands they have
//
//	needs FEATURE...        skip where the host has not got one: root, holder (who may hold turns), cgroup2 or a program
//	page FILE               run the sh blocks of a page against the service
//	exits CODE command...   run a command that must exit with CODE
//	serve [flags]           start the service on directories below $WORK, wait until it is ready
//	stopserve TERM|KILL     end it
//	waitfile FILE           wait until a file is there and not empty
//	steady FILE...          fail if one of the files grows within a second; ! steady waits until all grow
//	setturn                 set TURN to the turn that is listed first
//	onejson FIELD command   run a command that must print one JSON object with FIELD
//	setfrom NAME INDEX      set a variable to a word of the last output
//	alive|dead FILE         whether the process whose pid the file has lives, or comes to have ended
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       flag.Lookup("update").Value.String() == "true",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setupScript,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"needs": needs, "page": page, "exits": exits, "serve": serveIn, "stopserve": stopServe,
			"waitfile": waitFile, "steady": steady, "alive": isAlive(true), "dead": isAlive(false), "setfrom": setFrom, "setturn": setTurn, "onejson": oneJSON,
		},
	})
}

func setupScript(e *testscript.Env) error {
	e.Setenv("LC_ALL", "C.UTF-8")
	// No service of this machine may be met by chance.
	e.Setenv("PINFOLD_SOCKET", filepath.Join(e.WorkDir, "pinfold.sock"))
	mess, err := filepath.Abs("../../examples/demo/mess.sh")
	if err != nil {
		return err
	}
	e.Setenv("MESS", mess)
	s, err := theSetting()
	if err != nil {
		return err
	}
	e.Setenv("GRADE", s.grade)
	e.Setenv("WHO", s.name)
	if err := os.Mkdir(filepath.Join(e.WorkDir, "beats"), 0o755); err != nil {
		return err
	}
	e.Values["service"] = &service{}
	e.Values["t"] = e.T()
	return nil
}

// condition is what a line of a script may ask for in brackets: [root], that
// root types the commands; [scope], that turns are held at that grade.
func condition(cond string) (bool, error) {
	s, err := theSetting()
	switch cond {
	case "root":
		return s.uid == 0, err
	case "scope":
		return s.grade == "scope", err
	}
	return false, fmt.Errorf("no such condition: %s", cond)
}

// needs is the only way to skip. It asks the host, not our own code, which may
// be what is broken.
func needs(ts *testscript.TestScript, neg bool, features []string) {
	t := ts.Value("t").(testscript.T)
	if testing.Short() {
		t.Skip("-short: the scripts that need no service only")
	}
	if f := lacks(features...); f != "" {
		if os.Getenv("PINFOLD_TEST_DEPS") != "" && f != "holder" && f != "root" && f != "cgroup2" {
			ts.Fatalf("there is no %s, though scripts/deps.sh was run", f)
		}
		t.Skip("this host has no " + f)
	}
}

// lacks is the first feature that this host has not got; empty: it has all.
func lacks(features ...string) string {
	for _, f := range features {
		var has bool
		switch f {
		case "holder": // who may hold turns: root, and a user who has a service manager
			has = os.Getuid() == 0 || os.Getenv("XDG_RUNTIME_DIR") != "" && os.Getenv("PINFOLD_TEST_GRADE") == "scope"
		case "root":
			has = os.Getuid() == 0
		case "cgroup2":
			b, err := os.ReadFile("/proc/self/mountinfo")
			has = err == nil && strings.Contains(string(b), " - cgroup2 ")
		default:
			_, err := exec.LookPath(f)
			has = err == nil
		}
		if !has {
			return f
		}
	}
	return ""
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command...")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = e.ExitCode()
	}
	if want := args[0]; fmt.Sprint(got) != want {
		ts.Fatalf("%s exited %d, want %s", args[1], got, want)
	}
}

func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(ts.MkAbs(args[0])); err == nil && strings.HasSuffix(string(b), "\n") {
			return
		}
	}
	ts.Fatalf("%s is not there after two minutes", args[0])
}

// steady is how a script sees that a heartbeat has stopped.
func steady(ts *testscript.TestScript, neg bool, args []string) {
	size := func(name string) int64 {
		fi, err := os.Stat(ts.MkAbs(name))
		ts.Check(err)
		return fi.Size()
	}
	before := map[string]int64{}
	for _, name := range args {
		before[name] = size(name)
	}
	if !neg {
		time.Sleep(time.Second)
	}
	for end := time.Now().Add(time.Minute); len(args) > 0; {
		switch grows := size(args[0]) > before[args[0]]; {
		case grows == neg:
			args = args[1:]
		case !neg || time.Now().After(end):
			ts.Fatalf("%s: grows is %v", args[0], grows)
		default:
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func isAlive(want bool) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		pid := strings.TrimSpace(ts.ReadFile(args[0]))
		if pid == "" {
			ts.Fatalf("%s has no pid", args[0])
		}
		if alive := livesOn(pid, want); alive != want {
			ts.Fatalf("process %s of %s: alive is %v", pid, args[0], alive)
		}
	}
}

// livesOn tells whether a process is no zombie. One that has been killed, and has left
// its cgroup, may take a moment to be one: where it is not to live it is waited for.
func livesOn(pid string, want bool) bool {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		_, after, _ := strings.Cut(string(b), ") ")
		if alive := err == nil && !strings.HasPrefix(after, "Z"); alive == want || want || time.Now().After(end) {
			return alive
		}
	}
}

// setFrom sets a variable to a word of the last command's output.
func setFrom(ts *testscript.TestScript, neg bool, args []string) {
	words := strings.Fields(ts.ReadFile("stdout"))
	if len(args) != 2 || len(args[1]) != 1 || int(args[1][0]-'0') >= len(words) {
		ts.Fatalf("usage: setfrom NAME INDEX, and the output has %d words", len(words))
	}
	ts.Setenv(args[0], words[args[1][0]-'0'])
}

func setTurn(ts *testscript.TestScript, neg bool, args []string) {
	c := &client.Client{Socket: ts.Getenv("PINFOLD_SOCKET")}
	l, err := c.Turns(context.Background(), false, "")
	ts.Check(err)
	if len(l.Turns) == 0 {
		ts.Fatalf("there is no turn")
	}
	ts.Setenv("TURN", l.Turns[0].ID)
}

func oneJSON(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(ts.Exec(args[1], args[2:]...))
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var v map[string]any
	ts.Check(d.Decode(&v))
	if _, ok := v[args[0]]; !ok {
		ts.Fatalf("no field %s", args[0])
	}
	if d.More() {
		ts.Fatalf("more than one document")
	}
}
