//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// TestMoveAll moves what the scenarios of kill have, and kills it where it is then.
func TestMoveAll(t *testing.T) {
	for name, run := range scenarios() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, old %v", name, old), func(t *testing.T) {
				newCanary(t)
				d, to := testDir(t), testDir(t)
				var hs []*pidfd.Handle
				victims := run(t, d)
				for _, pid := range victims {
					hs = append(hs, handle(t, pid))
				}
				n := moveAll(t, d, to, old)
				if full, err := d.Populated(); full || err != nil || n < len(victims) {
					t.Errorf("%d of %d were moved, the rest is populated %v, %v", n, len(victims), full, err)
				}
				for _, h := range hs {
					if over, err := h.Exited(); over || err != nil {
						t.Errorf("%d has ended", h.PID())
					}
				}
				if k, err := to.Kill(t.Context(), bound); err != nil || k.EmptyAt.IsZero() {
					t.Errorf("%+v, %v", k, err)
				}
				for _, h := range hs {
					systest.Until(t, "its end", func() bool { over, err := h.Exited(); return over && err == nil })
				}
			})
		}
	}
}

// moveAll moves, and with old as on a kernel of years ago.
func moveAll(t *testing.T, d, to *Dir, old bool) int {
	t.Helper()
	if !old {
		n, err := d.MoveAll(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := systest.Start(t, suite.Command(t, "old-move", d.Path(), to.Path()))
	n, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func oldMove(args []string) error {
	if err := systest.LikeOld(true); err != nil {
		return err
	}
	d, err := Open(args[0])
	if err != nil {
		return err
	}
	to, err := Open(args[1])
	if err != nil {
		return err
	}
	n, err := d.MoveAll(context.Background(), to)
	fmt.Println(n)
	return err
}

// Nobody of a storm of forks is left behind, also where it cannot be frozen.
func TestMoveStorm(t *testing.T) {
	for _, freezes := range []bool{true, false} {
		t.Run(fmt.Sprint("freezes ", freezes), func(t *testing.T) {
			d, to := testDir(t), testDir(t)
			cmd := into(d, suite.Command(t, "storm"))
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
			p := systest.Start(t, cmd)
			p.Line(t)
			m := mover{from: d, to: to, moved: map[int]bool{}}
			if freezes {
				if n, err := d.MoveAll(t.Context(), to); err != nil || n == 0 {
					t.Fatalf("%d, %v", n, err)
				}
			} else {
				for left := 1; left > 0; {
					var err error
					if left, err = m.round(nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 100 {
				if full, err := d.Populated(); full || err != nil {
					t.Fatalf("populated %v, %v", full, err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// What a cgroup of others' holds is not moved, nor are we.
func TestMoveRefused(t *testing.T) {
	d, own := testDir(t), testDir(t)
	born(t, d)
	p := systest.Start(t, into(own, suite.Command(t, "move-own", own.Path(), d.Path())))
	if got := p.Line(t); !strings.Contains(got, "holds ourselves") {
		t.Errorf("it moved itself: %s", got)
	}
	if n, _, err := own.Count(); n != 1 || err != nil {
		t.Errorf("%d are in its cgroup, %v", n, err)
	}
	invalid, err := d.Make("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer invalid.Close()
	if err := invalid.write("cgroup.type", "threaded"); err != nil {
		t.Fatal(err)
	}
	deep, err := invalid.Make("invalid") // domain invalid: it takes nobody
	if err != nil {
		t.Fatal(err)
	}
	defer deep.Close()
	from := testDir(t)
	pid := born(t, from).PID()
	if n, err := from.MoveAll(t.Context(), deep); n != 0 || !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("moved %d into one that takes nobody: %v", n, err)
	}
	if ps, err := from.Pids(); len(ps) != 1 || ps[0].PID != pid || err != nil {
		t.Errorf("%+v, %v", ps, err)
	}
	if asked, err := from.FreezeAsked(); asked || err != nil {
		t.Errorf("it is left frozen: %v, %v", asked, err)
	}
}

func moveOwn(args []string) error {
	d, err := Open(args[0])
	if err != nil {
		return err
	}
	to, err := Open(args[1])
	if err != nil {
		return err
	}
	n, err := d.MoveAll(context.Background(), to)
	fmt.Println(n, err)
	time.Sleep(time.Hour)
	return nil
}

// One that got the number of a process that was to be moved is put to where its
// parent is.
func TestMoveStranger(t *testing.T) {
	d, to := testDir(t), testDir(t)
	was := systest.Start(t, into(d, suite.Command(t, "leaderless")))
	was.Line(t)
	h := handle(t, was.PID())
	was.End()
	p := born(t, to)
	m := mover{from: d, to: to, moved: map[int]bool{}}
	if err := m.stranger(p.PID(), h); err != nil {
		t.Fatal(err)
	}
	line, err := handle(t, p.PID()).CgroupPath()
	if err != nil {
		t.Fatal(err)
	}
	mount, err := FindMount()
	if err != nil {
		t.Fatal(err)
	}
	base, err := testBase()
	if dir, derr := mount.Dir(line); err != nil || derr != nil || dir != base {
		t.Errorf("it is in %s, not in %s (%v, %v)", dir, base, err, derr)
	}
	own := born(t, to)
	if err := m.stranger(own.PID(), handle(t, own.PID())); err != nil {
		t.Error(err)
	}
	if ps, err := to.Pids(); len(ps) != 1 || ps[0].PID != own.PID() || err != nil {
		t.Errorf("one that was to be moved: %+v, %v", ps, err)
	}
}

func TestChildren(t *testing.T) {
	d := testDir(t)
	if names, err := d.Children(); len(names) != 0 || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	child(t, child(t, d, "a"), "deep")
	child(t, d, "b")
	names, err := d.Children()
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b"}) || err != nil {
		t.Errorf("%v, %v", names, err)
	}
}

// TestEach opens what the scenarios have.
func TestEach(t *testing.T) {
	for name, run := range scenarios() {
		t.Run(name, func(t *testing.T) {
			d := testDir(t)
			want := run(t, d)
			var got []int
			hidden, err := d.Each(func(h *pidfd.Handle, f Found) error {
				if f.PID != h.PID() {
					t.Errorf("%+v: handle of %d", f, h.PID())
				}
				got = append(got, f.PID)
				return nil
			})
			if hidden != 0 || err != nil {
				t.Errorf("%d hidden, %v", hidden, err)
			}
			for _, pid := range want {
				if n := len(slices.DeleteFunc(slices.Clone(got), func(one int) bool { return one != pid })); n != 1 {
					t.Errorf("%d was found %d times", pid, n)
				}
			}
			no := errors.New("no")
			n := 0
			if _, err := d.Each(func(*pidfd.Handle, Found) error { n++; return no }); !errors.Is(err, no) || n < len(want) {
				t.Errorf("after %d of %d: %v", n, len(want), err)
			}
			n = 0
			if _, err := d.Each(func(*pidfd.Handle, Found) error { n++; return context.Canceled }); !errors.Is(err, context.Canceled) || n != 1 {
				t.Errorf("%d were gone through for who had gone: %v", n, err)
			}
		})
	}
}
