//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// controlled makes a test's cgroup with all the controllers that our own offers,
// stepping aside into a leaf, for it must hold no processes then. It has none on
// hybrid hosts, in the root, and where others are in our cgroup.
func controlled(t *testing.T) *Dir {
	systest.Root(t)
	path, err := testBase()
	if err != nil {
		t.Fatal(err)
	}
	base, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	have, err := base.Controllers()
	if _, e := base.Populated(); err != nil || len(have) == 0 || errors.Is(e, errRoot) {
		return testDir(t) // what the host does in its root is its own affair
	}
	self := testDir(t)
	if err := self.Add(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	done, err := base.Delegate(have)
	t.Logf("enabled %v: %v", done, err)
	t.Cleanup(func() {
		for _, c := range done {
			if err := base.write("cgroup.subtree_control", "-"+c); err != nil {
				t.Error(err)
			}
		}
		if err := base.Add(os.Getpid()); err != nil {
			t.Error(err)
		}
	})
	d, err := base.Make(fmt.Sprintf("%s%d.%d", testPrefix, os.Getpid(), testNumber.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { discard(t, d) })
	return d
}

// TestLimit sets what the host has controllers for, and is refused the rest.
func TestLimit(t *testing.T) {
	d := controlled(t)
	have, err := d.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("controllers: %v", have)
	swap := int64(0)
	for _, test := range []struct {
		controller, file, want string
		limits                 api.Limits
	}{
		{"memory", "memory.max", "67108864", api.Limits{MemoryBytes: 64 << 20}},
		{"memory", "memory.swap.max", "0", api.Limits{SwapBytes: &swap}},
		{"pids", "pids.max", "77", api.Limits{PIDs: 77}},
		{"cpu", "cpu.max", "150000 100000", api.Limits{CPUPercent: 150}},
	} {
		t.Run(test.file, func(t *testing.T) {
			err := d.Limit(test.limits)
			if !slices.Contains(have, test.controller) {
				var c *ControllerError
				if !errors.As(err, &c) || c.Controller != test.controller || !errors.Is(err, ErrNoController) {
					t.Errorf("no controller: %v", err)
				}
				return
			}
			if _, e := os.Stat(d.Path() + "/" + test.file); e != nil {
				if !errors.Is(err, ErrNoController) {
					t.Errorf("no %s: %v", test.file, err)
				}
				return
			}
			got, e := os.ReadFile(d.Path() + "/" + test.file)
			if err != nil || e != nil || strings.TrimSpace(string(got)) != test.want {
				t.Errorf("%q, %v, %v", got, err, e)
			}
		})
	}
	if err := d.Limit(api.Limits{}); err != nil {
		t.Errorf("no limit: %v", err)
	}
	if err := d.Limit(api.Limits{PIDs: -1}); err == nil {
		t.Error("a negative limit was taken")
	}
}

func TestDelegate(t *testing.T) {
	d := controlled(t)
	have, err := d.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	done, err := d.Delegate(append([]string{"no-such-controller"}, have...))
	if !slices.Equal(done, have) {
		t.Errorf("enabled %v of %v", done, have)
	}
	var c *ControllerError
	if !errors.As(err, &c) || c.Controller != "no-such-controller" {
		t.Error(err)
	}
	in, err := child(t, d, "leaf").Controllers()
	if err != nil || !slices.Equal(in, have) {
		t.Errorf("the child has %v, %v", in, err)
	}
}

func TestUsage(t *testing.T) {
	d := controlled(t)
	p := systest.Start(t, into(d, suite.Command(t, "zombie-parent")))
	p.Line(t)
	u := d.Usage()
	has := func(file string) bool { _, err := os.Stat(d.Path() + "/" + file); return err == nil }
	for _, c := range []struct {
		file  string
		value int64
	}{
		{"cpu.stat", u.CPUUsec}, {"cpu.stat", u.UserUsec}, {"cpu.stat", u.SystemUsec},
		{"memory.peak", u.MemoryPeak}, {"pids.peak", u.PIDsPeak}, {"memory.events", u.OOMKills},
		{"io.stat", u.IOReadBytes}, {"io.stat", u.IOWriteBytes},
	} {
		if has(c.file) != (c.value >= 0) {
			t.Errorf("%s is there: %v, usage says %d", c.file, has(c.file), c.value)
		}
	}
	if has("cpu.stat") && u.CPUUsec == 0 {
		t.Errorf("a process started and used no CPU: %+v", u)
	}
	gone := child(t, d, "gone")
	if err := gone.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u := gone.Usage(); u != api.NoUsage() {
		t.Errorf("of a removed cgroup: %+v", u)
	}
}

func BenchmarkUsage(b *testing.B) {
	d := testDir(b)
	for b.Loop() {
		_ = d.Usage()
	}
}
