package turns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// playPeer: SOCKET ANSWERS STEP... It asks the service, one step after the
// other, and writes down what became of each. A step is VERB or VERB:TURN.
func playPeer(words []string) int {
	c := &client.Client{Socket: words[0]}
	var out []peerAnswer
	for _, step := range words[2:] {
		out = append(out, askAsPeer(c, step))
	}
	b := must(json.Marshal(out))
	check(os.WriteFile(words[1]+".new", b, 0o666))
	check(os.Rename(words[1]+".new", words[1]))
	return 0
}

// peerAnswer is what a step got: ok or the error's code, and the turns or the
// process that it was about.
type peerAnswer struct {
	Step  string
	Code  string
	Turns []string
	P     api.Process
}

func askAsPeer(c *client.Client, step string) peerAnswer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	a := peerAnswer{Step: step, Code: "ok"}
	verb, turn, _ := strings.Cut(step, ":")
	var err error
	switch verb {
	case "host":
		_, err = c.Host(ctx)
	case "begin":
		var v api.Turn
		v, err = c.Begin(ctx, api.BeginRequest{Label: "a peer's"})
		a.Turns = []string{v.ID}
	case "list":
		var l api.TurnList
		l, err = c.Turns(ctx, true, "")
		for _, v := range l.Turns {
			a.Turns = append(a.Turns, v.ID)
		}
	case "read":
		_, err = c.Turn(ctx, turn)
	case "tree":
		_, err = c.Tree(ctx, turn)
	case "launch":
		a.P, err = c.Launch(ctx, turn, api.LaunchRequest{Argv: []string{"/bin/sleep", "3600"}, Cwd: "/"})
	case "launch-as-root":
		a.P, err = c.Launch(ctx, turn, api.LaunchRequest{Argv: []string{"/bin/sleep", "3600"}, Cwd: "/", User: "root"})
	case "signal":
		_, err = c.Signal(ctx, turn, "p1", api.SignalRequest{Signal: "URG"})
	case "finish":
		_, err = c.Finish(ctx, turn, api.FinishRequest{})
	case "abandon":
		_, err = c.Abandon(ctx, turn, api.AbandonRequest{})
	case "receipt":
		_, err = c.Receipt(ctx, turn)
	case "events":
		a.Turns, err = turnsTold(ctx, c, turn)
	case "ack":
		_, err = c.AckEvents(ctx, "peer", 1)
	default:
		err = errors.New("no such step")
	}
	var e *api.Error
	if errors.As(err, &e) {
		a.Code = string(e.Code)
	} else if err != nil {
		a.Code = err.Error()
	}
	return a
}

// wantAnswers reads what the peer wrote down and compares the codes.
func wantAnswers(t *testing.T, file string, want ...string) []peerAnswer {
	t.Helper()
	var out []peerAnswer
	eventually(t, "the peer's answers", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &out) == nil
	})
	if len(out) != len(want) {
		t.Fatalf("%d answers, want %d: %+v", len(out), len(want), out)
	}
	for i, a := range out {
		if a.Code != want[i] {
			t.Errorf("%s: %s, want %s", a.Step, a.Code, want[i])
		}
	}
	return out
}

// asUser runs the steps as another user, outside of every turn, and compares.
func (s *service) asUser(t *testing.T, uid, gid uint32, steps []string, want ...string) []peerAnswer {
	t.Helper()
	f := files(t, "answers")
	h := helper(t, "peer", append([]string{s.dir + "/sock", f[0]}, steps...)...)
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env, cmd.Dir = h.Env, h.Cwd
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}, Pdeathsig: syscall.SIGKILL}
	if out, err := run.kids.output(cmd); err != nil {
		t.Fatalf("as uid %d: %v\n%s", uid, err, out)
	}
	return wantAnswers(t, f[0], want...)
}

const (
	yes       = "ok"
	notFound  = string(api.CodeNotFound)
	forbidden = string(api.CodeForbidden)
)

// A uid sees and ends its own turns; another's are as if there were none. Root
// and the admin group see all.
func TestPeersOutside(t *testing.T) {
	const ann, bob, admins = 54321, 54322, 54399
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{args: []string{"--admin-group", strconv.Itoa(admins)}})
		x, c := newNeighbour(t, s)
		on := func(turn string) []string {
			return []string{"host", "read:" + turn, "tree:" + turn, "launch:" + turn, "signal:" + turn, "finish:" + turn, "abandon:" + turn, "receipt:" + turn}
		}
		no := []string{yes, notFound, notFound, notFound, notFound, notFound, notFound, notFound}
		s.asUser(t, ann, ann, on(x.ID), no...)
		c.lives()

		a := s.asUser(t, ann, ann, []string{"begin", "list"}, yes, yes)
		mine := a[0].Turns[0]
		if !slices.Equal(a[1].Turns, []string{mine}) {
			t.Errorf("ann lists %q, hers is %s", a[1].Turns, mine)
		}
		if v, err := s.Turn(t.Context(), mine); err != nil || v.Owner != ann {
			t.Errorf("root sees %+v (%v)", v, err)
		}
		a = s.asUser(t, ann, ann, []string{"launch:" + mine, "launch-as-root:" + mine, "signal:" + mine}, yes, forbidden, yes)
		checkUser(t, a[0].P, ann)
		s.asUser(t, bob, bob, on(mine), no...)
		a = s.asUser(t, bob, bob, []string{"list"}, yes)
		if len(a[0].Turns) != 0 {
			t.Errorf("bob lists %q", a[0].Turns)
		}
		a = s.asUser(t, bob, admins, []string{"list", "read:" + mine, "read:" + x.ID}, yes, yes, yes)
		if !slices.Contains(a[0].Turns, mine) || !slices.Contains(a[0].Turns, x.ID) {
			t.Errorf("the admin group lists %q", a[0].Turns)
		}
		s.asUser(t, ann, ann, []string{"abandon:" + mine, "receipt:" + mine}, yes, yes)
		if r, err := s.Receipt(t.Context(), mine); err != nil || !r.Complete || r.Actor.UID != ann || r.Owner != ann {
			t.Errorf("receipt %+v (%v)", r, err)
		}
		s.asUser(t, bob, bob, []string{"receipt:" + mine}, notFound)
	})
}

// checkUser checks whose a process is.
func checkUser(t *testing.T, p api.Process, uid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if want := fmt.Sprintf("\nUid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid); err != nil || !strings.Contains(string(b), want) || int(p.UID) != uid {
		t.Errorf("process of uid %d (%v), want %d:\n%s", p.UID, err, uid, b)
	}
}

// What runs in a turn may read it and launch into it. It may not end it, nor
// begin another, nor touch another; not even as root.
func TestPeersInside(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		other, c := newNeighbour(t, s)
		for _, u := range []struct {
			name string
			uid  int
		}{{"root", 0}, {"nobody", 65534}} {
			t.Run(u.name, func(t *testing.T) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "answers")
				req := helper(t, "peer", s.dir+"/sock", f[0], "host", "read:"+x.ID, "launch:"+x.ID, "finish:"+x.ID, "abandon:"+x.ID,
					"begin", "list", "read:"+other.ID, "launch:"+other.ID, "signal:"+other.ID, "abandon:"+other.ID)
				req.User = u.name
				x.launch(req)
				a := wantAnswers(t, f[0], yes, yes, yes, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden)
				checkUser(t, a[2].P, u.uid)
				if v := x.look(); v.State != api.StateOpen || len(v.Processes) != 2 {
					t.Errorf("the turn is %s with %d processes", v.State, len(v.Processes))
				}
				c.lives()
				if r := x.abandon(0); len(r.Processes) != 2 || r.Processes[1].PID != a[2].P.PID || r.Processes[1].EndedBy != "kill" {
					t.Errorf("the receipt tells of %+v", r.Processes)
				}
			})
		}
	})
}
