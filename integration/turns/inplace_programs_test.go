package turns

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// program is one that SDKs and people start by its words, and that forks what
// does the work: servers that outlive whoever started them.
type program struct {
	name    string
	needs   []string
	argv    []string
	servers []string // what /proc/PID/comm says of those
	// works reports whether the server, in dir, does.
	works func(dir string) bool
}

func programs(uid int) []program {
	ready := func(dir string) bool { _, err := os.Stat(filepath.Join(dir, "ready")); return err == nil }
	shell := func(script string) []string {
		return []string{"sh", "-c", script + "; while [ ! -e up ]; do sleep 0.01; done; echo >ready; sleep 3600; exit 3"}
	}
	chromium := []string{"chromium-headless-shell", "--disable-gpu", "--remote-debugging-port=0", "--user-data-dir=profile", "data:text/html,<script>document.title=6*7+' is it'</script>"}
	if uid == 0 { // Chromium's sandbox is for ordinary users: it is user and PID namespaces
		chromium = slices.Insert(chromium, 1, "--no-sandbox")
	}
	return []program{
		{"tmux", []string{"tmux"}, shell("tmux -S sock -f /dev/null new-session -d 'echo >up; exec sleep 3600'"), []string{"tmux: server", "sleep"}, ready},
		{"ssh-agent", []string{"ssh-agent"}, shell("ssh-agent -a sock; test -S sock && echo >up"), []string{"ssh-agent"}, ready},
		{"git", []string{"git"}, shell(`printf 'protocol=https\nhost=x\nusername=u\npassword=p\n' | git credential-cache --socket "$PWD/keep/sock" store && echo >up`),
			[]string{"git"}, ready},
		{"forking launcher", nil, shell("(setsid sh -c 'echo >up; sleep 3600; exit' </dev/null >/dev/null 2>&1 &)"), []string{"sleep"}, ready},
		{"chromium", []string{"chromium-headless-shell"}, chromium, []string{"chromium-headle"}, debugged},
	}
}

// debugged reports whether a headless browser shows its page, whose script a
// renderer has run.
func debugged(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "profile", "DevToolsActivePort"))
	port, _, _ := strings.Cut(string(b), "\n")
	if err != nil {
		return false
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://127.0.0.1:" + port + "/json/list")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return err == nil && strings.Contains(string(text), `"42 is it"`)
}

// started is a program that runs in place, in a turn of its own.
type started struct {
	*turn
	dir     string
	child   *child
	members []*pidfd.Handle
}

// inPlace starts a program as an SDK does, on a terminal, in a session of its
// own, and waits until it works.
func (s *service) inPlace(t *testing.T, p program, uid int) started {
	t.Helper()
	dir := filepath.Dir(files(t, "x")[0])
	m, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	t.Cleanup(func() { m.Close() })
	if err := tty.Chown(uid, -1); err != nil {
		t.Fatal(err)
	}
	label := filepath.Base(dir)
	cmd := exec.Command(run.bin+"/pinfold", append([]string{"run", "--in-place", "--label", label, "--"}, p.argv...)...)
	cmd.Env = []string{"PINFOLD_SOCKET=" + s.dir + "/sock", "PATH=" + os.Getenv("PATH"), "HOME=" + dir, "SHELL=/bin/sh", "TERM=xterm"}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
		cmd.Env[1] = "PATH=/usr/local/bin:/usr/bin:/bin"
	}
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, m) }()
	eventually(t, p.name+" works", func() bool {
		select {
		case <-c.gone:
			t.Fatalf("%s: %v", p.name, c.cmd.ProcessState)
		default:
		}
		return p.works(dir)
	})
	out := started{turn: s.labelled(t, label), dir: dir, child: c}
	out.held(t, p)
	return out
}

// labelled is the turn with that label.
func (s *service) labelled(t *testing.T, label string) *turn {
	t.Helper()
	l, err := s.Turns(t.Context(), false, "")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(l.Turns, func(v api.Turn) bool { return v.Label == label })
	if i < 0 {
		t.Fatalf("no turn %s: %+v", label, l.Turns)
	}
	v := l.Turns[i]
	ino, err := sys.InoAt(sys.AtFDCWD, v.Cgroup)
	if err != nil {
		t.Fatal(err)
	}
	run.guard.tell("held", v.Cgroup, fmt.Sprint(ino))
	return &turn{Turn: v, s: s, t: t}
}

// held checks that the launcher is still our child, with its session and its
// terminal, and that its servers are in the turn; it opens a handle of each.
func (x *started) held(t *testing.T, p program) {
	t.Helper()
	if st := statFields(t, x.child.pid); st[1] != strconv.Itoa(os.Getpid()) || st[3] != strconv.Itoa(x.child.pid) || st[4] == "0" {
		t.Errorf("parent, group, session, terminal of %d: %v", x.child.pid, st[1:5])
	}
	if v := x.look(); len(v.Processes) != 1 || v.Processes[0].PID != x.child.pid || !v.Processes[0].InPlace {
		t.Errorf("%+v", v.Processes)
	}
	var names map[string]int
	missing := ""
	all := func() bool { // one that says that it works may be about to execute its program
		names, missing = map[string]int{}, ""
		for _, pid := range below(x.Cgroup + "/work") {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			names[strings.TrimSpace(string(comm))]++
		}
		for _, want := range p.servers {
			if names[want] == 0 {
				missing = want
			}
		}
		if p.name == "chromium" && names["chromium-headle"] < 5 {
			missing = "one of browser, zygotes, renderer, utilities"
		}
		return missing == ""
	}
	for end := time.Now().Add(patience(time.Minute)); !all(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s is not held; these are: %v", missing, names)
			break
		}
	}
	x.members = nil
	for _, pid := range below(x.Cgroup + "/work") {
		if h, err := pidfd.Open(pid); err == nil {
			t.Cleanup(func() { h.Close() })
			x.members = append(x.members, h)
		}
	}
}

// ended checks that all have, and what the parent was told. One that has left
// its cgroup, which the receipt is about, may still be on its way out.
func (x *started) ended(t *testing.T) {
	t.Helper()
	for _, h := range x.members {
		eventually(t, fmt.Sprintf("the end of %d", h.PID()), func() bool {
			over, err := h.Exited()
			return over && err == nil
		})
	}
	<-x.child.gone
	if ws := x.child.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the parent got: %v", x.child.cmd.ProcessState)
	}
}

// statFields are those of /proc/PID/stat from the state on.
func statFields(t *testing.T, pid int) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// below lists the processes of a cgroup and of those below it.
func below(dir string) (pids []int) {
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			b, _ := os.ReadFile(p + "/cgroup.procs")
			for _, w := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(w); err == nil {
					pids = append(pids, pid)
				}
			}
		}
		return nil
	})
	return pids
}

// Programs that know nothing of Pinfold run in place: everything around them is
// as without it, all that they fork is held, and ends with their turn. The same
// program in the turn beside works on.
func TestProgramsInPlace(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		newCanary(t, s)
		for _, uid := range []int{0, 54321} {
			for _, p := range programs(uid) {
				t.Run(fmt.Sprintf("%s as %d", p.name, uid), func(t *testing.T) {
					for _, name := range p.needs {
						systest.Program(t, name)
					}
					x, beside := s.inPlace(t, p, uid), s.inPlace(t, p, uid)
					r := x.abandon(0)
					x.ended(t)
					if r.Owner != uint32(uid) || r.Counts.Ended < len(p.servers) {
						t.Errorf("%+v", r)
					}
					beside.held(t, p)
					eventually(t, "beside, it works on", func() bool { return p.works(beside.dir) })
					beside.abandon(0)
					beside.ended(t)
				})
			}
		}
	})
}
