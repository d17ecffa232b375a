package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys"
)

// piece is how much is read and written at once, by everybody.
const piece = 64 << 10

// playPour writes so many bytes to stdout.
func playPour(args []string) error {
	if len(args) != 1 {
		return errors.New("pour: wants a number of bytes")
	}
	left, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	for p := make([]byte, piece); left > 0; {
		n, err := os.Stdout.Write(p[:min(left, piece)])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// pouring is one program's output on its way.
type pouring struct {
	b      *bench
	argv   []string
	total  int64
	mem    map[string]*memory // by whose it is
	missed int64              // bytes that a follower was told it had missed, at most
}

// flow compares how fast a process's output arrives with a plain pipe, and
// tells what memory that takes of the service and of the keeper.
func (b *bench) flow(rounds int) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	const total = 1 << 30
	argv := []string{exe, "pour", strconv.Itoa(total)}
	spool := func(followers int, keep int64) func(p *pouring, turn string) error {
		return func(p *pouring, turn string) error { return p.spool(turn, followers, keep) }
	}
	ways := []struct {
		what string
		send func(p *pouring, turn string) error
	}{
		{"pass", (*pouring).pass},
		{"spool, nobody reads", spool(0, 0)},
		{"spool, 1 follower", spool(1, 0)},
		{"spool, 3 followers", spool(3, 0)},
		{"spool of 1 GiB, 3 followers", spool(3, total)},
		{"spool, 1 reader stuck", (*pouring).stuck},
	}
	plain := func(name string, session bool) contestant {
		return contestant{name, func() (time.Duration, error) {
			return throughPipe(total, func(w *os.File) (func() error, error) {
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Stdout = w
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
				return cmd.Wait, cmd.Start()
			})
		}}
	}
	// A writer in a session of its own, as all that Pinfold launches, is
	// scheduled apart from the reader: sched(7), autogroups.
	cs := []contestant{plain("plain pipe", false), plain("plain pipe from a session of its own", true)}
	first := len(cs)
	ps := make([]*pouring, len(ways))
	for i, way := range ways {
		p := &pouring{b: b, argv: argv, total: total, mem: map[string]*memory{"service": {}, "keeper": {}}}
		ps[i] = p
		cs = append(cs, contestant{way.what, func() (time.Duration, error) {
			return p.once(func(turn string) error { return way.send(p, turn) })
		}})
	}
	got, err := compare(rounds, cs...)
	if err != nil {
		return err
	}
	const group = "output, 1 GiB"
	for i, way := range ways {
		what := way.what
		if p := ps[i]; p.missed > 0 {
			what += fmt.Sprintf(" (told of %.1f %% missed)", 100*float64(p.missed)/float64(total))
		}
		b.add(against(group, what, got[first+i], got[0], cs[0].name, budget{}))
		if way.what == "pass" {
			b.add(against(group, what, got[first+i], got[1], cs[1].name, budget{}))
		}
	}
	for i, way := range ways {
		for _, who := range []string{"service", "keeper"} {
			b.add(row{Group: group + ": private memory before, at most, after", What: way.what + ": " + who, Ours: ps[i].mem[who].String()})
		}
	}
	return nil
}

// once pours in a turn of its own, while memory is watched.
func (p *pouring) once(send func(turn string) error) (time.Duration, error) {
	t, err := p.b.service.client.Begin(context.Background(), api.BeginRequest{})
	if err != nil {
		return 0, err
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	for who, pid := range map[string]int{"service": p.b.service.cmd.Process.Pid, "keeper": t.KeeperPID} {
		m := p.mem[who]
		m.look(pid)
		watching.Go(func() { m.watch(pid, stop) })
	}
	d, err := since(func() error { return send(t.ID) })
	close(stop)
	watching.Wait()
	if err != nil {
		return 0, err
	}
	_, err = p.b.service.abandon(t.ID)
	return d, err
}

// throughPipe reads all that a program writes to a pipe, and waits for it.
func throughPipe(total int64, start func(w *os.File) (wait func() error, err error)) (time.Duration, error) {
	return since(func() error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		wait, err := start(w)
		w.Close()
		if err != nil {
			return err
		}
		n, err := readAll(r)
		if err == nil && n != total {
			err = fmt.Errorf("%d bytes came, not %d", n, total)
		}
		return errors.Join(err, wait())
	})
}

func readAll(r io.Reader) (total int64, err error) {
	for p := make([]byte, piece); ; {
		n, err := r.Read(p)
		total += int64(n)
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
	}
}

// pass hands the program a pipe of ours.
func (p *pouring) pass(turn string) error {
	_, err := throughPipe(p.total, func(w *os.File) (func() error, error) {
		v, err := p.b.service.client.Launch(context.Background(), turn, p.request(api.StdioPass), w)
		return func() error { return p.exited(turn, v.ID) }, err
	})
	return err
}

func (p *pouring) request(mode api.StdioMode) api.LaunchRequest {
	return api.LaunchRequest{Argv: p.argv, Cwd: "/", Stdio: api.Stdio{Stdout: api.Stream{Mode: mode}}}
}

// exited waits for the program.
func (p *pouring) exited(turn, process string) error {
	v, err := p.b.service.client.WaitProcess(context.Background(), turn, process)
	err = well(v, err)
	if o, ok := v.Output[api.StreamStdout]; err == nil && ok && (o.BytesTotal != p.total || o.BytesLost != 0) {
		err = fmt.Errorf("the stream ended with %+v", o)
	}
	return err
}

// spool has so much of the output kept (0: 16 MiB), and followed by so many
// from its beginning.
func (p *pouring) spool(turn string, followers int, keep int64) error {
	c := p.b.service.client
	req := p.request(api.StdioSpool)
	req.Stdio.Stdout.MaxBytes = keep
	v, err := c.Launch(context.Background(), turn, req)
	if err != nil {
		return err
	}
	errs := make([]error, followers)
	missed := make([]int64, followers)
	var wg sync.WaitGroup
	for i := range followers {
		wg.Go(func() { missed[i], errs[i] = p.follow(turn, v.ID) })
	}
	err = p.exited(turn, v.ID)
	wg.Wait()
	for _, n := range missed {
		p.missed = max(p.missed, n)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	_, err = c.Acknowledge(context.Background(), turn, v.ID)
	return err
}

// follow reads raw bytes to the stream's end; where they are gone already it
// goes on after them.
func (p *pouring) follow(turn, process string) (missed int64, err error) {
	for off := int64(0); ; {
		o, err := p.b.service.client.Output(context.Background(), turn, process, client.OutputQuery{Offset: off, Follow: true})
		if err != nil {
			return missed, err
		}
		missed += o.Offset - off
		n, err := readAll(o)
		next := int64(0)
		if err == nil {
			next, err = o.Next()
		}
		if err = errors.Join(err, o.Close()); err != nil {
			return missed, err
		}
		missed += next - o.Offset - n // a gap ends a raw answer
		if off = next; off == p.total {
			return missed, nil
		}
	}
}

// stuck has the output kept, and a reader that takes one byte and no more.
func (p *pouring) stuck(turn string) error {
	c := p.b.service.client
	v, err := c.Launch(context.Background(), turn, p.request(api.StdioSpool))
	if err != nil {
		return err
	}
	o, err := c.Output(context.Background(), turn, v.ID, client.OutputQuery{Follow: true})
	if err != nil {
		return err
	}
	defer o.Close()
	if _, err := o.Read(make([]byte, 1)); err != nil {
		return err
	}
	if err := p.exited(turn, v.ID); err != nil {
		return err
	}
	_, err = c.Acknowledge(context.Background(), turn, v.ID)
	return err
}

// memory is what a process has had of its own: bytes before the first run, at
// most, and after the last.
type memory struct{ before, most, after int64 }

func (m *memory) String() string {
	return fmt.Sprintf("%s, %s, %s", mb(m.before), mb(m.most), mb(m.after))
}

func (m *memory) look(pid int) {
	b, err := sys.ProcFile(pid, "smaps_rollup")
	if err != nil {
		return // it has ended
	}
	m.after = private(b)
	m.most = max(m.most, m.after)
	if m.before == 0 {
		m.before = m.after
	}
}

// watch looks every 10 ms, and once more at the end.
func (m *memory) watch(pid int, stop chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.look(pid)
		case <-stop:
			m.look(pid)
			return
		}
	}
}

// private reads smaps_rollup: bytes that would be free without the process.
func private(b []byte) int64 {
	return 1024 * (field(b, "Private_Clean:") + field(b, "Private_Dirty:"))
}
