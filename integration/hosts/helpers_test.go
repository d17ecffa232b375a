package hosts

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// helper is a command that plays one of the helpers.
func (d *drive) helper(name string, words ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], words...)
	cmd.Env = []string{helperEnv + "=" + name, "GOMAXPROCS=1"}
	return cmd
}

// playHelper is what processes of a turn do.
func playHelper(name string, words []string) int {
	switch name {
	case "beat":
	case "termproof":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	case "setsid":
		child("termproof", words[1], &syscall.SysProcAttr{Setsid: true})
	case "regroup":
		child("termproof", words[1], &syscall.SysProcAttr{Setpgid: true})
	case "daemon": // the child of a child that has gone, as the launched process has
		child("middle", words[1], &syscall.SysProcAttr{Setsid: true})
		return 0
	case "middle":
		child("termproof", words[0], &syscall.SysProcAttr{Setsid: true})
		return 0
	}
	f := must(os.OpenFile(words[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666))
	for {
		_ = must(f.Write([]byte(".")))
		time.Sleep(3 * time.Millisecond)
	}
}

func child(name, file string, attr *syscall.SysProcAttr) {
	_ = must(syscall.ForkExec(os.Args[0], []string{os.Args[0], file}, &syscall.ProcAttr{Dir: "/",
		Env: []string{helperEnv + "=" + name, "GOMAXPROCS=1"}, Files: []uintptr{0, 1, 2}, Sys: attr}))
}
