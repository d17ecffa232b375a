package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// spec is what a process is to be and do. Each holds a lock on a file of its own,
// which the kernel lets go when the process ends, and beats into it.
type spec struct {
	File string `json:"file"`
	Deaf bool   `json:"deaf,omitempty"` // to TERM
	How  string `json:"how,omitempty"`  // it is started: fork, setsid, or twice (a daemon)
	Kids []spec `json:"kids,omitempty"`
}

const (
	beatEvery = 10 * time.Millisecond
	leave     = syscall.SIGUSR1 // what makes a process exit with code 7
)

// play is this binary as a helper.
func play(what string, words []string) int {
	var s spec
	switch what {
	case "gateway":
		return playGateway(words[0])
	case "twice":
		check(json.Unmarshal([]byte(words[0]), &s))
		startSelf("token", s, true)
		return 0
	}
	check(json.Unmarshal([]byte(words[0]), &s))
	return playToken(s)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(3)
	}
}

func startSelf(what string, s spec, setsid bool) int {
	exe, err := os.Executable()
	check(err)
	b, err := json.Marshal(s)
	check(err)
	pid, err := syscall.ForkExec(exe, []string{exe, string(b)}, &syscall.ProcAttr{Dir: "/", Files: []uintptr{0, 1, 2},
		Env: []string{playEnv + "=" + what, "GOMAXPROCS=1"}, Sys: &syscall.SysProcAttr{Setsid: setsid}})
	check(err)
	return pid
}

// playToken is such a process.
func playToken(s spec) int {
	if s.Deaf {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	}
	over := make(chan os.Signal, 1)
	signal.Notify(over, leave)
	fd, err := syscall.Open(s.File, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_CLOEXEC, 0o666)
	check(err)
	check(syscall.Flock(fd, syscall.LOCK_EX))
	_, err = syscall.Write(fd, []byte(strconv.Itoa(os.Getpid())+"\n"))
	check(err)
	for _, k := range s.Kids {
		switch k.How {
		case "twice":
			_, err := syscall.Wait4(startSelf("twice", k, false), nil, 0, nil)
			check(err)
		default:
			startSelf("token", k, k.How == "setsid")
		}
	}
	for {
		_, err = syscall.Write(fd, []byte("."))
		check(err)
		select {
		case <-over:
			return 7
		case <-time.After(beatEvery):
		}
	}
}

// playGateway lends its identity: for each byte it connects to the service and
// passes the connection on.
func playGateway(socket string) int {
	f := os.NewFile(3, "control")
	c, err := net.FileConn(f)
	check(err)
	control := c.(*net.UnixConn)
	for b := make([]byte, 1); ; {
		if n, err := control.Read(b); n == 0 || err != nil {
			return 0
		}
		check(lend(control, socket))
	}
}

func lend(control *net.UnixConn, socket string) error {
	var rights []byte
	if to, err := net.Dial("unix", socket); err == nil {
		f, err := to.(*net.UnixConn).File()
		check(err)
		rights = syscall.UnixRights(int(f.Fd()))
		defer f.Close()
		defer to.Close()
	}
	_, _, err := control.WriteMsgUnix([]byte{'c'}, rights, nil)
	return err
}

// token is a process as the model knows it.
type token struct {
	spec
	parent *token // while that lives
	kids   []*token
	launch *launch
	job    *job // that it is in
	gone   bool
}

func (k *token) json() string {
	b, _ := json.Marshal(k.spec)
	return string(b)
}

// all are a token and those below it.
func (k *token) all() []*token {
	out := []*token{k}
	for _, kid := range k.kids {
		out = append(out, kid.all()...)
	}
	return out
}

// plant makes the tokens of a spec.
func plant(s spec, parent *token, l *launch) *token {
	k := &token{spec: s, parent: parent, launch: l}
	if s.How == "twice" {
		k.parent = nil
	}
	for _, kid := range s.Kids {
		k.kids = append(k.kids, plant(kid, k, l))
	}
	return k
}

// locked tells whether the process is there, as the kernel knows.
func (k *token) locked() bool {
	fd, err := syscall.Open(k.File, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	return syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}

// up tells whether it has come as far as to beat.
func (k *token) up() bool { return k.pid() != 0 && k.locked() }

// pid is its process id; 0: it has not said it.
func (k *token) pid() int {
	b, _ := os.ReadFile(k.File)
	first, _, ok := bytes.Cut(b, []byte("\n"))
	pid, err := strconv.Atoi(string(first))
	if !ok || err != nil {
		return 0
	}
	return pid
}

func (k *token) size() int64 {
	fi, err := os.Stat(k.File)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// end says that the process is gone; what it had started loses its parent.
func (k *token) end() {
	k.gone = true
	for _, kid := range k.kids {
		if kid.parent == k {
			kid.parent = nil
		}
	}
}

// below tells whether the token descends from another, by parents that live.
func (k *token) below(other *token) bool {
	for p := k; p != nil; p = p.parent {
		if p == other {
			return true
		}
	}
	return false
}
