// The runtime need not read the cgroup's limits, nor keep those files open.
//go:debug containermaxprocs=0

// Command pinfold-init is the small half of Pinfold: the init of a container, and
// the keeper, which is the parent of everything launched in one turn. It links
// neither net nor D-Bus.
//
// An init's whole life can be before this package begins: see reaper/pid1.
package main

import (
	"os"
	"time"

	"pinfold.dev/reaper"
)

// version is set by the build (-X main.version=...).
var version = "dev"

// The exit codes.
const (
	exitUsage  = 125
	exitFailed = 1
)

// listener is where the service puts the keeper's listening socket.
const listener = 3

// selftestWait is how long selftest --wait stays, unless it is killed.
const selftestWait = time.Minute

const usage = `usage: pinfold-init [OPTION]... -- COMMAND [ARG]...
       pinfold-init keeper --turn ID --dir DIR [--pidns]
       pinfold-init selftest [--wait]
       pinfold-init version

COMMAND   be the init of a container; pinfold-init --help tells more.
keeper    be the keeper of a turn. The service starts it, with a listening unix
          socket as descriptor 3, /dev/null as standard input and output, and
          a log as standard error. It lives until it is told to quit.
          With --pidns it is init of a PID namespace made for the turn.
selftest  exit 0 at once, or with --wait after a minute: what the service launches
          to see that launching and ending work.
version   print the version.
`

func main() {
	if code, ok := asInit(); ok {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		return refuse("")
	}
	switch mode := args[0]; {
	case mode == "keeper":
		return keep(args[1:])
	case mode == "selftest" && len(args) == 2 && args[1] == "--wait":
		time.Sleep(selftestWait)
		return 0
	case len(args) > 1:
		return refuse("unexpected argument " + args[1])
	case mode == "selftest":
		return 0
	case mode == "version":
		return say("pinfold-init " + version + ", protocol " + string('0'+rune(reaper.Protocol)) + entry() + "\n")
	case mode == "help":
		return say(usage)
	default:
		return refuse("unknown mode " + mode)
	}
}

func keep(args []string) int {
	o := reaper.Options{Listener: listener, Build: version}
	for len(args) > 0 {
		if args[0] == "--pidns" {
			o.Namespace, args = true, args[1:]
			continue
		}
		var to *string
		switch args[0] {
		case "--turn":
			to = &o.Turn
		case "--dir":
			to = &o.Dir
		}
		if to == nil || len(args) == 1 || args[1] == "" || *to != "" {
			return refuse("keeper: bad argument " + args[0])
		}
		*to, args = args[1], args[2:]
	}
	if o.Turn == "" || o.Dir == "" {
		return refuse("keeper: needs --turn and --dir")
	}
	if err := reaper.Keep(o); err != nil {
		complain("keeper: " + err.Error())
		return exitFailed
	}
	return 0
}

func say(text string) int {
	if _, err := os.Stdout.WriteString(text); err != nil {
		return exitFailed
	}
	return 0
}

func refuse(why string) int {
	if why != "" {
		complain(why)
	}
	_, _ = os.Stderr.WriteString(usage)
	return exitUsage
}

func complain(why string) { _, _ = os.Stderr.WriteString("pinfold-init: " + why + "\n") }
