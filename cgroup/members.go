//go:build linux

package cgroup

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Members describes the processes in it and below, for people: what it says
// authorises nothing. One that goes while it is looked at is left out.
func (d *Dir) Members() ([]api.Member, error) {
	pids, _, err := d.Living()
	if err != nil {
		return nil, err
	}
	out := make([]api.Member, 0, len(pids))
	now, page := sys.BootTicks(), int64(os.Getpagesize())
	for _, p := range pids {
		s, ok := readStat(p.PID, "stat")
		if !ok || s.State == 'Z' && s.Threads <= 1 {
			continue
		}
		m := api.Member{
			PID: p.PID, PPID: s.PPID, State: string(s.State), Comm: s.Comm,
			Cgroup: p.Dir, RSS: s.RSSPages * page,
		}
		if now > s.StartTicks {
			m.AgeMS = int64(now-s.StartTicks) * (1000 / sys.TicksPerSecond)
		}
		if b, err := sys.ProcFile(p.PID, "status"); err == nil {
			if st, err := sys.ParseStatus(b); err == nil {
				m.UID = st.UID
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// Living lists the processes in it and below, those too that only their threads
// show, and without the main threads that stayed behind, dead, when the others were
// moved elsewhere. hidden are those in a PID namespace that we cannot see.
func (d *Dir) Living() (pids []Pid, hidden int, err error) {
	l, err := d.list("cgroup.procs")
	if err != nil {
		return nil, 0, err
	}
	if populated, err := d.Populated(); len(l.pids) == 0 && (err != nil || !populated) {
		return nil, l.hidden, nil
	}
	threads, rest, err := d.unlisted(l)
	if err != nil {
		return nil, 0, err
	}
	var loc pidfd.Locator
	seen := make(map[int]bool, len(l.pids))
	for _, p := range l.pids {
		seen[p.PID] = true
		if threads[p.PID] || !movedOn(p.PID, l.ids, &loc) { // a dead one is not among the threads
			pids = append(pids, p)
		}
	}
	for _, t := range rest.pids {
		b, err := sys.ProcFile(t.PID, "status")
		if err != nil {
			continue
		}
		if s, err := sys.ParseStatus(b); err == nil && !seen[s.TGID] {
			seen[s.TGID] = true
			pids = append(pids, Pid{s.TGID, t.Dir})
		}
	}
	return pids, l.hidden, nil
}

// unlisted are the threads that are of no process of a listing: of those whose main
// thread has exited and that were moved here then, of those that were made since.
// threads has the numbers of all.
func (d *Dir) unlisted(procs listing) (threads map[int]bool, rest listing, err error) {
	rest, err = d.list("cgroup.threads")
	if err != nil {
		return nil, rest, err
	}
	threads = make(map[int]bool, len(rest.pids))
	for t := range rest.numbers() {
		threads[t] = true
	}
	listed := make(map[int]bool, len(procs.pids))
	for p := range procs.numbers() {
		listed[p] = true
	}
	strange := func(t Pid) bool { return !listed[t.PID] }
	if slices.ContainsFunc(rest.pids, strange) {
		for p := range procs.numbers() {
			tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(p) + "/task")
			for _, t := range tasks {
				if tid, err := strconv.Atoi(t.Name()); err == nil {
					listed[tid] = true
				}
			}
		}
	}
	rest.pids = slices.DeleteFunc(rest.pids, func(t Pid) bool { return !strange(t) })
	return threads, rest, nil
}

func readStat(pid int, name string) (sys.Stat, bool) {
	b, err := sys.ProcFile(pid, name)
	if err != nil {
		return sys.Stat{}, false
	}
	s, err := sys.ParseStat(b)
	return s, err == nil
}

// maxSurvivors bounds the list: it goes into a receipt.
const maxSurvivors = 64

// Survivors lists what is alive in it and below, one entry for each process,
// with where it hangs: the thread in uninterruptible sleep (D) if it has one,
// else its main thread, else any. TID is set when it is not the main thread.
func (d *Dir) Survivors() []api.Survivor {
	l, err := d.list("cgroup.threads")
	if err != nil {
		return nil
	}
	worst := make(map[int]api.Survivor)
	var order []int
	for _, p := range l.pids {
		s, ok := survivor(p)
		if !ok {
			continue
		}
		have, seen := worst[s.PID]
		if !seen {
			if len(order) == maxSurvivors {
				break
			}
			order = append(order, s.PID)
		}
		if !seen || severity(s) > severity(have) {
			worst[s.PID] = s
		}
	}
	out := make([]api.Survivor, 0, len(order))
	for _, pid := range order {
		out = append(out, worst[pid])
	}
	return out
}

// severity ranks the threads of one process by what they say of why it lives.
func severity(s api.Survivor) int {
	switch {
	case s.State == "D":
		return 3
	case s.State == "Z" || s.State == "X":
		return 0
	case s.TID == 0:
		return 2
	}
	return 1
}

// survivor describes a thread.
func survivor(p Pid) (api.Survivor, bool) {
	b, err := sys.ProcFile(p.PID, "status")
	if err != nil {
		return api.Survivor{}, false
	}
	st, err := sys.ParseStatus(b)
	if err != nil {
		return api.Survivor{}, false
	}
	// /proc/tid/stat is about the whole process; its task directory is not.
	task := "task/" + strconv.Itoa(p.PID) + "/"
	s, ok := readStat(p.PID, task+"stat")
	if !ok {
		return api.Survivor{}, false
	}
	out := api.Survivor{PID: st.TGID, Comm: s.Comm, State: string(s.State), Cgroup: p.Dir}
	if p.PID != st.TGID {
		out.TID = p.PID
	}
	if b, err := sys.ProcFile(p.PID, task+"wchan"); err == nil {
		if w := strings.TrimSpace(string(b)); w != "0" {
			out.WaitChannel = w
		}
	}
	return out, true
}
