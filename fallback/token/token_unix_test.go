//go:build darwin || freebsd

package token

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

func start(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func hold(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Hold(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func lives(t *testing.T, p *Process) {
	t.Helper()
	if v, why := p.Verify(); v != api.VerdictOwned {
		t.Errorf("the canary: %s, %q", v, why)
	}
}

// TestVerdicts takes a child through its life, beside one that must live.
func TestVerdicts(t *testing.T) {
	canary := hold(t, start(t).Process.Pid)
	cmd := start(t)
	p := hold(t, cmd.Process.Pid)
	rec := p.Identity()
	if rec.StartUS == 0 || rec.Boot == "" {
		t.Fatalf("recorded %+v", rec)
	}
	check := func(what string, rec api.Identity, want api.Verdict) {
		t.Helper()
		p, v, why := Recall(rec)
		if v != want || (p != nil) != (want == api.VerdictOwned) {
			t.Errorf("%s: %s, want %s; %q", what, v, want, why)
		}
	}
	with := func(change func(*api.Identity)) api.Identity {
		id := rec
		change(&id)
		return id
	}
	check("a child that runs", rec, api.VerdictOwned)
	check("a start 1 µs off", with(func(id *api.Identity) { id.StartUS++ }), api.VerdictForeign)
	check("another boot", with(func(id *api.Identity) { id.Boot = "another" }), api.VerdictForeign)
	check("no start", with(func(id *api.Identity) { id.StartUS = 0 }), api.VerdictUnverifiable)
	check("a record of Windows", with(func(id *api.Identity) { id.Created = 1 }), api.VerdictUnverifiable)

	stranger := &Process{p.t, with(func(id *api.Identity) { id.StartUS++ })}
	if v, why, err := stranger.Signal(syscall.SIGKILL); v != api.VerdictForeign || err != nil {
		t.Errorf("signal a stranger: %s, %q, %v", v, why, err)
	}
	lives(t, p)
	if v, why, err := p.Signal(syscall.SIGKILL); v != api.VerdictOwned || err != nil {
		t.Fatalf("signal: %s, %q, %v", v, why, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		v, why := p.Verify()
		if v == api.VerdictGone && strings.Contains(strings.Join(why, "; "), "has exited") {
			break // a zombie
		}
		if time.Now().After(deadline) {
			t.Fatalf("a zombie: %s, %q", v, why)
		}
	}
	_ = cmd.Wait()
	if sys.TableWhole() {
		check("reaped", rec, api.VerdictGone)
	} else {
		check("reaped, but others are hidden", rec, api.VerdictUnverifiable)
	}
	lives(t, canary)
}

// TestPSAgrees: ps tells the second of what the kernel's table tells.
func TestPSAgrees(t *testing.T) {
	pid := start(t).Process.Pid
	time.Sleep(1100 * time.Millisecond)
	ps, err := readPS(pid)
	if err != nil {
		t.Fatal(err)
	}
	e, err := sys.ReadEntry(pid)
	if err != nil {
		t.Fatal(err)
	}
	if e.PID != ps.PID || e.PPID != ps.PPID || e.Group != ps.Group || e.PPID != os.Getpid() {
		t.Errorf("table %+v, ps %+v", e, ps)
	}
	if since := time.Since(time.UnixMicro(int64(ps.StartUS))); since < time.Second || since > time.Minute {
		t.Errorf("ps: started %v ago", since)
	}
}

func TestRefused(t *testing.T) {
	for name, pid := range map[string]int{
		"ourselves": os.Getpid(), "our parent": os.Getppid(), "init": 1, "our group": 0, "everybody": -1,
	} {
		if _, err := Hold(pid); !errors.Is(err, pidfd.ErrRefused) {
			t.Errorf("hold %s: %v", name, err)
		}
		if p, v, why := Recall(api.Identity{PID: pid, Boot: boot(), StartUS: 1}); p != nil || v != api.VerdictUnverifiable {
			t.Errorf("recall %s: %s, %q", name, v, why)
		}
	}
}
