package turns

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// someUID is the user that is neither root nor the service.
const someUID = 54321

func someUser() *syscall.Credential { return &syscall.Credential{Uid: someUID, Gid: someUID} }

// playAsUser: CGROUP WORD... As another user, in a cgroup, it executes the words.
func playAsUser(words []string) int {
	check(os.WriteFile(words[0]+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0))
	check(syscall.Setgroups(nil))
	check(syscall.Setgid(someUID))
	check(syscall.Setuid(someUID))
	check(syscall.Exec(words[1], words[1:], []string{"PATH=" + os.Getenv("PATH")}))
	return 4 // not reached
}

// serveAsUser starts a service of another user, to whom this run's cgroup is
// delegated for as long.
func serveAsUser(t *testing.T) *service {
	t.Helper()
	home := place(t, "svc")
	give := func(uid int) {
		for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} {
			if err := os.Chown(run.cgroup+f, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	give(someUID)
	t.Cleanup(func() { give(0) })
	s := newService(t, api.GradeCgroup, options{wrap: []string{"asuser", home}})
	if err := os.Chown(s.dir, someUID, someUID); err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// A user's service moves what the user may move, and says who cannot be moved and
// why; such a one is held by its identity when that was asked for: then it is found
// again, asked, ended through its handle, and what it has forked lives.
func TestAdoptByAUsersService(t *testing.T) {
	s := serveAsUser(t)
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "moved", "its", "stays", "kid", "fourth")
	movable, stays := outsider(t, someUser(), "setsid", f[0], f[1]), outsider(t, someUser(), "setsid", f[2], f[3])
	roots := outsider(t, nil, "beat", f[4])
	for _, h := range f {
		heart(h).beating(t)
	}
	kid := childOf(t, stays.pid)
	place(t, "mine", movable.pid, childOf(t, movable.pid))
	was := cgroupOf(t, stays.pid)
	p := x.adopt(movable.pid, api.AdoptRequest{Tree: true})
	if p.Adopted.Moved != 2 {
		t.Errorf("%+v", p.Adopted)
	}
	_, err := x.tryAdopt(stays.pid, api.AdoptRequest{})
	wantNotAdopted(t, "out of a cgroup that is not the user's", err, api.AdoptUnmovable)
	if e := wantCode(t, err, api.CodeAdoptRefused); e.Details["errno_name"] != "EACCES" || e.Details["pid"] != strconv.Itoa(stays.pid) || e.Remedy == "" {
		t.Errorf("%+v", e)
	}
	_, err = x.tryAdopt(stays.pid, api.AdoptRequest{MinGrade: api.GradeToken, Tree: true})
	wantCode(t, err, api.CodeGradeUnavailable) // its descendants would not be held
	_, err = x.tryAdopt(roots.pid, api.AdoptRequest{MinGrade: api.GradeToken})
	wantNotAdopted(t, "root's", err, api.AdoptOther)
	q := x.adopt(stays.pid, api.AdoptRequest{MinGrade: api.GradeToken})
	if q.Grade != api.GradeToken || q.Adopted.Moved != 0 || q.Placement != "token" || cgroupOf(t, stays.pid) != was {
		t.Errorf("%+v %+v, in %s", q, q.Adopted, cgroupOf(t, stays.pid))
	}
	s.kill()
	s.restart()
	for id, grade := range map[string]api.Grade{p.ID: api.GradeCgroup, q.ID: api.GradeToken} {
		if v, err := s.Process(t.Context(), x.ID, id); err != nil || v.Status.State != api.ProcessRunning || v.Grade != grade {
			t.Errorf("%s: %+v (%v)", id, v, err)
		}
	}
	if w, err := s.Why(t.Context(), x.ID); err != nil || len(w.Targets) != 3 {
		t.Errorf("%+v (%v)", w.Targets, err)
	}
	if tree, err := s.Tree(t.Context(), x.ID); err != nil || len(tree.Members) != 3 {
		t.Errorf("%+v (%v)", tree.Members, err)
	}
	e := x.abandon(0)
	stopped(t, heart(f[0]), heart(f[1]), heart(f[2]))
	heart(f[3]).beating(t)
	heart(f[4]).beating(t)
	if err := syscall.Kill(kid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if !strings.Contains(e.Mechanism, "handles") || e.Counts.Ended < 3 {
		t.Errorf("%s %+v", e.Mechanism, e.Counts)
	}
}

// Adopted ones are found again by a later service, and so is the key of one.
func TestAdoptedOutliveTheService(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "moved", "its")
		moved, lost := outsider(t, nil, "setsid", f[0], f[1]), outsiderCmd(t, nil, nil, "sleep", "3600")
		heart(f[0]).beating(t)
		heart(f[1]).beating(t)
		p := x.adopt(moved.pid, api.AdoptRequest{Tree: true, IdempotencyKey: "one"})
		r := x.adopt(lost.pid, api.AdoptRequest{})
		s.kill()
		lost.kill()
		s.restart()
		for id, want := range map[string]api.ProcessState{p.ID: api.ProcessRunning, r.ID: api.ProcessLost} {
			if v, err := s.Process(t.Context(), x.ID, id); err != nil || v.Status.State != want || v.Adopted == nil {
				t.Errorf("%s: %+v (%v)", id, v, err)
			}
		}
		if v, err := x.tryAdopt(moved.pid, api.AdoptRequest{Tree: true, IdempotencyKey: "one"}); err != nil || v.ID != p.ID || !v.Repeated {
			t.Errorf("again, with its key: %+v (%v)", v, err)
		}
		x.abandon(0)
		stopped(t, heart(f[0]), heart(f[1]))
	})
}

// Whoever must not be adopted is not, says why, and is where it was; what came along
// is, too.
func TestAdoptRefuses(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	c := newCanary(t, s)
	x, y := s.begin(t, api.BeginRequest{}), s.begin(t, api.BeginRequest{})
	f := files(t, "one", "two", "held")
	held := y.launch(helper(t, "beat", f[2]))
	one := outsider(t, nil, "setsid", f[0], f[1])
	heart(f[1]).beating(t)
	kid := childOf(t, one.pid)
	id, handle := named(t, one.pid)
	defer handle.Close()
	other := id
	other.Ino++
	other.StartTicks++
	dead := outsiderCmd(t, nil, nil, "sleep", "3600")
	deadID, deadHandle := named(t, dead.pid)
	defer deadHandle.Close()
	dead.kill()
	corpse := childOf(t, outsiderCmd(t, nil, []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c", "true & exec sleep 3600").pid)
	eventually(t, "a zombie", func() bool { return stateOf(corpse) == 'Z' })
	thread := threadOf(t, s.proc.pid)
	adopt := func(id api.Identity, f *os.File) error {
		_, err := s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: id, Tree: true}, f)
		return err
	}
	numbered := func(pid int) error { return adopt(api.Identity{PID: pid, StartTicks: 1}, nil) }
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for what, k := range map[string]struct {
		err  error
		want api.AdoptRefusal
	}{
		"a number":               {adopt(api.Identity{PID: one.pid}, nil), api.AdoptAmbiguous},
		"another start tick":     {adopt(api.Identity{PID: one.pid, StartTicks: id.StartTicks + 1}, nil), api.AdoptForeign},
		"another inode":          {adopt(other, handle), api.AdoptForeign},
		"another number":         {adopt(api.Identity{PID: kid}, handle), api.AdoptForeign},
		"another boot":           {adopt(api.Identity{PID: one.pid, Boot: "x", StartTicks: id.StartTicks}, nil), api.AdoptForeign},
		"of another namespace":   {adopt(api.Identity{PID: one.pid, PIDNS: 7, StartTicks: id.StartTicks}, nil), api.AdoptAmbiguous},
		"no pidfd":               {adopt(api.Identity{}, null), api.AdoptAmbiguous},
		"nothing":                {adopt(api.Identity{}, nil), api.AdoptAmbiguous},
		"init":                   {numbered(1), api.AdoptAmbiguous},
		"nobody":                 {numbered(1 << 21), api.AdoptGone},
		"one that has ended":     {adopt(deadID, deadHandle), api.AdoptGone},
		"a zombie":               {adoptOf(t, x, corpse), api.AdoptGone},
		"a thread":               {numbered(thread), api.AdoptThread},
		"the service":            {adoptOf(t, x, s.proc.pid), api.AdoptPinfold},
		"above the service":      {adoptOf(t, x, os.Getpid()), api.AdoptPinfold},
		"another turn's":         {adoptOf(t, x, held.PID), api.AdoptHeld},
		"its keeper":             {adoptOf(t, x, keeperOf(t, y)), api.AdoptHeld},
		"its own keeper":         {adoptOf(t, x, keeperOf(t, x)), api.AdoptHeld},
		"a thread of the kernel": {numberedAs(t, x, 2), api.AdoptKernel},
	} {
		wantNotAdopted(t, what, k.err, k.want)
	}
	if err := os.WriteFile(y.leaf(held.ID)+"/cgroup.procs", []byte(strconv.Itoa(kid)), 0); err != nil {
		t.Fatal(err)
	}
	was := cgroupOf(t, one.pid)
	wantNotAdopted(t, "with a child in another turn", adopt(id, handle), api.AdoptHeld)
	if in := cgroupOf(t, one.pid); in != was {
		t.Errorf("it is in %s, not back in %s", in, was)
	}
	if v := x.look(); len(v.Processes) != 0 || v.Alive != 0 {
		t.Errorf("listed: %+v", v.Processes)
	}
	if left, _ := filepath.Glob(x.Cgroup + "/work/*/cgroup.procs"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	heart(f[0]).beating(t)
	x.abandon(0)
	_, err = s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: id}, handle)
	wantCode(t, err, api.CodeTurnOver)
	y.abandon(0)
	heart(f[0]).beating(t)
	c.lives()
}

// What is in a turn of another service stays there.
func TestAdoptFromAnotherService(t *testing.T) {
	needCgroups(t, grades(t)[0])
	x := serve(t, grades(t)[0], options{}).begin(t, api.BeginRequest{})
	y := serve(t, grades(t)[0], options{}).begin(t, api.BeginRequest{})
	held := y.launch(helper(t, "beat", files(t, "held")[0])).PID
	for what, pid := range map[string]int{"its process": held, "its keeper": keeperOf(t, y)} {
		was := cgroupOf(t, pid)
		wantNotAdopted(t, what, adoptOf(t, x, pid), api.AdoptHeld)
		if in := cgroupOf(t, pid); in != was {
			t.Errorf("%s is in %s, not in %s", what, in, was)
		}
	}
	x.abandon(0)
	y.abandon(0)
}

func adoptOf(t *testing.T, x *turn, pid int) error {
	t.Helper()
	_, err := x.tryAdopt(pid, api.AdoptRequest{Tree: true})
	return err
}

// numberedAs adopts by the number and the start tick that /proc shows.
func numberedAs(t *testing.T, x *turn, pid int) error {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return api.AdoptKernel.Refuse(pid, "there is none here: %v", err) // a PID namespace
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	ticks, err := strconv.ParseUint(fields[22-3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if ticks == 0 {
		_, err = x.tryAdopt(pid, api.AdoptRequest{}) // as old as the boot
		return err
	}
	_, err = x.s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: api.Identity{PID: pid, StartTicks: ticks}}, nil)
	return err
}

func keeperOf(t *testing.T, x *turn) int {
	t.Helper()
	b, err := os.ReadFile(x.Cgroup + "/keeper/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// threadOf is a thread of a process, not its first.
func threadOf(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != pid {
			return n
		}
	}
	t.Fatalf("process %d has one thread", pid)
	return 0
}

// pinfold runs the program as a user, and returns all that it says.
func (s *service) pinfold(cred *syscall.Credential, words ...string) (string, int) {
	cmd := exec.Command(run.bin+"/pinfold", append([]string{"--socket", s.dir + "/sock"}, words...)...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = []string{}, "/", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: cred}
	out, _ := run.kids.output(cmd)
	return strings.TrimSpace(out), cmd.ProcessState.ExitCode()
}

// beginAs begins a turn as a user.
func (s *service) beginAs(t *testing.T, cred *syscall.Credential) string {
	t.Helper()
	said, code := s.pinfold(cred, "begin")
	if code != 0 {
		t.Fatalf("begin: %s", said)
	}
	return said[strings.LastIndexByte(said, '\n')+1:] // after what is noted
}

// Of users: who adopts takes what is all its own; what is set-user-ID is not.
func TestAdoptByUsers(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	id := s.beginAs(t, someUser())
	f := files(t, "own", "suid", "program", "roots")
	program, err := os.ReadFile(run.exe)
	if err == nil {
		err = os.WriteFile(f[2], program, 0o755)
	}
	if err == nil {
		err = os.Chmod(f[2], 0o755|os.ModeSetuid)
	}
	if err != nil {
		t.Fatal(err)
	}
	own, suid, roots := outsider(t, someUser(), "beat", f[0]), outsider(t, someUser(), "suid", f[1], f[2]), outsider(t, nil, "beat", f[3])
	for _, h := range []string{f[0], f[1], f[3]} {
		heart(h).beating(t)
	}
	for what, k := range map[string]struct {
		cred *syscall.Credential
		pid  int
		more []string
		want string
	}{
		"root's":                {someUser(), roots.pid, nil, "user ids"},
		"root's, by root":       {nil, roots.pid, nil, "user ids"},
		"one that is set-uid":   {someUser(), childOf(t, suid.pid), nil, "user ids"},
		"with one that is":      {someUser(), suid.pid, []string{"--tree"}, "user ids"},
		"one that is not there": {someUser(), 1 << 21, nil, "no process"},
	} {
		words := append([]string{"adopt", id, strconv.Itoa(k.pid)}, k.more...)
		if out, code := s.pinfold(k.cred, words...); code != 4 || !strings.Contains(out, k.want) {
			t.Errorf("%s: %d %s", what, code, out)
		}
	}
	if out, code := s.pinfold(someUser(), "adopt", id, strconv.Itoa(own.pid)); code != 0 || !strings.HasPrefix(out, "p") {
		t.Errorf("its own: %d %s", code, out)
	}
	out, code := s.pinfold(someUser(), "abandon", "--json", id)
	var r api.Receipt
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Processes) != 1 || !r.Complete {
		t.Errorf("%d %s (%v)", code, out, err)
	}
	stopped(t, heart(f[0]))
	heart(f[1]).beating(t)
	suid.kill()
	for _, pid := range pidsOf(t, f[2]) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// An ancestor of the command that adopts it is refused, unless that is said.
func TestAdoptTheCallersShell(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	id := s.beginAs(t, someUser())
	for more, want := range map[string]string{"": "is the caller, or an ancestor", "--ancestor": "p"} {
		f := files(t, "said")
		c := outsiderCmd(t, someUser(), []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c",
			fmt.Sprintf("%s/pinfold --socket %s/sock adopt %s $$ %s >%s 2>&1; echo over >>%s; exec sleep 3600", run.bin, s.dir, id, more, f[0], f[0]))
		var out string
		eventually(t, "its answer", func() bool { b, _ := os.ReadFile(f[0]); out = string(b); return strings.HasSuffix(out, "over\n") })
		if !strings.Contains(out, want) || more != "" && !strings.HasPrefix(out, "p") {
			t.Errorf("%q: %s", more, out)
		}
		if in := strings.Contains(cgroupOf(t, c.pid), "/work/"); in != (more != "") {
			t.Errorf("%q: it is in %s", more, cgroupOf(t, c.pid))
		}
		defer func() {
			if more != "" {
				<-c.gone // with the turn
			}
		}()
	}
	if out, code := s.pinfold(someUser(), "abandon", id); code != 0 {
		t.Errorf("%d %s", code, out)
	}
}

// pidsOf are our descendants that execute a file.
func pidsOf(t *testing.T, exe string) (out []int) {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, f := range all {
		if to, err := os.Readlink(f); err == nil && to == exe {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// Two turns that want the same process: one gets it.
func TestAdoptAtOnce(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	x, y := s.begin(t, api.BeginRequest{}), s.begin(t, api.BeginRequest{})
	for range 10 {
		c := outsiderCmd(t, nil, nil, "sleep", "3600")
		id, f := named(t, c.pid)
		errs := make(chan error, 2)
		for _, turn := range []string{x.ID, y.ID} {
			go func() {
				_, err := s.Adopt(t.Context(), turn, api.AdoptRequest{Process: id}, f)
				errs <- err
			}()
		}
		a, b := <-errs, <-errs
		f.Close()
		if (a == nil) == (b == nil) {
			t.Fatalf("%v, %v", a, b)
		}
		if a == nil {
			a = b
		}
		wantNotAdopted(t, "the later", a, api.AdoptHeld)
	}
	x.abandon(0)
	y.abandon(0)
}

// Requests of all kinds, of processes that come and go: nothing is adopted but what
// was named in full, and nobody else is touched.
func TestAdoptHostile(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	c := newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	rounds := 300
	if os.Getenv("PINFOLD_TEST_LONG") != "" {
		rounds = 20_000
	}
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	pick := func(n ...uint64) uint64 { return n[r.IntN(len(n))] }
	for range rounds { // never a tick or an inode that a neighbour could have: it would be named by them
		p := outsiderQuick(t)
		id, f := named(t, p.pid)
		said := api.Identity{
			PID:        int(int64(pick(0, 1, uint64(p.pid), uint64(p.pid), uint64(p.pid+1), ^uint64(0), 1<<40))),
			StartTicks: pick(0, 0, id.StartTicks+1<<40, 1), Ino: pick(0, 0, id.Ino+1<<40, 1), PIDNS: pick(0, id.PIDNS, 1),
		}
		if r.IntN(2) == 0 {
			said.Boot = "other"
		}
		file := f
		if said.Boot == "" && said.StartTicks == 0 && said.Ino == 0 || r.IntN(2) == 0 {
			file = nil // so that nothing that is said is all true
		}
		got, err := s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: said, Tree: r.IntN(2) == 0, Ancestor: r.IntN(2) == 0,
			MinGrade: api.Grade([]string{"", "token", "cgroup"}[r.IntN(3)])}, file)
		f.Close()
		p.kill()
		if err == nil {
			t.Fatalf("%+v is adopted as %+v", said, got)
		}
		if e := wantCode(t, err, api.CodeAdoptRefused); e.Details["reason"] == "" {
			t.Fatalf("%+v: %v", said, err)
		}
	}
	if v := x.look(); len(v.Processes) != 0 {
		t.Errorf("%+v", v.Processes)
	}
	c.lives()
	x.abandon(0)
}

func outsiderQuick(t *testing.T) *child {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
