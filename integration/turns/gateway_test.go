package turns

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// playGateway: SOCKET FILE HOW REQUEST BEAT BEAT. It begins a turn, launches in
// it what beats in both, writes the turn's id to FILE, and is there, HOW: touch
// touches it again and again, hold holds it, sleep does nothing. It writes what
// became of that after the id: of touch, when it last began to and was answered.
func playGateway(words []string) int {
	c := &client.Client{Socket: words[0]}
	ctx := context.Background()
	var req api.BeginRequest
	check(json.Unmarshal([]byte(words[3]), &req))
	v := must(c.Begin(ctx, req))
	_ = must(c.Launch(ctx, v.ID, api.LaunchRequest{Argv: []string{must(os.Executable()), words[4], words[5]}, Cwd: "/",
		Env: []string{helperEnv + "=setsid", "PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2"}}))
	say := func(s string) {
		check(os.WriteFile(words[1]+".new", []byte(v.ID+" "+s), 0o666))
		check(os.Rename(words[1]+".new", words[1]))
	}
	switch words[2] {
	case "touch":
		for {
			at := time.Now()
			if _, err := c.Touch(ctx, v.ID, v.Epoch); err != nil {
				say(err.Error())
				return 0
			}
			say(at.Format(time.RFC3339Nano))
			time.Sleep(20 * time.Millisecond)
		}
	case "hold":
		h := must(c.Hold(ctx, v.ID, v.Epoch))
		say("")
		st, err := h.Wait()
		say(fmt.Sprint(st, err))
		return 0
	}
	say("")
	time.Sleep(time.Hour) // nothing that the runtime would call a deadlock
	return 0
}

// gateway is a process outside of every turn that has begun one.
type gateway struct {
	*child
	*turn
	file   string
	hearts []heart
}

// startGateway starts one, and waits until its turn's processes beat.
func startGateway(t *testing.T, s *service, how string, req api.BeginRequest) *gateway {
	t.Helper()
	g, err := tryGateway(t, s, how, req)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// tryGateway is startGateway where the turn's clocks may run out before.
func tryGateway(t *testing.T, s *service, how string, req api.BeginRequest) (*gateway, error) {
	t.Helper()
	f := files(t, "turn", "leader", "child")
	useHelper("setsid")
	h := helper(t, "gateway", s.dir+"/sock", f[0], how, string(must(json.Marshal(req))), f[1], f[2])
	cmd := exec.Command(h.Argv[0], h.Argv[1:]...)
	cmd.Env, cmd.Dir = h.Env, h.Cwd
	log, err := os.Create(f[0] + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	p, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{child: p, file: f[0], hearts: []heart{heart(f[1]), heart(f[2])}}
	t.Cleanup(p.kill)
	eventually(t, "the gateway's turn", func() bool {
		over := g.isGone()
		g.turn = &turn{api.Turn{ID: g.said(0)}, s, t}
		return g.ID != "" || over
	})
	if g.ID == "" {
		text, _ := os.ReadFile(f[0] + ".log")
		return nil, fmt.Errorf("the gateway has ended: %s", text)
	}
	g.Turn = g.look()
	return g, g.beatsIn(g.hearts...)
}

func (g *gateway) isGone() bool {
	select {
	case <-g.gone:
		return true
	default:
		return false
	}
}

// touched is when the gateway began the last touch of which it has the answer: the
// lease is that long at least.
func (g *gateway) touched() time.Time {
	g.t.Helper()
	at, err := time.Parse(time.RFC3339Nano, g.said(1))
	if err != nil {
		g.t.Fatal(err)
	}
	return at
}

// said is the turn's id, or what became of the gateway's care for it.
func (g *gateway) said(word int) string {
	b, _ := os.ReadFile(g.file)
	id, rest, _ := strings.Cut(string(b), " ")
	if word == 0 {
		return id
	}
	return rest
}

func (g *gateway) send(sig syscall.Signal) {
	g.t.Helper()
	if err := g.cmd.Process.Signal(sig); err != nil {
		g.t.Fatal(err)
	}
}

// ends waits for the turn's receipt, which has the reason, and checks that all is
// over, by the service's own decision. It tells when that was.
func (x *turn) ends(why api.Reason) api.Receipt {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience(2*time.Minute))
	defer cancel()
	if v, err := x.s.WaitTurn(ctx, x.ID); err != nil {
		x.t.Fatalf("the turn is %s: %v", v.State, err)
	}
	r, err := x.s.Receipt(ctx, x.ID)
	if err != nil || r.Reason != why || r.Actor.Name != "pinfold" {
		x.t.Fatalf("the turn ended for %s, want %s, by %+v (%v)", r.Reason, why, r.Actor, err)
	}
	x.over(r)
	return r
}

// isOpen fails the test when the turn is not open.
func (x *turn) isOpen(what string) {
	x.t.Helper()
	if v := x.look(); v.State != api.StateOpen {
		x.t.Fatalf("%s: the turn is %s (%s)", what, v.State, v.Reason)
	}
}
