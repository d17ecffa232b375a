package turns

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// helpers are the programs that this test binary plays, by name; each gets
// words and returns an exit code. One that no test uses fails a whole run.
func helpers() map[string]func(words []string) int {
	return map[string]func([]string) int{
		"guard": playGuard, "canary": playCanary, "beat": playBeat, "setsid": playSetsid, "daemon": playDaemon,
		"termproof": playTermproof, "deaf": playDeaf, "headless": playHeadless, "stopped": playStopped,
		"tracer": playTracer, "nest": playNest, "suid": playSetuid, "pidns": playPIDNS, "nsinit": playNSInit,
		"crowd": playCrowd, "bomb": playBomb, "vforkbomb": playVforkBomb, "blocked": playBlocked,
		"joiner": playJoiner, "wishes": playWishes, "tell": playTell, "peer": playPeer, "seccomp": playSeccomp, "fuse": playFuse, "asker": playAsker, "exit": playExit, "pour": playPour, "counter": playCounter,
		"logless": playLogless, "dirty": playDirty, "bare": playBare, "holder": playHolder, "gateway": playGateway,
		"server": playServer, "visitor": playVisitor, "user": playUser, "asuser": playAsUser, "other": playOther,
	}
}

// used notes the helpers that tests have asked for.
var used sync.Map

func useHelper(name string) { used.Store(name, true) }

func unusedHelpers() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(helpers())) {
		if _, ok := used.Load(name); !ok {
			names = append(names, name)
		}
	}
	return names
}

func playHelper(name string, words []string) int {
	play := helpers()[name]
	if play == nil {
		fmt.Fprintln(os.Stderr, "no such helper:", name)
		return 2
	}
	return play(words)
}

// helper is a request to launch one.
func helper(t *testing.T, name string, words ...string) api.LaunchRequest {
	t.Helper()
	if helpers()[name] == nil {
		t.Fatalf("no such helper: %s", name)
	}
	useHelper(name)
	if name == "termproof" {
		useHelper("deaf") // its child
	}
	return api.LaunchRequest{Argv: append([]string{run.exe}, words...), Cwd: "/",
		Env: []string{helperEnv + "=" + name, "PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2"}}
}

// must ends a helper that cannot do what it is for.
func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(3)
	}
}

// pulse prepares a heartbeat into a file; all its processes share it.
func pulse(path string) *job {
	fd := -1
	if path != "" {
		fd = must(syscall.Open(path, syscall.O_WRONLY|syscall.O_APPEND|syscall.O_CREAT|syscall.O_CLOEXEC, 0o666))
	}
	return &job{fd: fd, pause: syscall.NsecToTimespec(int64(3 * time.Millisecond)), mark: [1]byte{'.'}}
}

// forever beats in this process.
func (j *job) forever() int {
	for {
		if j.fd >= 0 {
			_, err := syscall.Write(j.fd, j.mark[:])
			check(err)
		}
		time.Sleep(time.Duration(j.pause.Nano()))
	}
}

// selfAs starts this binary as another helper.
func selfAs(name string, attr *syscall.SysProcAttr, words ...string) int {
	exe := must(os.Executable())
	return must(syscall.ForkExec(exe, append([]string{exe}, words...), &syscall.ProcAttr{Dir: "/",
		Env: []string{helperEnv + "=" + name, "PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2"}, Files: []uintptr{0, 1, 2}, Sys: attr}))
}

// playBeat: FILE. It beats.
func playBeat(words []string) int { return pulse(words[0]).forever() }

// playExit: CODE [FILE]. It exits, after having said so in a file.
func playExit(words []string) int {
	code := must(strconv.Atoi(words[0]))
	if len(words) > 1 {
		check(os.WriteFile(words[1], []byte(words[0]), 0o666))
	}
	return code
}

// playSetsid: FILE FILE. A child in a session of its own beats, as it does.
func playSetsid(words []string) int {
	j := pulse(words[1])
	j.setup = doSetsid
	j.fork()
	return pulse(words[0]).forever()
}

// playDaemon: FILE. It leaves a double-forked daemon behind and is done.
func playDaemon(words []string) int {
	pulse(words[0]).forkTwice()
	return 0
}

// playStopped: FILE FILE. One child beats, another has stopped itself.
func playStopped(words []string) int {
	j := pulse(words[1])
	j.setup = doStop
	j.fork()
	return pulse(words[0]).forever()
}

// playPIDNS: FILE FILE. It makes a PID namespace, in whose processes only the
// innermost know each other; they beat.
func playPIDNS(words []string) int {
	if len(words) == 1 { // the namespace's init
		for range 3 {
			j := pulse(words[0])
			j.setup = doSetsid
			j.fork()
		}
		return pulse(words[0]).forever()
	}
	selfAs("pidns", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, words[1])
	return pulse(words[0]).forever()
}

// playHeadless: FILE. Its main thread exits; others beat on.
func playHeadless(words []string) int {
	j := pulse(words[0])
	go j.forever()
	time.Sleep(20 * time.Millisecond) // so that the other thread exists
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	return 4 // not reached
}
