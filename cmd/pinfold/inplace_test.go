package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// statOf is /proc/PID/stat after the name: state, ppid, pgrp, session, tty, ...
func statOf(t *testing.T, pid string) []string {
	t.Helper()
	s, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(s[strings.LastIndexByte(string(s), ')')+1:]))
}

// what is what a process is to those around it. The numbers that differ from run
// to run are its own. The mask is read without a fork, around which bash has
// another, and not line by line: bash reads ahead and goes back, in a file whose lines
// change in length meanwhile.
const what = `read -r x </proc/$$/stat; set -- ${x##*) }
echo "ppid $2 session $4 tty $5 self-leads-group $(($3 == $$)) group $3"
ulimit -n; ulimit -Hn; umask; pwd
mapfile -t lines </proc/$$/status
for line in "${lines[@]}"; do case $line in SigBlk*|SigIgn*|NoNewPrivs*|Groups*|CapEff*) echo "$line";; esac; done
echo /proc/self/fd/*
env | sort | grep -v '^_='`

// Executed in place, a command finds everything as without Pinfold, and is held.
func TestInPlaceChangesNothing(t *testing.T) {
	b := newBed(t)
	for _, way := range []string{
		"exec %s bash -c \"$WHAT\"",
		"trap '' HUP INT QUIT; exec %s bash -c \"$WHAT\"",
		"umask 027; cd /; ulimit -Sn 99; exec 5</dev/null; exec %s bash -c \"$WHAT\" </dev/zero",
		"set -m; %s bash -c \"$WHAT\"; exit $?",
	} {
		var got [2]string
		for i, head := range []string{"", "pinfold run --in-place --"} {
			c := b.command("bash", "-c", strings.ReplaceAll(way, "%s", head))
			c.Env = append(c.Env, "WHAT="+what)
			c.SysProcAttr.Setsid = true
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", head, err, out)
			}
			// The numbers of the shell above, which is another one each time.
			pid := fmt.Sprint(c.Process.Pid)
			s := regexp.MustCompile(`\b`+pid+`\b`).ReplaceAllString(string(out), "SHELL")
			s = regexp.MustCompile(`self-leads-group 1 group \d+`).ReplaceAllString(s, "leads its group")
			got[i] = s
		}
		if got[0] != got[1] {
			t.Errorf("%s: without:\n%s\nin place:\n%s", way, got[0], got[1])
		}
		if !strings.Contains(got[1], "SHELL") && !strings.Contains(got[1], fmt.Sprintf("ppid %d ", os.Getpid())) {
			t.Errorf("who is its parent?\n%s", got[1])
		}
	}
}

// On a terminal, too, which stays its controlling terminal.
func TestInPlaceOnATerminal(t *testing.T) {
	b := newBed(t)
	p := b.sit("bash", "--norc", "-i")
	p.sees(`\$ $`)
	p.types("pinfold run --in-place -- bash -c 'echo $$ >pid; read x; echo \"<$x>\"; exec sleep 1000'\r")
	pid := b.word("pid")
	if st := statOf(t, pid); st[2] != pid || st[5] != pid || st[4] == "0" {
		t.Errorf("it does not have the terminal: %v", st[:6])
	}
	p.types("hello\r")
	p.sees("<hello>")
	p.types("\x1a")
	p.sees(`\[1\]\+ +Stopped +pinfold run`)
	p.types("fg\r")
	p.sees("fg\r\npinfold run [^\n]*\r\n")
	p.hasTerminal(pid)
	p.types("\x03")
	p.sees(`\$ $`)
	p.types("echo st=$?\r")
	p.sees("st=130\r\n")
	p.types("exit\r")
	p.ends(0)
}

// Its parent gets the wait status; the turn, the end.
func TestInPlaceStatus(t *testing.T) {
	b := newBed(t)
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": -15, "kill -KILL $$": -9} {
		c := b.command("pinfold", "run", "--in-place", "--label", script, "--", "sh", "-c", script)
		_ = c.Run()
		ws := c.ProcessState.Sys().(syscall.WaitStatus)
		got := ws.ExitStatus()
		if ws.Signaled() {
			got = -int(ws.Signal())
		}
		if got != want {
			t.Errorf("%s: %v", script, c.ProcessState)
		}
	}
	for word, want := range map[string]int{"no-such-program": 127, "/no/such": 127, "/etc/passwd": 126, "/": 126} {
		c := b.command("pinfold", "run", "--in-place", "--", word)
		out, _ := c.CombinedOutput()
		if c.ProcessState.ExitCode() != want || !strings.HasPrefix(string(out), "pinfold: execute ") {
			t.Errorf("%s: %v %s", word, c.ProcessState, out)
		}
	}
	c := b.command("pinfold", "run", "--in-place", "--turn", "nosuchturn", "--", "true")
	if _ = c.Run(); c.ProcessState.ExitCode() != 125 {
		t.Errorf("%v", c.ProcessState)
	}
	b.allOver()
}

// allOver waits until no turn is open, and returns the receipts.
func (b *bed) allOver() []api.Receipt {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		l, err := b.Turns(b.t.Context(), false, "")
		if err != nil {
			b.t.Fatal(err)
		}
		if !slices.ContainsFunc(l.Turns, func(t api.Turn) bool { return !t.State.Terminal() }) {
			break
		}
		if time.Now().After(end) {
			b.t.Fatalf("still open: %+v", l.Turns)
		}
	}
	r, err := b.Receipts(b.t.Context(), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Receipts
}

// An SDK spawns a launcher by argv, which forks the real server, and speaks
// JSON-RPC to that over pipes. It knows nothing of Pinfold, and all is held.
func TestInPlaceServerOverPipes(t *testing.T) {
	b := newBed(t)
	ways := map[string][]string{"shell": {"bash", "-c", `bash server.sh; exit $?`}}
	write(t, b.dir+"/server.sh", `echo $$ >server.pid; setsid sleep 1000 </dev/null >/dev/null 2>&1 &
echo $! >helper.pid
while read -r line; do id=${line##*'"id":'}; echo "{\"jsonrpc\":\"2.0\",\"id\":${id%%\}*},\"result\":\"pong\"}"; done`)
	if lacks("npx", "node") == "" {
		ways["npx"] = []string{"npx", "--no-install", "some-server"}
		write(t, b.dir+"/package.json", `{"name": "x", "version": "1.0.0"}`)
		write(t, b.dir+"/node_modules/.bin/some-server", "#!/bin/sh\nexec bash server.sh\n")
	}
	for name, argv := range ways {
		t.Run(name, func(t *testing.T) {
			for _, f := range []string{"server.pid", "helper.pid"} {
				_ = os.Remove(filepath.Join(b.dir, f))
			}
			c := b.command(append([]string{"pinfold", "run", "--in-place", "--label", name, "--leftovers", "reap", "--"}, argv...)...)
			in, _ := c.StdinPipe()
			out, _ := c.StdoutPipe()
			c.Stderr = os.Stderr
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			for id := range 50 {
				fmt.Fprintf(in, `{"jsonrpc":"2.0","method":"ping","id":%d}`+"\n", id)
				var ans struct {
					ID     int
					Result string
				}
				l, err := lines.ReadBytes('\n')
				if err == nil {
					err = json.Unmarshal(l, &ans)
				}
				if err != nil || ans.ID != id || ans.Result != "pong" {
					t.Fatalf("%d: %q (%v)", id, l, err)
				}
			}
			l, err := b.Turns(t.Context(), false, "")
			if err != nil || len(l.Turns) != 1 || len(l.Turns[0].Processes) != 1 {
				t.Fatalf("%+v (%v)", l.Turns, err)
			}
			turn := l.Turns[0]
			if p := turn.Processes[0]; p.PID != c.Process.Pid || !p.InPlace || !p.FinishesTurn {
				t.Errorf("%+v", p)
			}
			tree := b.out("pinfold", "tree", turn.ID)
			for _, f := range []string{"server.pid", "helper.pid"} {
				if !regexp.MustCompile(`\b` + b.word(f) + `\b`).MatchString(tree) {
					t.Errorf("%s is not held:\n%s", f, tree)
				}
			}
			if name == "shell" { // the SDK closes: all ends by itself, and the helper is reaped
				in.Close()
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
			} else { // the gateway abandons the turn
				b.out("pinfold", "abandon", "--grace", "0", turn.ID)
				_ = c.Wait()
				if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
					t.Error(c.ProcessState)
				}
			}
			r := b.allOver()[0]
			if !r.Complete || r.Label != name || len(r.Leftovers) != 0 {
				t.Errorf("%+v", r)
			}
			for _, f := range []string{"server.pid", "helper.pid"} {
				if livesOn(b.word(f), false) {
					t.Errorf("%s is still there", f)
				}
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Programs that SDKs and people start, which make daemons.
func TestInPlaceDaemons(t *testing.T) {
	b := newBed(t)
	for _, c := range []struct{ name, script, left string }{
		{"tmux", "tmux -S tmux.sock -f /dev/null new-session -d 'exec sleep 1000'", "tmux"},
		{"ssh-agent", "ssh-agent -a agent.sock", "ssh-agent"},
		{"git", "git init -q repo; cd repo; git -c user.name=a -c user.email=b commit -q --allow-empty -m x; git log --oneline | cat", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if lacks(c.name) != "" {
				t.Skip("this host or test bed has no " + c.name)
			}
			cmd := b.command("pinfold", "run", "--in-place", "--", "sh", "-c", c.script)
			cmd.Stdin, cmd.Stderr = nil, os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			r := b.allOver()[0]
			if !r.Complete || (c.left == "") != (len(r.Leftovers) == 0) {
				t.Fatalf("%+v", r)
			}
			if c.left == "" {
				return
			}
			if tree := b.out("pinfold", "tree", r.Turn); !strings.Contains(tree, c.left) {
				t.Errorf("%s is not held:\n%s", c.left, tree)
			}
			b.out("pinfold", "abandon", "--leftovers", r.Turn)
			if r, err := b.Receipt(t.Context(), r.Turn); err != nil || r.LeftoversEndedAt == nil {
				t.Errorf("%+v (%v)", r, err)
			}
		})
	}
}

// Pipes stay pipes: every byte, both ways, many of them.
func TestRunIsBinaryClean(t *testing.T) {
	b := newBed(t)
	var all bytes.Buffer
	for i := range 1 << 20 {
		all.WriteByte(byte(i ^ i>>8))
	}
	for _, argv := range [][]string{{"run", "--", "cat"}, {"run", "--in-place", "--", "cat"}} {
		c := b.command(append([]string{"pinfold"}, argv...)...)
		c.Stdin = io.Reader(bytes.NewReader(all.Bytes()))
		out, err := c.Output()
		if err != nil || !bytes.Equal(out, all.Bytes()) {
			t.Errorf("%q: %d of %d bytes (%v)", argv, len(out), all.Len(), err)
		}
	}
	id := strings.Fields(b.out("pinfold", "run", "--detach", "--stdin", "pipe", "--", "cat"))
	w := b.command("pinfold", "write", "--close", id[0], id[1], "-")
	w.Stdin = bytes.NewReader(all.Bytes())
	if out, err := w.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	out, err := b.command("pinfold", "logs", "-f", id[0], id[1]).Output()
	if err != nil || !bytes.Equal(out, all.Bytes()) {
		t.Errorf("logs: %d of %d bytes (%v)", len(out), all.Len(), err)
	}
}
