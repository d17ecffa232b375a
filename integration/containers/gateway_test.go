package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// roles are the programs that this binary plays in containers. Each gets its
// arguments and returns an exit code.
func roles() map[string]func([]string) int {
	return map[string]func([]string) int{
		"place": playPlace, "give": playGive, "life": playLife, "canary": playCanary, "escape": playEscape, "exit": playExit, "die": playDie,
		"deaf": playDeaf, "polite": playPolite, "eat": playEat, "tty": playTTY, "conmon": playConmon, "orphan": playOrphan,
	}
}

// play plays one: as /gateway with the role in the environment, or as its first
// argument.
func play(role string, words []string) int {
	if role == "gateway" && len(words) > 0 {
		role, words = words[0], words[1:]
	}
	f := roles()[role]
	if f == nil {
		fmt.Println("no such role:", role)
		return 99
	}
	return f(words)
}

// as is this program in a role.
func as(role string, words ...string) []string { return append([]string{"/gateway", role}, words...) }

func check(err error) {
	if err != nil {
		fmt.Println("gateway:", err)
		os.Exit(98)
	}
}

// playPlace: FILE. A hook of the runtime: the container's first process, which
// is told on standard input, goes into a cgroup.
func playPlace(words []string) int {
	var state struct{ Pid int }
	check(json.NewDecoder(os.Stdin).Decode(&state))
	check(os.WriteFile(words[0], []byte(strconv.Itoa(state.Pid)), 0))
	return 0
}

// playGive: FILE UID. A hook of the runtime: the container's cgroup becomes a
// user's, as an engine delegates it.
func playGive(words []string) int {
	uid, err := strconv.Atoi(words[1])
	check(err)
	for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} { // see cgroups(7) on delegation
		check(os.Chown(words[0]+f, uid, -1))
	}
	return 0
}

func playExit(words []string) int {
	code, err := strconv.Atoi(words[0])
	check(err)
	return code
}

// playDie: SIGNAL. It dies of it.
func playDie(words []string) int {
	n, err := strconv.Atoi(words[0])
	check(err)
	check(syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}))
	signal.Reset()
	check(syscall.Kill(os.Getpid(), syscall.Signal(n)))
	time.Sleep(patience())
	return 97
}

// playDeaf ignores what could end it.
func playDeaf([]string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	fmt.Println("up")
	time.Sleep(patience())
	return 97
}

// playPolite ends with 7 when it is asked to.
func playPolite([]string) int {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("up")
	fmt.Println("asked:", <-asked)
	return 7
}

// playEat uses more and more memory, in bounds.
func playEat([]string) int {
	var eaten [][]byte
	for range 256 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		eaten = append(eaten, b)
	}
	return len(eaten) % 2
}

// hold takes a lock on a file and keeps it: until the last process is gone that
// has inherited the descriptor. Whoever asks for it, see held, has it for a moment.
func hold(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	check(err)
	check(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return f
}

// held tells whether a process that holds the file is alive.
func held(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	check(err)
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		check(err)
	}
	return err != nil
}

// playCanary: FILE. It holds it until it is killed.
func playCanary(words []string) int {
	f := hold(words[0])
	fmt.Println("canary up")
	time.Sleep(10 * patience())
	f.Close()
	return 97
}

// playEscape: FILE [WHAT]. It holds the file, and so do a process in a session
// of its own, one that ignores TERM and a daemon forked twice; each adds a byte
// to it.
func playEscape(words []string) int {
	signal.Ignore(syscall.SIGTERM)
	var f *os.File
	if len(words) == 1 {
		f = hold(words[0])
		escape(f, words[0], "session")
		escape(f, words[0], "daemon")
	} else {
		f = os.NewFile(3, "held")
		if words[1] == "daemon" { // the first fork's child; it makes the daemon and is gone
			escape(f, words[0], "last")
			return 0
		}
	}
	_, err := f.Write([]byte("."))
	check(err)
	time.Sleep(10 * patience())
	return 97
}

func escape(f *os.File, path, what string) {
	cmd := exec.Command("/gateway", "escape", path, what)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(cmd.Start())
	if what == "daemon" {
		check(cmd.Wait())
	}
}

// playOrphan leaves a daemon behind that ends soon.
func playOrphan(words []string) int {
	if len(words) > 0 {
		return 0
	}
	cmd := exec.Command("/gateway", "orphan", "ends")
	check(cmd.Start())
	return 0
}

// patiently waits for what comes soon.
func patiently(what string, cond func() bool) {
	for end := time.Now().Add(patience()); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			check(fmt.Errorf("not seen: %s", what))
		}
	}
}

// connect asks the service, which the init has started before.
func connect() (*client.Client, api.Host, error) {
	c := &client.Client{Socket: os.Getenv("PINFOLD_SOCKET")}
	h, err := c.Host(context.Background())
	return c, h, err
}
