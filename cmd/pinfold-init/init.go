package main

import (
	"os"

	"pinfold.dev/reaper/pid1"
)

// asInit is the init of a container. It does not return if there is a command to
// run; else it says with which code to end, and whether it had anything to do.
func asInit() (code int, ok bool) {
	pid1.Run()
	a, ok := pid1.Describe(version)
	if !ok {
		return 0, false
	}
	_, _ = os.Stderr.WriteString(a.Err)
	if a.Out != "" && say(a.Out) != 0 {
		return exitFailed, true
	}
	return a.Code, true
}

// entry tells how an init starts in this build.
func entry() string {
	if pid1.Early() {
		return ", inits start before the runtime"
	}
	return ""
}
