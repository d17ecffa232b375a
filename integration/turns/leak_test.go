package turns

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// footprint is what a service has of all that can leak.
type footprint struct {
	descriptors int
	threads     int
	children    int   // keepers, and zombies
	anonymous   int64 // bytes of memory that no file backs
	cgroups     int   // below this run's, and scopes
	files       int   // in the runtime and the state directory, without the segments of the event log, which bounds itself
}

func (f footprint) String() string {
	return fmt.Sprintf("%d descriptors, %d threads, %d children, %.1f MB, %d cgroups, %d files",
		f.descriptors, f.threads, f.children, float64(f.anonymous)/1e6, f.cgroups, f.files)
}

// footprint looks at the running service.
func (s *service) footprint() footprint {
	pid := s.proc.pid
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	f := footprint{descriptors: fds(s.t, pid), threads: len(tasks), children: childCount(pid), anonymous: anonymous(s.t, pid)}
	for _, dir := range append(s.scopes(), run.cgroup) {
		f.cgroups += countBelow(dir, true)
	}
	for _, dir := range []string{s.dir + "/run", s.dir + "/state"} {
		f.files += countBelow(dir, false)
	}
	f.files -= countBelow(s.dir+"/state/events", false)
	return f
}

// childCount counts children, dead ones included.
func childCount(pid int) (n int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		n += len(strings.Fields(string(b)))
	}
	return n
}

// anonymous is RssAnon of proc(5): the history, which is mapped, does not count.
func anonymous(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// countBelow counts what is in a directory: only directories, or everything.
func countBelow(dir string, onlyDirs bool) (n int) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || !onlyDirs) {
			n++
		}
		return nil
	})
	return n
}

// flat waits until the footprint is no larger than before, threads and memory
// but for the slack that the Go runtime takes.
func (s *service) flat(before footprint, threads int, memory int64) {
	s.t.Helper()
	s.Close() // connections in wait are the client's, not a leak
	var now footprint
	fits := func() bool {
		now = s.footprint()
		return now.descriptors <= before.descriptors && now.children <= before.children && now.cgroups <= before.cgroups &&
			now.files <= before.files && now.threads <= before.threads+threads && now.anonymous <= before.anonymous+memory
	}
	for end := time.Now().Add(patience(time.Minute)); !fits(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Errorf("before: %v\nafter:  %v (%d more threads and %.1f MB are no leak)\n%s", before, now, threads, float64(memory)/1e6, s.open())
			return
		}
	}
	s.t.Logf("before: %v", before)
	s.t.Logf("after:  %v", now)
}

// open lists what the service's descriptors are.
func (s *service) open() (out string) {
	count := map[string]int{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.proc.pid))
	number := regexp.MustCompile(`[0-9a-f]{6,}|\[\d+\]`)
	for _, l := range links {
		to, _ := os.Readlink(l)
		count[number.ReplaceAllString(to, "#")]++
	}
	for what, n := range count {
		out += fmt.Sprintf("%4d %s\n", n, what)
	}
	return out
}

// goroutines counts the service's, without those that tell systemd.
func (s *service) goroutines() int {
	s.t.Helper()
	n, _ := s.dumpGoroutines()
	return n
}

// dumpGoroutines has the service dump its goroutines, which ends it, counts them
// and starts it again. Those that tell systemd of a scope that is over, which are more
// the slower it is, are counted for themselves.
func (s *service) dumpGoroutines() (n, telling int) {
	s.t.Helper()
	was, _ := os.ReadFile(s.dir + "/log")
	if err := s.proc.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		s.t.Fatal(err)
	}
	<-s.proc.gone
	now, err := os.ReadFile(s.dir + "/log")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, one := range regexp.MustCompile(`(?m)^goroutine \d+ `).Split(string(now[len(was):]), -1)[1:] {
		if strings.Contains(one, ".tellSystemd(") {
			telling++
		} else {
			n++
		}
	}
	if n == 0 {
		s.t.Errorf("no goroutine in %q", tail(now[len(was):]))
	}
	s.restart()
	return n, telling
}

// life is one turn: two launches, one of which ends by itself, and an ending.
func (s *service) life(ctx context.Context, abandon bool) error {
	v, err := s.Begin(ctx, api.BeginRequest{Leftovers: api.LeftoversReap})
	if err != nil {
		return err
	}
	short, err := s.Run(ctx, v.ID, api.LaunchRequest{Argv: []string{"/bin/true"}, Cwd: "/"})
	if err == nil && short.Status.State != api.ProcessExited {
		err = fmt.Errorf("true: %+v", short.Status)
	}
	if err != nil {
		return err
	}
	if _, err := s.Launch(ctx, v.ID, api.LaunchRequest{Argv: []string{"/bin/sleep", "1000"}, Cwd: "/"}); err != nil {
		return err
	}
	var r api.Receipt
	if now := int64(0); abandon {
		r, err = s.Abandon(ctx, v.ID, api.AbandonRequest{GraceMS: &now})
	} else {
		r, err = s.Finish(ctx, v.ID, api.FinishRequest{GraceMS: &now})
	}
	if err == nil && (!r.Complete || len(r.Processes) != 2) {
		err = fmt.Errorf("receipt: %+v", r)
	}
	return err
}

// lives leads n turns, several at a time.
func (s *service) lives(n int) {
	s.t.Helper()
	s.many(n, func(i int) error { return s.life(s.t.Context(), i%2 == 0) })
}

// many does something n times, a few at a time.
func (s *service) many(n int, do func(i int) error) {
	s.t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		if s.t.Failed() {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// A service that has ended a thousand turns has no more than one that has
// ended a hundred.
func TestThousandTurns(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		n := 1000 / run.slow
		if testing.Short() {
			n /= 10
		}
		s := serve(t, g, options{})
		s.lives(n / 10)
		s.Close()
		eventually(t, "the first turns put away", func() bool { return s.footprint().children == 0 })
		before := s.footprint()
		start := time.Now()
		s.lives(n)
		t.Logf("%d turns in %v", n, time.Since(start).Round(time.Millisecond))
		s.flat(before, 16, 8<<20)
		busy, telling := s.dumpGoroutines()
		s.lives(1)
		s.Close()
		eventually(t, "the turn put away", func() bool { return s.footprint().children == 0 })
		fresh := s.goroutines()
		if t.Logf("%d goroutines after %d turns, and %d that tell systemd; %d after one", busy, n, telling, fresh); busy > fresh+10 || telling > n/5 {
			t.Error("these are too many")
		}
	})
}

// Ten thousand launches in one turn leave neither a descriptor, a cgroup nor a
// zombie, and a bounded memory of each.
func TestTenThousandLaunches(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		n := 10000 / run.slow
		if testing.Short() {
			n /= 10
		}
		s := serve(t, g, options{})
		s.lives(10)
		s.Close()
		eventually(t, "the first turns put away", func() bool { return s.footprint().children == 0 })
		empty := s.footprint()
		x := s.begin(t, api.BeginRequest{})
		launch := func(int) error {
			_, err := s.Run(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"/bin/true"}, Cwd: "/"})
			return err
		}
		s.many(n/100, launch)
		s.Close()
		before, keeper := s.footprint(), x.keeper()
		start := time.Now()
		s.many(n, launch)
		t.Logf("%d launches in %v", n, time.Since(start).Round(time.Millisecond))
		s.flat(before, 16, 8<<20+int64(n)*6<<10)
		var k footprint
		eventually(t, "the keeper has none of that", func() bool {
			k = x.keeper()
			return k.descriptors <= keeper.descriptors+8 && k.children == 0 // what is opened once, when it is wanted first
		})
		if k.threads > keeper.threads+8 || k.anonymous > keeper.anonymous+8<<20 { // those that wait for a disk, at worst
			t.Errorf("the keeper had %v, and has %v", keeper, k)
		}
		t.Logf("the keeper had %v, and has %v", keeper, k)
		if r := x.abandon(0); len(r.Processes) != n+n/100 {
			t.Errorf("the receipt has %d processes", len(r.Processes))
		}
		s.flat(empty, 16, 16<<20)
	})
}

// keeper is the footprint of a turn's keeper.
func (x *turn) keeper() footprint {
	x.t.Helper()
	pid := x.KeeperPID
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return footprint{descriptors: fds(x.t, pid), threads: len(tasks), children: childCount(pid), anonymous: anonymous(x.t, pid)}
}
