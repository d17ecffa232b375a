package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// startRecords is with how many records a service is started at most.
const startRecords = 10000

// startLive is how many of n records can be of turns that are there: the service
// may have descriptors for no more, which are two each.
func startLive(n int) int {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err == nil && lim.Max < uint64(2*n+200) {
		return int(lim.Max-200) / 2
	}
	return n
}

// startCounts are with how many records a service is started.
func startCounts() []int { return []int{0, startRecords / 10, startRecords / 2, startRecords} }

// start measures how long a service takes from its start to its first answer,
// with many records. Each is of an open turn with its cgroups; the keepers are
// gone, as so many do not fit on a machine, so all that is left out of finding
// such a turn again is one greeting each. What the limit of descriptors leaves no
// room for is of turns that are gone, cgroups and all, and are told lost.
func (b *bench) start(int) error {
	var took []time.Duration
	for _, n := range startCounts() {
		d, err := b.startWith(n)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	const group = "start"
	base := took[0]
	for i, n := range startCounts() {
		what := fmt.Sprintf("%d records: to the first answer", n)
		if live := startLive(n); live < n {
			what = fmt.Sprintf("%d records, %d live", n, live)
		}
		b.add(row{Group: group, What: what, Ours: brief(took[i])})
	}
	last, most := took[len(took)-1], 2*time.Second
	b.add(row{Group: group, What: fmt.Sprintf("%d records", startRecords), Ours: brief(last), Budget: "≤ " + most.String(), Stands: stands(float64(last), float64(most), true)})
	first, whole := float64(took[1]-base), float64(last-base)
	r := row{Group: group, What: "ten times the records: linear", Ours: brief(last - base), Peer: "10 x a tenth of them",
		Theirs: brief(10 * (took[1] - base)), Ratio: fmt.Sprintf("%.2f", whole/(10*first)), Budget: "1.5 x"}
	r.Stands = stands(whole, 15*first, false)
	b.add(r)
	return nil
}

// startWith starts a service that has n records: three times, and once if some
// are of turns that are gone, since it has told them lost then.
func (b *bench) startWith(n int) (took time.Duration, err error) {
	name := fmt.Sprintf("start-%d", n)
	s, err := b.place.serve(name, api.GradeCgroup)
	if err != nil {
		return 0, err
	}
	turn, err := s.begin()
	if err != nil {
		return 0, err
	}
	s.client.Close()
	if err := s.cmd.Process.Kill(); err != nil {
		return 0, err
	}
	_ = s.cmd.Wait()
	dir := filepath.Join(b.place.run, name)
	if err := multiply(dir, turn, n); err != nil {
		return 0, err
	}
	defer func() {
		_ = removeTree(filepath.Join(b.place.cgroup, name))
		_ = os.RemoveAll(dir)
	}()
	args := s.cmd.Args[1:]
	best, times := time.Duration(-1), 3
	if startLive(n) < n {
		times = 1
	}
	for range times {
		d, err := b.restart(s, args)
		if err != nil {
			return 0, err
		}
		if best < 0 || d < best {
			best = d
		}
	}
	return best, nil
}

// restart starts the service again, waits for its answer, and kills it.
func (b *bench) restart(s *service, args []string) (time.Duration, error) {
	own, err := os.Open(b.place.cgroup + "/" + filepath.Base(filepath.Dir(s.socket)) + "-service")
	if err != nil {
		return 0, err
	}
	defer own.Close()
	log, err := os.Create(filepath.Join(b.place.dir, "start.log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	start := time.Now()
	again, err := b.place.startService(args, s.socket, log, own)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	again.client.Close()
	err = again.cmd.Process.Kill()
	_ = again.cmd.Wait()
	return took, err
}

// multiply makes n turns of one, on disk and in the cgroup tree: all that the
// service looks at when it finds them again. Their keepers are gone.
func multiply(dir, turn string, n int) error {
	path := filepath.Join(dir, "turns", turn, "record.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var r map[string]any
	if err := d.Decode(&r); err != nil {
		return err
	}
	facts, _ := r["facts"].(map[string]any)
	view, _ := r["turn"].(map[string]any)
	keeper, _ := facts["keeper"].(map[string]any)
	own, _ := facts["cgroup"].(string)
	nonce, _ := facts["nonce"].(string)
	live := startLive(n)
	line, _ := facts["cgroup_line"].(string)
	keeper["pidfs_ino"], keeper["start_ticks"] = 1, 1 // nobody is, or will be, that
	for i := range n {
		id := fmt.Sprintf("%016x", 0xbe0000000000+i)
		cg := filepath.Join(filepath.Dir(own), id)
		for _, c := range []string{cg, cg + "/keeper", cg + "/work", cg + "/work/p1"} {
			if err := os.Mkdir(c, 0o755); err != nil {
				return err
			}
		}
		var st syscall.Stat_t
		if err := syscall.Stat(cg, &st); err != nil {
			return err
		}
		if err := syscall.Setxattr(cg, "trusted.pinfold", []byte(nonce), 0); err != nil {
			return err
		}
		if i >= live {
			if err := removeTree(cg); err != nil {
				return err
			}
		}
		facts["cgroup"], facts["cgroup_id"], facts["cgroup_line"] = cg, st.Ino, filepath.Join(filepath.Dir(line), id)
		facts["dir"] = filepath.Join(dir, "turns", id)
		view["id"], view["cgroup"] = id, cg
		if b, err = json.Marshal(r); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, "turns", id), 0o700); err != nil {
			return err
		}
		for name, text := range map[string][]byte{"record.json": b, "journal.jsonl": nil} {
			if err := os.WriteFile(filepath.Join(dir, "turns", id, name), text, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
