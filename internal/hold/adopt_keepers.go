package hold

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// othersKeeper refuses a keeper of another service, and what is below one: at the
// grades without a cgroup nothing else tells that a turn has it. Keepers of ours were
// told by their identity before; this one is known by its words alone. They prove
// nothing, and nothing is signalled for them: who lies has itself left alone.
func othersKeeper(f *found, above []api.Identity) error {
	pid, turn := f.id.PID, keeperWords(f.id.PID)
	for i := 0; i < len(above) && turn == ""; i++ {
		pid, turn = above[i].PID, keeperWords(above[i].PID)
	}
	if turn == "" || slices.Contains(aboveSelf(), pid) { // a turn that we are in ourselves is around us both
		return nil
	}
	return api.AdoptHeld.Refuse(f.id.PID, "process %d (%s) is in turn %s of another service, whose keeper is process %d", f.id.PID, f.comm, turn, pid).With("turn", turn).
		WithRemedy("a process is in one turn: end it there")
}

// keeperWords is the turn whose keeper a process says that it is, see startKeeper.
func keeperWords(pid int) (turn string) {
	line, err := sys.ProcFile(pid, "cmdline")
	words := bytes.Split(line, []byte{0})
	if err != nil || len(words) < 6 || string(bytes.Join(words[:3], []byte(" "))) != "pinfold-init keeper --turn" || string(words[4]) != "--dir" {
		return ""
	}
	if turn = string(words[3]); filepath.Base(string(words[5])) != turn {
		return ""
	}
	return turn
}

// aboveSelf are the numbers of our own ancestors.
func aboveSelf() (pids []int) {
	self, err := pidfd.Open(os.Getpid())
	if err != nil {
		return nil
	}
	defer self.Close()
	up, _ := above(self)
	for _, id := range up {
		pids = append(pids, id.PID)
	}
	return pids
}
