package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// story is what a gateway in a container has seen, as it tells it outside.
type story struct {
	Doctor     json.RawMessage // what pinfold doctor --json prints
	DoctorExit int
	Refused    string // no service: why
	Host       api.Host
	Turn       api.Turn
	Exit       api.Status // of a process that exits with 5
	Up         int        // processes that escaped and were up
	Receipt    api.Receipt
	Gone       bool // all of the turn, seen after it was abandoned
	Canary     bool // the process outside the turn lives

	wait string
}

// storyMark begins the line that has one.
const storyMark = "story "

// playLife: [DIR [FILE]]. It is a gateway: it has a turn whose processes try to
// escape abandoned, as soon as there is the file, tells about it, and ends with 7
// at TERM.
func playLife(words []string) int {
	asked := make(chan os.Signal, 4)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	check(os.Setenv(roleEnv, "gateway"))
	dir := "/tmp"
	if len(words) > 0 {
		dir = words[0]
	}
	canary := exec.Command("/gateway", "canary", dir+"/canary")
	check(canary.Start())
	patiently("the canary", func() bool { return held(dir + "/canary") })
	var s story
	if len(words) > 1 {
		s.wait = words[1]
	}
	s.tell(dir)
	s.Canary = held(dir + "/canary")
	text, err := json.Marshal(s)
	check(err)
	fmt.Println(storyMark + string(text))
	<-asked
	fmt.Println("stopped")
	return 7
}

// tell lives through it.
func (s *story) tell(dir string) {
	c, h, err := connect()
	s.Host = h
	doctor := exec.Command("pinfold", "doctor", "--json")
	var out bytes.Buffer
	doctor.Stdout = &out
	s.DoctorExit = exit(doctor.Run())
	if s.Doctor = out.Bytes(); !json.Valid(s.Doctor) {
		s.Doctor = nil
	}
	if err != nil {
		s.Refused = err.Error()
		return
	}
	s.turn(c, dir)
}

func (s *story) turn(c *client.Client, dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	grace := int64(100)
	t, err := c.Begin(ctx, api.BeginRequest{Label: "life"})
	check(err)
	s.Turn = t
	p, err := c.Launch(ctx, t.ID, api.LaunchRequest{Argv: as("exit", "5"), Env: gatewayEnv(), Cwd: "/"})
	check(err)
	p, err = c.WaitProcess(ctx, t.ID, p.ID)
	check(err)
	s.Exit = p.Status
	_, err = c.Launch(ctx, t.ID, api.LaunchRequest{Argv: as("escape", dir+"/turn"), Env: gatewayEnv(), Cwd: "/"})
	check(err)
	patiently("what escapes", func() bool {
		b, err := os.ReadFile(dir + "/turn")
		s.Up = len(b)
		return err == nil && s.Up == 3
	})
	if !held(dir + "/turn") {
		check(errors.New("the turn's processes hold nothing"))
	}
	if s.wait != "" {
		fmt.Println("the turn is up")
		patiently(s.wait, func() bool { return exists(s.wait) })
	}
	s.Receipt, err = c.Abandon(ctx, t.ID, api.AbandonRequest{GraceMS: &grace})
	check(err)
	s.Gone = !held(dir + "/turn")
}

func gatewayEnv() []string { return []string{roleEnv + "=gateway"} }
