package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// underSystemd are the measurements at grade scope.
func underSystemd() []measurement {
	ms := []measurement{
		{"scope-begin", 40, (*bench).beginScope},
		{"scope-run", 40, (*bench).runScope},
		{"scope-launch", 200, (*bench).launchOne},
	}
	for _, s := range []struct{ n, rounds int }{{1, 20}, {100, 12}, {1000, 5}} {
		ms = append(ms, measurement{fmt.Sprintf("scope-stop-%d", s.n), s.rounds, func(b *bench, rounds int) error {
			return b.stopScope(s.n, rounds)
		}})
	}
	return ms
}

// haveSystemd tells whether the machine's init is systemd: sd_booted(3).
func haveSystemd() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// inBedOf boots a systemd and has this program measure in there.
func (o *options) inBedOf(p *place) ([]row, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	script, err := bedScript()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(script, "--prop", "Delegate=yes", "--chdir", p.dir, "--", exe, "-part", "systemd", "-json", "-bin", p.bin,
		"-only", o.only, "-rounds", strconv.FormatFloat(o.rounds, 'g', -1, 64), "-v="+strconv.FormatBool(o.verbose))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	err = cmd.Run()
	var rows []row
	for d := json.NewDecoder(&out); ; {
		var r row
		if derr := d.Decode(&r); derr == io.EOF {
			break
		} else if derr != nil {
			return rows, errors.Join(err, fmt.Errorf("read what the bed measured: %w", derr))
		}
		rows = append(rows, r)
	}
	if err != nil {
		return rows, fmt.Errorf("measure in the systemd bed: %w", err)
	}
	return rows, nil
}

// bedScript finds the bed from the directory we were started in upwards.
func bedScript() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "integration", "beds", "boot-systemd-ns.sh")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.Join(err, errors.New("find integration/beds: run this in the source tree, or with -part machine"))
}

func printJSON(w io.Writer, rows []row) {
	for _, r := range rows {
		b, err := json.Marshal(r)
		if err != nil {
			continue // a row is strings
		}
		fmt.Fprintf(w, "%s\n", b)
	}
}

const scopeGroup = "grade scope, real systemd"

// regimes are how long nothing is done before each begin. To move a process to
// a cgroup, as the service manager does for a scope, the kernel waits for all
// processors (some 8 ms) unless it has moved another just before.
func regimes() []struct {
	name  string
	pause time.Duration
} {
	return []struct {
		name  string
		pause time.Duration
	}{{", one after the other", 0}, {", after 50 ms of nothing", 50 * time.Millisecond}}
}

// beginScope compares a turn's begin and first launch with systemd-run.
func (b *bench) beginScope(rounds int) error {
	exit, err := b.programs.exit()
	if err != nil {
		return err
	}
	for _, r := range regimes() {
		got, err := compare(rounds,
			contestant{"pinfold", func() (time.Duration, error) {
				time.Sleep(r.pause)
				var turn string
				d, err := since(func() (err error) {
					if turn, err = b.service.begin(); err != nil {
						return err
					}
					return b.service.runOne(turn, exit)
				})
				if err != nil {
					return 0, err
				}
				_, err = b.service.abandon(turn)
				return d, err
			}},
			contestant{"systemd-run", func() (time.Duration, error) { return systemdRun(r.pause, exit) }},
		)
		if err != nil {
			return err
		}
		b.add(against(scopeGroup, "begin, launch, exit seen"+r.name, got[0], got[1], "systemd-run --scope of the same", budget{times: 0.5}))
	}
	return nil
}

func systemdRun(pause time.Duration, program string) (time.Duration, error) {
	time.Sleep(pause)
	return since(exec.Command("systemd-run", "--quiet", "--scope", "--", program).Run)
}

// runScope compares the command line's wrapper with systemd-run, and with
// nothing in between.
func (b *bench) runScope(rounds int) error {
	pinfold := func(pause time.Duration, words ...string) (time.Duration, error) {
		time.Sleep(pause)
		words = append([]string{"--socket", b.service.socket, "run"}, words...)
		return since(exec.Command(filepath.Join(b.place.bin, "pinfold"), words...).Run)
	}
	for _, r := range regimes() {
		got, err := compare(rounds,
			contestant{"pinfold run", func() (time.Duration, error) { return pinfold(r.pause, "--", "true") }},
			contestant{"pinfold run --in-place", func() (time.Duration, error) { return pinfold(r.pause, "--in-place", "--", "true") }},
			contestant{"systemd-run", func() (time.Duration, error) { return systemdRun(r.pause, "true") }},
			contestant{"true", func() (time.Duration, error) {
				time.Sleep(r.pause)
				return since(exec.Command("true").Run)
			}},
		)
		if err != nil {
			return err
		}
		for i, what := range []string{"pinfold run -- true", "pinfold run --in-place -- true"} {
			b.add(against(scopeGroup, what+r.name, got[i], got[2], "systemd-run --scope true", budget{times: 0.6}),
				against(scopeGroup, what+r.name, got[i], got[3], "plain true", budget{}))
		}
	}
	return nil
}

// stopScope compares the ending of n processes with systemctl stop, and with
// a bare cgroup.kill.
func (b *bench) stopScope(n, rounds int) error {
	herd, err := b.programs.herd(n)
	if err != nil {
		return err
	}
	got, err := compare(rounds,
		contestant{"pinfold", func() (time.Duration, error) { return b.endTurn(n, herd) }},
		contestant{"systemctl stop", func() (time.Duration, error) { return b.endUnit(n, herd) }},
		contestant{"cgroup.kill", func() (time.Duration, error) {
			return b.endBare(n, func(cgroup string, _ int) (time.Duration, error) { return bareKill(cgroup) }, herd)
		}},
	)
	if err != nil {
		return err
	}
	what := "abandon " + count(n)
	b.add(against(scopeGroup, what, got[0], got[2], "bare cgroup.kill, then re-reading", killBudget()),
		against(scopeGroup, what, got[0], got[1], "systemctl stop", budget{times: 1}))
	return nil
}

// endUnit makes a scope of n processes and stops it.
func (b *bench) endUnit(n int, program string) (time.Duration, error) {
	b.groups++
	unit := fmt.Sprintf("bench-%d-%d.scope", os.Getpid(), b.groups)
	cmd := exec.Command("systemd-run", "--quiet", "--scope", "--unit="+unit, "--property=TasksMax=infinity", "--", program)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	dir := filepath.Join(filepath.Dir(b.place.cgroup), "system.slice", unit)
	err := eventually(fmt.Sprintf("%d members in %s", n, unit), func() bool { return members(dir) >= n })
	if err != nil {
		return 0, err
	}
	time.Sleep(quiet)
	d, err := since(exec.Command("systemctl", "stop", unit).Run)
	_ = cmd.Wait() // it was killed
	return d, err
}
