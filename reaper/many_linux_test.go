package reaper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/wire"
)

// exits collects the ends of n processes.
func (c *client) exits(n int) map[string]wire.Exit {
	c.t.Helper()
	got := make(map[string]wire.Exit)
	for end := time.After(long); len(got) < n; {
		select {
		case m := <-c.events:
			if m.Event != wire.EventExit {
				continue
			}
			if _, twice := got[m.Exit.Process]; twice {
				c.t.Errorf("%s ended twice", m.Exit.Process)
			}
			got[m.Exit.Process] = *m.Exit
		case <-end:
			c.t.Fatalf("%d of %d ends", len(got), n)
		}
	}
	return got
}

func TestConcurrentLaunches(t *testing.T) {
	b := newBed(t)
	fds := b.keeperFDs()
	const n = 200
	var asked []<-chan answer
	for i := range n {
		asked = append(asked, b.ask(wire.Message{Op: wire.OpLaunch, Launch: request(fmt.Sprintf("p%d", i), "sh", "-c", fmt.Sprintf("sleep 0.1; exit %d", i))}))
	}
	pids := map[int]bool{}
	for i, ch := range asked {
		a := b.await(wire.Message{Op: wire.OpLaunch}, ch)
		if a.Error != nil || a.Started.Process != fmt.Sprintf("p%d", i) || len(a.fds) != 1 {
			t.Fatalf("launch %d: %+v, %d handles", i, a.Error, len(a.fds))
		}
		closeFDs(a.fds)
		pids[a.Started.PID] = true
	}
	if len(pids) != n {
		t.Errorf("%d different pids", len(pids))
	}
	for process, e := range b.exits(n) {
		if process != fmt.Sprintf("p%d", e.Code) || e.Signal != 0 {
			t.Errorf("%s: %+v", process, e)
		}
	}
	eventually(t, "nothing is left", func() bool {
		return len(b.leaves()) == 0 && b.keeperChildren() == "" && b.keeperFDs() == fds
	})
}

func TestFastExitsAreNotLost(t *testing.T) {
	b := newBed(t)
	path := noop(t)
	const n = 1000
	var asked []<-chan answer
	for i := range n {
		asked = append(asked, b.ask(wire.Message{Op: wire.OpLaunch, Launch: request(fmt.Sprintf("p%d", i), path)}))
		if i >= 50 {
			closeFDs(b.await(wire.Message{}, asked[i-50]).fds)
		}
	}
	for _, ch := range asked[n-50:] {
		closeFDs(b.await(wire.Message{}, ch).fds)
	}
	for process, e := range b.exits(n) {
		if e.Code != 0 || e.Signal != 0 || e.PID == 0 {
			t.Errorf("%s: %+v", process, e)
		}
	}
	ended := 0
	for _, r := range wire.Launches(b.journal()) {
		if r.Process.Exit != nil && !r.Unsure {
			ended++
		}
	}
	if ended != n {
		t.Errorf("the journal has %d ends", ended)
	}
}

// Nothing that is launched after the fence's answer runs.
func TestFenceAgainstLaunches(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	ran := 0
	for i := range rounds {
		ran += fenceRound(t, i)
		if t.Failed() {
			return
		}
	}
	if ran == 0 || ran == rounds*8 {
		t.Errorf("%d launches of %d ran: no race was seen", ran, rounds*8)
	}
}

func fenceRound(t *testing.T, round int) (ran int) {
	ok := t.Run("", func(t *testing.T) {
		b := newBed(t)
		other := b.connect()
		other.hello(testNonce)
		path := noop(t)
		var asked []<-chan answer
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 8 {
				asked = append(asked, b.ask(wire.Message{Op: wire.OpLaunch, Launch: request(fmt.Sprintf("p%d", i), path)}))
			}
		})
		time.Sleep(time.Duration(round%40) * 20 * time.Microsecond)
		fence := other.call(wire.Message{Op: wire.OpFence})
		before := b.intents()
		wg.Wait()
		for _, ch := range asked {
			a := b.await(wire.Message{Op: wire.OpLaunch}, ch)
			closeFDs(a.fds)
			switch {
			case a.Error == nil:
				ran++
			case a.Error.Kind != wire.ErrFenced:
				t.Fatalf("launch: %+v", a.Error)
			}
		}
		if fence.Fenced == nil || fence.Fenced.Launched != ran {
			t.Errorf("the fence says %+v, %d ran", fence.Fenced, ran)
		}
		if after := b.intents(); after != before || after != ran {
			t.Errorf("%d launches were begun, %d before the answer, %d ran", after, before, ran)
		}
	})
	if !ok {
		t.FailNow()
	}
	return ran
}

// intents counts the launches that the journal says were begun.
func (b *bed) intents() int {
	text, err := os.ReadFile(filepath.Join(b.dir, wire.JournalName))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Count(string(text), `"fact":"intent"`)
}

// A launch that is caught by a freeze waits, and with it the fence, but nobody
// else.
func TestFrozenWithinALaunch(t *testing.T) {
	b := newBed(t)
	other := b.connect()
	other.hello(testNonce)
	freeze := func(on string) {
		if err := os.WriteFile(filepath.Join(b.work, "cgroup.freeze"), []byte(on), 0); err != nil {
			t.Fatal(err)
		}
	}
	launch := wire.Message{Op: wire.OpLaunch}
	for i := range 2000 {
		launch.Launch = request(fmt.Sprintf("p%d", i), "true")
		ch := b.ask(launch)
		time.Sleep(time.Duration(i%100) * 5 * time.Microsecond)
		freeze("1")
		if a := b.caught(ch); a != nil {
			closeFDs(a.fds)
			freeze("0")
			if a.Error == nil {
				b.exitOf(launch.Launch.Process)
			}
			continue
		}
		fence := b.ask(wire.Message{Op: wire.OpFence})
		b.hello(testNonce) // it has come
		if m := other.hello(testNonce); m.Error != nil || !m.Hello.Fenced {
			t.Fatalf("hello: %+v", m)
		}
		if m := other.call(wire.Message{Op: wire.OpCensus}); m.Error != nil {
			t.Fatalf("census: %+v", m)
		}
		select {
		case <-fence:
			t.Fatal("the fence did not wait for the launch")
		case <-time.After(20 * time.Millisecond):
		}
		freeze("0")
		a := b.await(launch, ch)
		if closeFDs(a.fds); a.Error != nil {
			t.Fatalf("launch: %+v", a.Error)
		}
		if m := b.await(wire.Message{Op: wire.OpFence}, fence); m.Fenced == nil {
			t.Fatalf("fence: %+v", m)
		}
		return
	}
	t.Fatal("no launch was caught by a freeze")
}

// caught waits until a launch is answered, or its child is frozen before it has
// executed: then it returns nil, and the launch goes on when it is thawed only.
func (b *bed) caught(launch <-chan answer) *answer {
	b.t.Helper()
	for frozen := false; ; {
		for range 2 { // what is decided is answered by then, however slow the machine is
			b.hello(testNonce)
		}
		select {
		case a := <-launch:
			return &a
		default:
		}
		if frozen {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(b.work, "cgroup.events"))
		if err != nil {
			b.t.Fatal(err)
		}
		frozen = strings.Contains(string(text), "populated 1\nfrozen 1\n")
	}
}

// Hello lists everything, in as many answers as the handles take.
func TestHelloListsAllProcesses(t *testing.T) {
	b := newBed(t)
	b.mustLaunch(request("ended", "sh", "-c", "exit 3"))
	b.exitOf("ended")
	const n = 300
	var asked []<-chan answer
	for i := range n {
		asked = append(asked, b.ask(wire.Message{Op: wire.OpLaunch, Launch: request(fmt.Sprintf("p%d", i), "sleep", "600")}))
	}
	for _, ch := range asked {
		closeFDs(b.await(wire.Message{Op: wire.OpLaunch}, ch).fds)
	}
	other := b.connect()
	var names []string
	alive, handles := 0, 0
	for more := true; more; {
		m := other.call(wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t1", Nonce: testNonce, Skip: len(names)}})
		if m.Error != nil {
			t.Fatal(m.Error)
		}
		handles += len(m.fds)
		closeFDs(m.fds)
		for _, p := range m.Hello.Processes {
			names = append(names, p.Started.Process)
			if p.HasFD {
				alive++
			} else if p.Started.Process != "ended" || p.Exit == nil || p.Exit.Code != 3 {
				t.Errorf("no handle: %+v", p)
			}
		}
		more = m.Hello.More
	}
	slices.Sort(names)
	if alive != n || handles != n || len(slices.Compact(names)) != n+1 {
		t.Errorf("%d alive, %d handles, %d names", alive, handles, len(names))
	}
}

// An active keeper grows by nothing.
func TestNoLeakOverLaunches(t *testing.T) {
	b := newBed(t)
	path := noop(t)
	run := func(from, n int) {
		for i := from; i < from+n; i++ {
			b.mustLaunch(request(fmt.Sprintf("p%d", i), path))
			b.exitOf(fmt.Sprintf("p%d", i))
			if a := b.launch(request(fmt.Sprintf("q%d", i), "/no/such")); a.Error == nil {
				t.Fatal("launched what is not there")
			}
		}
	}
	status := func() (threads string) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "Threads:")
		threads, _, _ = strings.Cut(rest, "\n")
		return threads
	}
	run(0, 50)
	fds, threads := b.keeperFDs(), status()
	run(50, 1000)
	eventually(t, "descriptors are as before", func() bool { return b.keeperFDs() == fds })
	if now := status(); now != threads {
		t.Errorf("%s threads, before %s", now, threads)
	}
	eventually(t, "nothing is left", func() bool { return len(b.leaves()) == 0 && b.keeperChildren() == "" })
}

// An idle keeper is never woken.
func TestIdle(t *testing.T) {
	b := newBed(t)
	b.mustLaunch(request("p1", "true"))
	b.exitOf("p1")
	b.mustLaunch(request("p2", "sleep", "600"))
	b.idles(5 * time.Second)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// Not Private_Dirty: that has pages of a binary which was just written, too.
	_, rest, _ := strings.Cut(string(text), "Anonymous:")
	private := 0
	if fmt.Sscan(rest, &private); private == 0 || private > 2048 {
		t.Errorf("%d kB of private memory", private)
	}
	t.Logf("%d kB of private memory after one launch", private)
}

func TestJournalOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	smallDisk(t, disk, "size=64k")
	b := newKeeperIn(t, disk, nil)
	b.mustHold(false)
	b.mustLaunch(request("p1", "sleep", "600"))
	fill, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 512); err == nil; {
		_, err = fill.Write(block)
	}
	fill.Close()
	full := 0
	for i := 0; full == 0 && i < 500; i++ { // the journal's last page has room yet
		a := b.launch(request(fmt.Sprintf("q%d", i), noop(t)))
		if a.Error != nil {
			if a.Error.Kind != wire.ErrJournal || a.Error.Errno != int(syscall.ENOSPC) || a.JournalErrors == 0 {
				t.Fatalf("launch: %+v", a.Error)
			}
			full = a.JournalErrors
		}
	}
	if full == 0 {
		t.Fatal("the disk does not fill up")
	}
	b.call(wire.Message{Op: wire.OpSignal, Signal: &wire.Signal{Process: "p1", Number: 9}})
	if e := b.exitOf("p1"); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	if m := b.hello(testNonce); m.JournalErrors <= full {
		t.Errorf("%d journal errors, before %d", m.JournalErrors, full)
	}
	os.Remove(fill.Name())
	b.mustLaunch(request("last", noop(t)))
	b.exitOf("last")
	f, err := os.Open(filepath.Join(disk, wire.JournalName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, torn, err := wire.ReadJournal(f)
	if err != nil || torn > 1 || list[len(list)-1].Process != "last" {
		t.Errorf("journal: %d torn, %v, ends with %+v", torn, err, list[len(list)-1])
	}
}
