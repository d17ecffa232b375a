package reaper

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

const (
	censusPause = 2                      // ms between two looks
	censusBound = 200 * time.Millisecond // that a census may wait for the dying
	censusMost  = 8192                   // processes that one look visits
	exiting     = 0x4                    // PF_EXITING of include/linux/sched.h
	fileBytes   = 4 << 10                // of memory, to read a file of /proc
)

var (
	errNoProc = errors.New("/proc is not that of the keeper's PID namespace")
	errHidden = errors.New("a child of the keeper's cannot be looked at in /proc (hidepid=, proc(5), or no descriptor is left)")
)

// census is a census that was asked for.
type census struct {
	question
	until time.Time
}

func newCensus(q question) census { return census{q, time.Now().Add(censusBound)} }

// runCensuses takes the censuses that are due. They wait for processes that
// are about to end, up to the bound; one look serves all.
func (k *keeper) runCensuses() {
	for k.reapReady(reapBatch) == reapBatch {
	}
	k.sweepLeaves(1024)
	out, settled, err := k.outsiders()
	now, left := time.Now(), k.censuses[:0]
	for _, c := range k.censuses {
		told := &wire.Census{Reaped: k.reaped, Outside: out}
		switch bare := k.work.isBare(); {
		case err != nil && err != errHidden && !bare:
			k.refuse(c.c, c.id, refusalOf(wire.ErrInternal, "read the keeper's descendants", "", err))
			continue
		case (err == nil || err == errHidden) && !settled && !now.After(c.until):
			left = append(left, c)
			continue
		case err != nil && !bare:
			told.Unseen = err.Error()
		case bare:
			told.Alone = k.deserted()
			told.Outside, told.Unseen = k.below()
		}
		k.send(c.c, wire.Message{ID: c.id, Census: told}, nil)
		fault.Point("census.told")
	}
	k.censuses = left
}

// outsiders walks down from the keeper and lists who is alive and not in the
// turn's cgroup. settled is false while somebody is seen to be ending. With
// errHidden it lists whom it has seen.
func (k *keeper) outsiders() (out []wire.Member, settled bool, err error) {
	type link struct{ parent, pid int }
	if childless() {
		return nil, true, nil
	}
	if !k.proc {
		return nil, false, errNoProc
	}
	self := os.Getpid()
	first, err := k.childrenOf(self)
	if err != nil {
		return nil, false, err
	}
	var queue []link
	for _, pid := range first {
		queue = append(queue, link{self, pid})
	}
	settled = true
	for i := 0; i < len(queue) && i < censusMost; i++ {
		l := queue[i]
		m, inside, ending := k.look(l.pid, l.parent)
		if m == nil && !inside && l.parent == self && isChild(l.pid) { // nobody but us reaps it
			err = errHidden
			continue
		}
		settled = settled && !ending
		if ending && (m == nil || !k.work.isBare()) { // else it may take forever, and nothing else would name it
			continue
		}
		if !inside && m != nil {
			out = append(out, *m)
		}
		below, _ := k.childrenOf(l.pid) // it may have ended
		for _, pid := range below {
			queue = append(queue, link{l.pid, pid})
		}
	}
	return out, settled, err
}

// childless tells that there is no child, and so no descendant: the usual end,
// known without reading what every thread has.
func childless() bool {
	_, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WNoHang|sys.WNoWait|sys.WAll)
	return errors.Is(err, syscall.ECHILD)
}

// look sees what a descendant is. It is ending when it is a zombie of ours, is
// exiting, has ended meanwhile, or is not any more whose child it was read to be.
func (k *keeper) look(pid, parent int) (m *wire.Member, inside, ending bool) {
	k.garbage.did(3 * fileBytes)
	dir, err := sys.Openat(sys.AtFDCWD, "/proc/"+strconv.Itoa(pid), sys.OPath|sys.ODirectory)
	if err != nil {
		return nil, false, true
	}
	defer func() { _ = sys.Close(dir) }() // until then it is the same process, or none
	b, err := sys.ReadFileAt(dir, "stat")
	if err != nil {
		return nil, false, true
	}
	st, err := sys.ParseStat(b)
	if err != nil || st.PPID != parent {
		return nil, false, true
	}
	thread := "" // whose files tell of the process
	if st.State == 'Z' || st.State == 'X' {
		if st.Threads > 1 { // only the main thread may have ended
			thread = k.liveThread(dir, pid)
		}
		if thread == "" && (st.Threads <= 1 || !k.work.isBare()) {
			return nil, true, parent == os.Getpid()
		}
	}
	if thread == "" && statField(b, 9)&exiting != 0 {
		return &wire.Member{PID: pid, Comm: st.Comm}, false, true
	}
	cgroup := ""
	if b, err := sys.ReadFileAt(dir, thread+"cgroup"); err == nil {
		cgroup, _ = sys.ParseCgroup(b)
	} else if !k.work.isBare() { // where it is decides what it is
		return nil, false, true
	}
	if k.work != nil && k.work.inside(cgroup) {
		return nil, true, false
	}
	m = &wire.Member{PID: pid, Comm: st.Comm, Cgroup: cgroup}
	if p := k.byPID[pid]; p != nil {
		m.Process = p.started.Process
	}
	return m, false, false
}

// liveThread is the directory, in that of a process, of a thread that is not about
// to end; "" if there is none.
func (k *keeper) liveThread(process, pid int) string {
	tids, _ := readDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, tid := range tids {
		k.garbage.did(fileBytes)
		b, err := sys.ReadFileAt(process, "task/"+tid+"/stat")
		if err != nil {
			continue
		}
		st, err := sys.ParseStat(b)
		if err == nil && st.State != 'Z' && st.State != 'X' && statField(b, 9)&exiting == 0 {
			return "task/" + tid + "/"
		}
	}
	return ""
}

// statField is a numeric field of /proc/pid/stat behind the second, which ends
// at the last ")". It is 0 where there is no such number.
func statField(b []byte, field int) uint64 {
	rest := b[bytes.LastIndexByte(b, ')')+1:]
	for range field - 2 {
		_, rest, _ = bytes.Cut(rest, []byte(" "))
	}
	n := uint64(0)
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

// childrenOf lists a process's children: those of each of its threads, which
// needs CONFIG_PROC_CHILDREN.
func (k *keeper) childrenOf(pid int) ([]int, error) {
	k.garbage.did(fileBytes)
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	names, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, tid := range names {
		b, err := sys.ReadFileAt(sys.AtFDCWD, dir+"/"+tid+"/children")
		if err != nil {
			if _, gone := sys.InoAt(sys.AtFDCWD, dir+"/"+tid); gone != nil {
				continue
			}
			return all, err
		}
		list, err := sys.ParseNumbers(b)
		if err != nil {
			return all, err
		}
		k.garbage.did(len(b) + len(list)<<3 + fileBytes)
		all = append(all, list...)
	}
	return all, nil
}

// readDir lists a directory's names. Package os would set up Go's poller for it.
func readDir(dir string) ([]string, error) {
	fd, err := sys.Openat(sys.AtFDCWD, dir, sys.ORdonly|sys.ODirectory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sys.Close(fd) }()
	var names []string
	buf := make([]byte, 4096)
	for {
		n, err := syscall.ReadDirent(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = syscall.ParseDirent(buf[:n], -1, names)
	}
}
