package hold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// isGone tells that nobody has a number.
func isGone(pid int) bool {
	h, err := pidfd.Open(pid)
	if err == nil {
		h.Close()
	}
	return errors.Is(err, pidfd.ErrGone)
}

// hasEnded tells that who was named a survivor is none any more. Where nobody can
// tell it stays one.
func hasEnded(s api.Survivor) bool {
	if s.PID <= 0 {
		return false
	}
	h, err := pidfd.Open(s.PID)
	if err == nil { // a zombie has ended, whoever is to reap it, and whether or not there is a /proc
		defer h.Close()
		if over, eerr := h.Exited(); eerr == nil {
			return over
		}
	}
	if errors.Is(err, pidfd.ErrGone) {
		return true
	}
	m, err := memberOf(s.PID)
	if err != nil || m.State != "Z" {
		return false
	}
	_, state := livingThread(s.PID)
	return state == "Z"
}

// survivor is one of which only that is known.
func survivor(pid int, comm string) api.Survivor {
	s := api.Survivor{PID: pid, Comm: comm, State: "?"}
	if m, err := memberOf(pid); err == nil {
		s.Comm, s.State, s.Cgroup = m.Comm, m.State, m.Cgroup
	}
	if s.State == "Z" { // its main thread has ended, and another has not
		s.TID, s.State = livingThread(pid)
	}
	file := fmt.Sprintf("/proc/%d/wchan", pid)
	if s.TID != 0 {
		file = fmt.Sprintf("/proc/%d/task/%d/wchan", pid, s.TID)
	}
	if b, err := os.ReadFile(file); err == nil && string(b) != "0" {
		s.WaitChannel = string(b)
	}
	return s
}

// sayWhy says of each survivor that it may not be signalled, where that is why it is
// one: a user's own service may not signal what has become another user's.
func sayWhy(list []api.Survivor) {
	for i, s := range list {
		if s.PID <= 0 {
			continue
		}
		h, err := pidfd.Open(s.PID)
		if err != nil {
			continue // nobody can tell
		}
		if errors.Is(h.Signal(0), os.ErrPermission) {
			list[i].Why = fmt.Sprintf("uid %d may not signal it", os.Geteuid())
			if ids, err := h.UIDs(); err == nil {
				list[i].Why = fmt.Sprintf("it is uid %d's, whom uid %d may not signal", ids[0], os.Geteuid())
			}
		}
		h.Close()
	}
}

// livingThread finds a thread that has not ended, and its state.
func livingThread(pid int) (tid int, state string) {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range list {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if s, err := sys.ParseStat(b); err == nil && s.State != 'Z' && s.State != 'X' {
			return s.PID, string(s.State)
		}
	}
	return 0, "Z"
}

// nameSurvivors names those of handles that have not exited.
func nameSurvivors(out *containment.Killed, handles map[string]*pidfd.Handle) {
	for id, h := range handles {
		if over, err := h.Exited(); err == nil && !over {
			s := survivor(h.PID(), "")
			s.Comm = strings.TrimSpace(s.Comm + " (" + id + ")")
			out.Survivors = slices.DeleteFunc(out.Survivors, func(o api.Survivor) bool { return o.PID == s.PID })
			out.Survivors = append(out.Survivors, s)
		}
	}
}
