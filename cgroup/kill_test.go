//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// bound is far more than any kill takes here.
const bound = 2 * time.Minute

// scenario puts processes into a cgroup and returns those that have to go.
type scenario func(t *testing.T, d *Dir) []int

func scenarios() map[string]scenario {
	return map[string]scenario{
		"sleepers":            sleepers,
		"leaderless":          bornLeaderless,
		"leaderless moved in": movedLeaderless,
		"daemon":              daemons,
		"nested 10 deep":      nested,
		"frozen":              frozen,
		"stopped":             stopped,
		"threaded":            threaded,
		"mixed":               mixed,
	}
}

func sleepers(t *testing.T, d *Dir) (pids []int) {
	for range 20 {
		pids = append(pids, born(t, d).PID())
	}
	return pids
}

// zombieLeader starts a process that has only threads left.
func zombieLeader(t *testing.T, cmd *exec.Cmd) *systest.Proc {
	t.Helper()
	p := systest.Start(t, cmd)
	p.Line(t)
	systest.Until(t, "the main thread is a zombie", func() bool {
		s, ok := readStat(p.PID(), "stat")
		return ok && s.State == 'Z'
	})
	return p
}

func bornLeaderless(t *testing.T, d *Dir) []int {
	return []int{zombieLeader(t, into(d, suite.Command(t, "leaderless"))).PID()}
}

// movedLeaderless makes a process that cgroup.procs does not list.
func movedLeaderless(t *testing.T, d *Dir) []int {
	p := zombieLeader(t, suite.Command(t, "leaderless"))
	if err := d.Add(p.PID()); err != nil {
		t.Fatal(err)
	}
	if populated, err := d.Populated(); !populated || err != nil {
		t.Fatalf("populated %v, %v", populated, err)
	}
	return []int{p.PID()}
}

func daemons(t *testing.T, d *Dir) []int {
	p := systest.Start(t, into(d, suite.Command(t, "daemonise")))
	pid, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Reap(); !st.Success() {
		t.Fatal(st)
	}
	if s, ok := readStat(pid, "stat"); !ok || s.Session != pid || s.PPID == p.PID() {
		t.Fatalf("not a daemon: %+v", s)
	}
	return []int{pid}
}

func nested(t *testing.T, d *Dir) (pids []int) {
	for i := range 10 {
		d = child(t, d, "deep"+strconv.Itoa(i))
		pids = append(pids, born(t, d).PID())
	}
	return pids
}

func frozen(t *testing.T, d *Dir) []int {
	pids := []int{born(t, d).PID(), born(t, child(t, d, "sub")).PID()}
	if err := d.Freeze(true); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "frozen", func() bool { f, err := d.Frozen(); return f && err == nil })
	return pids
}

func stopped(t *testing.T, d *Dir) []int {
	p := born(t, d)
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "stopped", func() bool { s, ok := readStat(p.PID(), "stat"); return ok && s.State == 'T' })
	return []int{p.PID()}
}

// threaded makes a threaded cgroup below, which refuses both cgroup.kill and to
// list processes, and moves a thread there.
func threaded(t *testing.T, d *Dir) []int {
	c := child(t, d, "threaded")
	if err := c.write("cgroup.type", "threaded"); err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, into(d, suite.Command(t, "thread-mover", c.Path())))
	if got := p.Line(t); got != "moved" {
		t.Fatal(got)
	}
	return []int{p.PID()}
}

func mixed(t *testing.T, d *Dir) (pids []int) {
	pids = sleepers(t, d)
	pids = append(pids, bornLeaderless(t, child(t, d, "a"))...)
	pids = append(pids, movedLeaderless(t, child(t, d, "b"))...)
	pids = append(pids, nested(t, child(t, d, "c"))...)
	pids = append(pids, frozen(t, child(t, d, "d"))...)
	pids = append(pids, stopped(t, child(t, d, "e"))...)
	return append(pids, daemons(t, child(t, d, "f"))...)
}

func TestKill(t *testing.T) {
	for name, run := range scenarios() {
		t.Run(name, func(t *testing.T) {
			newCanary(t)
			d := testDir(t)
			victims := run(t, d)
			k := killAndSee(t, d, victims)
			// Others may need their members signalled too when the machine is slow.
			if (strings.Contains(name, "leaderless") || name == "mixed") && k.Mechanism == byKill {
				t.Errorf("mechanism %s: if the kernel was mended, kill.go is to say so", k.Mechanism)
			}
			if k.Seen < len(victims) && !strings.Contains(name, "moved") && name != "mixed" {
				t.Errorf("saw %d of %d", k.Seen, len(victims))
			}
		})
	}
}

// killAndSee kills the cgroup and makes sure, by handles that were opened
// before, that each of the victims has gone.
func killAndSee(t *testing.T, d *Dir, victims []int) Killed {
	t.Helper()
	var held []*pidfd.Handle
	for _, pid := range victims {
		held = append(held, handle(t, pid))
	}
	k, err := d.Kill(t.Context(), bound)
	if err != nil {
		t.Fatal(err)
	}
	if k.EmptyAt.IsZero() || k.EmptyAt.Before(k.KilledAt) || len(k.Survivors) > 0 {
		t.Fatalf("not seen empty: %+v", k)
	}
	if populated, err := d.Populated(); populated || err != nil {
		t.Errorf("populated %v, %v", populated, err)
	}
	for i, h := range held {
		// populated 0 may come a moment before the handle is readable.
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		if err := h.Wait(ctx); err != nil {
			t.Errorf("victim %d: %v", victims[i], err)
		}
		cancel()
	}
	t.Logf("%s, %d rounds, %d seen, %v %q", k.Mechanism, k.Rounds, k.Seen, k.EmptyAt.Sub(k.KilledAt).Round(10*time.Microsecond), k.Notes)
	return k
}

func TestKillStorm(t *testing.T) {
	newCanary(t)
	for range 3 {
		d := testDir(t)
		cmd := into(d, suite.Command(t, "storm"))
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		p := systest.Start(t, cmd)
		p.Line(t)
		time.Sleep(20 * time.Millisecond)
		killAndSee(t, d, []int{p.PID()})
	}
}

// TestKillZombies: those that have ended already are neither seen nor waited
// for, though nobody reaps them.
func TestKillZombies(t *testing.T) {
	newCanary(t)
	d, other := testDir(t), testDir(t)
	p := systest.Start(t, into(d, suite.Command(t, "zombie-parent")))
	zombie, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "a zombie", func() bool { s, ok := readStat(zombie, "stat"); return ok && s.State == 'Z' })
	if err := other.Add(p.PID()); err != nil {
		t.Fatal(err)
	}
	if populated, err := d.Populated(); populated || err != nil {
		t.Errorf("populated %v, %v", populated, err)
	}
	if k := killAndSee(t, d, nil); k.Seen != 0 || k.Rounds != 1 {
		t.Errorf("%+v", k)
	}
	if s, ok := readStat(zombie, "stat"); !ok || s.State != 'Z' {
		t.Errorf("somebody took the zombie's status: %+v", s)
	}
	if err := handle(t, p.PID()).Signal(0); err != nil {
		t.Errorf("the parent, which had left: %v", err)
	}
}

// TestKillRemoved: a cgroup that was removed is empty, and the one that was made
// in its place is another.
func TestKillRemoved(t *testing.T) {
	parent := testDir(t)
	old, err := parent.Make("turn")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.Mark("first"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(old.Path()); err != nil {
		t.Fatal(err)
	}
	stranger := child(t, parent, "turn")
	p := born(t, stranger)
	k, err := old.Kill(t.Context(), bound)
	if err != nil || k.EmptyAt.IsZero() || k.Seen != 0 {
		t.Errorf("%+v, %v", k, err)
	}
	if n, err := old.Signal(func(string) syscall.Signal { return syscall.SIGKILL }); n != 0 || err != nil {
		t.Errorf("signalled %d, %v", n, err)
	}
	if err := old.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := old.Freeze(true); err == nil {
		t.Error("froze a removed cgroup")
	}
	if err := handle(t, p.PID()).Signal(0); err != nil {
		t.Errorf("the stranger: %v", err)
	}
	if populated, err := stranger.Populated(); !populated || err != nil {
		t.Errorf("the stranger's cgroup: populated %v, %v", populated, err)
	}
}

// TestKillRefusesOwn moves a process into a cgroup and has it kill that, its
// parent and the root.
func TestKillRefusesOwn(t *testing.T) {
	d := testDir(t)
	leaf := child(t, d, "leaf")
	p := systest.Start(t, into(leaf, suite.Command(t, "own", leaf.Path())))
	out := p.Rest(t)
	if st := p.Reap(); !st.Success() {
		t.Fatalf("%v: %s", st, out)
	}
	if strings.Count(out, "refused") < 6 {
		t.Errorf("%s", out)
	}
}

// killOwn tries each way to hit ourselves, from our own cgroup upwards.
func killOwn(args []string) error {
	m, err := FindMount()
	if err != nil {
		return err
	}
	for path := args[0]; ; path = filepath.Dir(path) {
		d, err := Open(path)
		if err != nil {
			return err
		}
		_, killed := d.Kill(context.Background(), time.Second)
		_, signalled := d.Signal(func(string) syscall.Signal { return syscall.SIGKILL })
		froze := d.Freeze(true)
		d.Close()
		for what, err := range map[string]error{"kill": killed, "signal": signalled, "freeze": froze} {
			if !errors.Is(err, pidfd.ErrRefused) {
				return fmt.Errorf("%s %s: %v", what, path, err)
			}
			fmt.Println(what, path, err)
		}
		if path == m.Path {
			return nil
		}
	}
}

// TestKillWhoHasNoNumber: whoever is of another PID namespace reads 0 here, which
// is nobody to signal; they end with the cgroup, and are told of.
func TestKillWhoHasNoNumber(t *testing.T) {
	newCanary(t)
	d := testDir(t)
	p := systest.Start(t, into(d, exec.Command("sleep", "600")))
	cmd := suite.Command(t, "kill", d.Path())
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	out := runHelperKill(t, cmd, []int{p.PID()})
	var how string
	var rounds, seen int
	_, err := fmt.Sscan(out, &how, &rounds, &seen)
	// On a busy machine it may take more rounds, and the members be looked for.
	if err != nil || !strings.HasPrefix(how, byKill) || seen != 1 || !strings.Contains(out, "1 of those that were to be killed are of a PID namespace") {
		t.Errorf("%s", out)
	}
}

// TestKillOldKernel runs the scenarios in a process that sees no PIDFD_GET_INFO,
// no PIDFD_THREAD and no signal flags, so that /proc has to serve.
func TestKillOldKernel(t *testing.T) {
	for name, run := range scenarios() {
		t.Run(name, func(t *testing.T) {
			newCanary(t)
			d := testDir(t)
			runHelperKill(t, suite.Command(t, "old", d.Path()), run(t, d))
		})
	}
}

func oldKernel(args []string) error {
	if err := systest.LikeOld(true); err != nil {
		return err
	}
	return helperKill(args[0])
}

// TestKillWithoutKillFile runs them where cgroup.kill cannot be written, as is
// so before Linux 5.14: it is mounted over, read-only.
func TestKillWithoutKillFile(t *testing.T) {
	for name, run := range scenarios() {
		t.Run(name, func(t *testing.T) {
			newCanary(t)
			d := testDir(t)
			victims := run(t, d)
			cmd := suite.Command(t, "no-kill", d.Path())
			cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
			out := runHelperKill(t, cmd, victims)
			if !strings.HasPrefix(out, byFreeze+" ") || !strings.Contains(out, "cgroup.kill cannot be used") {
				t.Errorf("%s", out)
			}
		})
	}
}

func noKillFile(args []string) error {
	file := args[0] + "/cgroup.kill"
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return helperKill(args[0]) // this kernel is one of those
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	if err := syscall.Mount(file, file, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	if err := syscall.Mount("", file, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return err
	}
	return helperKill(args[0])
}

func helperKill(path string) error {
	d, err := Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	k, err := d.Kill(context.Background(), bound)
	if err != nil {
		return err
	}
	if k.EmptyAt.IsZero() {
		return fmt.Errorf("not seen empty: %+v", k)
	}
	if f, err := os.ReadFile(path + "/cgroup.freeze"); err != nil || (k.Mechanism == byFreeze && string(f) != "0\n") {
		return fmt.Errorf("cgroup.freeze %q, %v", f, err)
	}
	fmt.Println(k.Mechanism, k.Rounds, k.Seen, k.EmptyAt.Sub(k.KilledAt), k.Notes)
	return nil
}

func runHelperKill(t *testing.T, cmd *exec.Cmd, victims []int) string {
	t.Helper()
	var held []*pidfd.Handle
	for _, pid := range victims {
		held = append(held, handle(t, pid))
	}
	p := systest.Start(t, cmd)
	out := p.Rest(t)
	if st := p.Reap(); !st.Success() {
		t.Fatalf("%v: %s", st, out)
	}
	for i, h := range held {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		if err := h.Wait(ctx); err != nil {
			t.Errorf("victim %d: %v", victims[i], err)
		}
		cancel()
	}
	t.Log(strings.TrimSpace(out))
	return out
}

// TestKillDeep: more levels than there are descriptors for cannot be listed, and
// are killed all the same.
func TestKillDeep(t *testing.T) {
	newCanary(t)
	d := testDir(t)
	deepest := d
	for range 60 {
		deepest = child(t, deepest, "d")
	}
	p := born(t, deepest)
	if _, err := os.Stat(d.Path() + "/cgroup.kill"); err != nil {
		systest.Feature(t, "cgroup.kill", "5.14", err)
	}
	out := runHelperKill(t, suite.Command(t, "few-descriptors", d.Path()), []int{p.PID()})
	if !strings.Contains(out, "too many open files") {
		t.Errorf("it had enough: %s", out)
	}
}

func fewDescriptors(args []string) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	return helperKill(args[0])
}
