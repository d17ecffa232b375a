package turns

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// playCanary: FILE. It beats, and writes down every signal that it gets:
// nobody is to send it any.
func playCanary(words []string) int {
	got := make(chan os.Signal, 16)
	signal.Notify(got)
	signal.Reset(syscall.SIGURG) // the Go runtime's own
	j := pulse(words[0])
	go func() {
		for s := range got {
			if s != syscall.SIGURG {
				_, _ = syscall.Write(j.fd, []byte("!"+s.String()+"!"))
			}
		}
	}()
	return j.forever()
}

// playTermproof: FILE FILE. It exits on TERM; its child does not.
func playTermproof(words []string) int {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	selfAs("deaf", &syscall.SysProcAttr{Setsid: true}, words[1])
	go pulse(words[0]).forever()
	<-got
	return 0
}

// playDeaf: FILE. It ignores every signal that can be ignored.
func playDeaf(words []string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGPIPE)
	return pulse(words[0]).forever()
}

// playTracer: PID FILE. It attaches to a process, which stops, and never lets
// it go on.
func playTracer(words []string) int {
	pid := must(strconv.Atoi(words[0]))
	check(syscall.PtraceAttach(pid))
	_ = must(syscall.Wait4(pid, nil, syscall.WALL, nil))
	return pulse(words[1]).forever()
}

// playNest: DIR DEPTH FILE. It makes cgroups below DIR, one in the other, and
// a process that beats in each.
func playNest(words []string) int {
	dir := words[0]
	for range must(strconv.Atoi(words[1])) {
		dir = filepath.Join(dir, "nested")
		check(os.Mkdir(dir, 0o755))
		j := pulse(words[2])
		j.setup = doSetsid
		check(os.WriteFile(dir+"/cgroup.procs", []byte(fmt.Sprint(j.fork())), 0))
	}
	check(os.WriteFile(dir+"/cgroup.procs", []byte("0"), 0)) // and itself into the innermost
	return pulse(words[2]).forever()
}

// playSetuid: FILE [PROGRAM]. As somebody else it runs PROGRAM, a copy of this
// binary that is set-uid root, as a child; that one beats when it is root.
func playSetuid(words []string) int {
	if len(words) == 1 {
		if os.Geteuid() != 0 || os.Getuid() == 0 {
			fmt.Fprintln(os.Stderr, "not set-uid:", os.Getuid(), os.Geteuid())
			return 1
		}
		check(syscall.Setreuid(0, 0))
		return pulse(words[0]).forever()
	}
	cmd := exec.Command(words[1], words[0])
	cmd.Env = []string{helperEnv + "=suid"}
	out, err := cmd.CombinedOutput()
	fmt.Fprintf(os.Stderr, "%s %v\n", out, err)
	return 1
}

// playOther: FILE [UID]. It beats as another user than it was started as.
func playOther(words []string) int {
	p, uid := pulse(words[0]), someUID
	if len(words) > 1 {
		uid = must(strconv.Atoi(words[1]))
	}
	check(syscall.Setuid(uid))
	return p.forever()
}

// playCrowd: FILE N. It starts N sleepers; it beats once they are all there.
func playCrowd(words []string) int {
	sleep := must(exec.LookPath("sleep"))
	for range must(strconv.Atoi(words[1])) {
		_ = must(syscall.ForkExec(sleep, []string{"sleep", "3600"}, &syscall.ProcAttr{Env: []string{}, Files: []uintptr{0, 1, 2}}))
	}
	return pulse(words[0]).forever()
}

// playBomb: KIND FILE SECONDS. It is a fork bomb: fork or moving.
func playBomb(words []string) int {
	j := pulse(words[1])
	j.until = monotonic() + int64(must(strconv.Atoi(words[2])))
	j.most = uintptr(os.Getpid()) + 2000
	if words[0] == "fork" {
		j.fork() // a witness that is no bomb
		j.bomb(false)
	}
	for range 20 { // so that one that finds no pid does not end it
		if rawFork() == 0 {
			j.pause.Nsec = 1000
			j.bomb(true)
		}
	}
	return 0
}

// playVforkBomb: FILE UNTIL [PID]. It starts itself again and again, by vfork
// and exec, until that time, or until pids are above PID.
func playVforkBomb(words []string) int {
	if len(words) == 2 {
		words = append(words, strconv.Itoa(os.Getpid()+400))
	}
	end, most := must(strconv.ParseInt(words[1], 10, 64)), must(strconv.Atoi(words[2]))
	j, grow := pulse(words[0]), os.Getpid() < most
	for monotonic() < end {
		_, err := syscall.Write(j.fd, j.mark[:])
		check(err)
		if grow && selfAs("vforkbomb", &syscall.SysProcAttr{Setsid: true}, words...) > most {
			grow = false
		}
	}
	return 0
}

// monotonic is the kernel's monotonic clock in seconds, the same in all
// processes.
func monotonic() int64 {
	var now syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		check(errno)
	}
	return now.Sec
}

// playBlocked: FILE WITNESS WHO. It writes to FILE and syncs, and beats in
// WITNESS each time that has worked: in its main thread (process), or in
// another (thread). On a frozen file system that thread does not come back.
func playBlocked(words []string) int {
	f := must(os.OpenFile(words[0], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600))
	j := pulse(words[1])
	return inThread(words[2], func() {
		_ = must(f.WriteString("x"))
		check(f.Sync())
		_ = must(syscall.Write(j.fd, j.mark[:]))
	})
}

// inThread does something again and again, in the main thread or in another.
func inThread(who string, do func()) int {
	forever := func() {
		runtime.LockOSThread()
		for {
			do()
			time.Sleep(time.Millisecond)
		}
	}
	if who == "thread" {
		go forever()
		select {}
	}
	forever()
	return 0
}

// playNSInit: WORD... It is init of a PID namespace: it mounts its /proc, runs
// this binary with the words and reaps. When it ends, so does everything else.
func playNSInit(words []string) int {
	check(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	check(syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""))
	exe := must(os.Executable())
	env := []string{}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, helperEnv+"=") {
			env = append(env, e)
		}
	}
	pid := must(syscall.ForkExec(exe, append([]string{exe}, words...), &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}))
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		check(err)
		if got == pid {
			if ws.Exited() {
				return ws.ExitStatus()
			}
			return 128 + int(ws.Signal())
		}
	}
}
