package records

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// writers are where the service and the keeper write to disks; each has fault
// points at its writes.
func writers() []string {
	return []string{"internal/store/*.go", "internal/events/*.go", "internal/outputs/*.go", "internal/spool/*.go", "internal/hold/keeper.go", "internal/hold/stdio.go",
		"reaper/journal_linux.go", "reaper/stdio_linux.go"}
}

// writes are their fault points, from the source.
func writes(t *testing.T) (points []string) {
	t.Helper()
	point := regexp.MustCompile(`fault\.Point\("([^"]+)"\)`)
	for _, w := range writers() {
		files, err := filepath.Glob(filepath.Join("../..", w))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", w, files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range point.FindAllStringSubmatch(string(b), -1) {
				if !strings.HasSuffix(f, "_test.go") {
					points = append(points, m[1])
				}
			}
		}
	}
	slices.Sort(points)
	return points
}

// unreached are points that a whole life on good disks does not come to, and why.
func unreached() map[string]string {
	return map[string]string{"keeper.spawned": "no write"}
}

// TestFullDisk has a disk without room from each write on, in turn: the runtime
// directory's, or the state directory's. Calls fail with an error or work; what
// runs is ended and seen ended; the turn beside goes on, and is ended, too; a
// killed service comes back. When there is room again all is put away.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	visits := 2
	if testing.Short() {
		visits = 1
	}
	for _, p := range writes(t) {
		if unreached()[p] != "" {
			continue
		}
		for _, disk := range []string{"run", "state"} {
			for n := 1; n <= visits; n++ {
				reached := false
				t.Run(fmt.Sprintf("%s, visit %d, %s", p, n, disk), func(t *testing.T) {
					l := newFullLife(t, disk, fmt.Sprintf("%s#%d", p, n))
					l.first = n == 1
					defer func() { reached = l.reached() }()
					l.live()
				})
				if !reached && n == 1 {
					t.Errorf("%s was never come to", p)
				}
				if !reached {
					break
				}
			}
		}
	}
}

// fullLife is a service whose disk gets full at a point.
type fullLife struct {
	*service
	t      *testing.T
	disk   string
	armed  string
	filler string
	first  bool // it is to be come to
}

func newFullLife(t *testing.T, disk, rule string) *fullLife {
	t.Helper()
	mounts, err := os.MkdirTemp(run.dir, "m.")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"run", "state"} {
		dir := filepath.Join(mounts, d)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m,mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // after the service's own end
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	l := &fullLife{service: newService(t), t: t, disk: filepath.Join(mounts, disk)}
	for _, d := range []string{"run", "state"} {
		if err := os.Symlink(filepath.Join(mounts, d), filepath.Join(l.dir, d)); err != nil {
			t.Fatal(err)
		}
	}
	l.args = []string{"--runtime-dir", filepath.Join(mounts, "run"), "--state-dir", filepath.Join(mounts, "state")}
	l.armed, l.filler = filepath.Join(l.dir, "armed"), filepath.Join(l.disk, "filler")
	l.faults = rule + "=hold:" + l.armed
	return l
}

func (l *fullLife) reached() bool {
	_, err := os.Stat(l.armed + ".reached")
	return err == nil
}

// fill leaves no room.
func (l *fullLife) fill() {
	f, err := os.Create(l.filler)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		l.t.Error(err)
	}
}

// arm has the disk filled as soon as the point is come to, which waits for that.
func (l *fullLife) arm() {
	if err := os.WriteFile(l.armed, nil, 0o600); err != nil {
		l.t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !l.reached() {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
		l.fill()
		_ = os.Remove(l.armed)
	}()
	l.t.Cleanup(func() { close(stop); <-done })
}

// told checks that an error is one of ours, and says what to do.
func (l *fullLife) told(what string, err error) {
	l.t.Helper()
	var e *api.Error
	if err != nil && (!errors.As(err, &e)) {
		l.t.Errorf("%s: %v", what, err)
	} else if err != nil && e.Remedy == "" {
		l.t.Errorf("%s: %v, and no remedy", what, err)
	}
}

// live is a whole life.
func (l *fullLife) live() {
	t, ctx := l.t, context.Background()
	canary := newCanary(t, "")
	l.start()
	beside := l.begin(api.BeginRequest{Label: "beside"})
	neighbour := l.launch(beside.ID, "exec sleep 100000")
	l.arm()
	v, err := l.Begin(ctx, api.BeginRequest{})
	l.told("begin", err)
	var pids []int
	if err == nil {
		pids = l.launches(v.ID)
		l.end(v.ID)
	}
	for _, pid := range pids {
		if s := stateOf(pid); s != 0 && s != 'Z' {
			t.Errorf("process %d runs on: %c", pid, s)
		}
	}
	if s := stateOf(neighbour.PID); s == 0 || s == 'Z' {
		t.Error("the process in the turn beside is dead")
	}
	if err == nil { // what is written after the receipt comes now
		for end := time.Now().Add(patience(time.Minute)); l.first && !l.reached() && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // however long it takes: it has to come
		}
		for end := time.Now().Add(patience(time.Second)); !l.reached() && time.Now().Before(end) && exists(filepath.Dir(l.recordPath(v.ID))); {
			time.Sleep(time.Millisecond)
		}
		for end := time.Now().Add(20 * time.Millisecond); !l.reached() && time.Now().Before(end); { // what comes right after that
			time.Sleep(time.Millisecond)
		}
	}
	_ = os.Remove(l.armed)
	l.kill()
	l.faults = ""
	l.start()
	if s := stateOf(neighbour.PID); s == 0 || s == 'Z' || l.look(beside.ID).State != api.StateOpen {
		t.Error("the turn beside is not as it was after a restart")
	}
	l.end(beside.ID)
	if s := stateOf(neighbour.PID); s != 0 && s != 'Z' {
		t.Error("the process in the turn beside was not ended")
	}
	_ = os.Remove(l.filler)
	l.archived(beside.ID)
	if err == nil {
		l.archived(v.ID)
	}
	canary.lives()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// launches launches what keeps output, what ends and what does not.
func (l *fullLife) launches(turn string) (pids []int) {
	l.t.Helper()
	for _, script := range []string{"echo out; exit 5", "echo out; exec sleep 100000", "exec sleep 100000"} {
		req := api.LaunchRequest{Argv: []string{"sh", "-c", script}, Cwd: "/", Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioSpool, MaxBytes: 1 << 16}}}
		p, err := l.Launch(context.Background(), turn, req)
		l.told("launch", err)
		if err == nil {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// end abandons a turn, which must be seen ended.
func (l *fullLife) end(turn string) {
	l.t.Helper()
	r, err := l.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete || r.State != api.StateAbandoned || r.Counts.Survivors != 0 {
		l.t.Errorf("abandon: complete %v, state %s, notes %q (%v)", r.Complete, r.State, r.Notes, err)
	}
}
