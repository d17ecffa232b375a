package records

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

// failingDisk is an ext4 that turns read-only, with all files open, when it meets
// an error: what a kernel does in an emergency.
func failingDisk(t *testing.T, dir string) (fail func()) {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this host has no loop devices: %v", err)
	}
	tool := func(argv ...string) string {
		t.Helper()
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	img := dir + ".img"
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, 16<<20); err != nil {
		t.Fatal(err)
	}
	tool("mkfs.ext4", "-q", img)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tool("mount", "-o", "loop,errors=remount-ro", img, dir)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dev := filepath.Base(tool("findmnt", "-n", "-o", "SOURCE", dir))
	return func() {
		t.Helper()
		if err := os.WriteFile("/sys/fs/ext4/"+dev+"/trigger_fs_error", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the disk is read-only", func() bool { return os.WriteFile(dir+"/probe", nil, 0o600) != nil })
	}
}

// A disk that turns read-only under the running service, for ever: what runs is
// ended and seen ended, others are told why not, nobody hangs. With the state
// directory read-only the service comes back and works; with the runtime directory
// it says why not and what to do.
func TestReadOnlyDisk(t *testing.T) {
	for _, disk := range []string{"state", "run"} {
		t.Run(disk, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			fail := failingDisk(t, s.dir+"/"+disk)
			s.start()
			ctx, canary := context.Background(), newCanary(t, "")
			x, y := s.begin(api.BeginRequest{}), s.begin(api.BeginRequest{})
			p, q := s.launch(x.ID, "exec sleep 100000"), s.launch(y.ID, "exec sleep 100000")
			fail()
			end := func(turn string, pid int) {
				t.Helper()
				r, err := s.Abandon(ctx, turn, api.AbandonRequest{GraceMS: new(int64(0))})
				if st := stateOf(pid); err != nil || !r.Complete || r.State != api.StateAbandoned || st != 0 && st != 'Z' {
					t.Errorf("complete %v, state %s (%v), its process %q", r.Complete, r.State, err, st)
				}
			}
			end(x.ID, p.PID)
			if r, err := s.Receipt(ctx, x.ID); err != nil || r.State != api.StateAbandoned {
				t.Errorf("its receipt: %s (%v)", r.State, err)
			}
			z, err := s.Begin(ctx, api.BeginRequest{})
			if disk == "state" {
				if err != nil {
					t.Errorf("begin: %v", err)
				}
				s.exits(z.ID, "exit 0")
			} else if err == nil || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("begin with no place for its record: %v", err)
			}
			if _, err := s.Launch(ctx, y.ID, api.LaunchRequest{Argv: []string{"true"}, Cwd: "/"}); err != nil && !strings.Contains(err.Error(), "read-only") {
				t.Errorf("launch: %v", err)
			}
			if _, err := s.Turns(ctx, false, ""); err != nil {
				t.Errorf("list turns: %v", err)
			}
			eventually(t, "it is told", func() bool { // the history is written to after the receipt
				l, err := s.Records(ctx)
				return disk != "state" || err == nil && strings.Contains(l.History.Problem, "read-only")
			})
			eventually(t, "the cgroup of what was ended is gone, with its keeper", func() bool { return !exists(x.Cgroup) }) // no service comes to it any more
			s.kill()
			err = s.tryStart()
			if disk == "state" {
				if err != nil {
					t.Fatalf("%v\n%s", err, s.log())
				}
				end(y.ID, q.PID)
				s.kill()
				s.start() // nothing of it is forgotten
				if r := s.receipt(y.ID); r.State != api.StateAbandoned {
					t.Errorf("after another start it is %s", r.State)
				}
			} else {
				if err == nil || !strings.Contains(s.log(), "read-only file system") || !strings.Contains(s.log(), s.dir+"/run") {
					t.Errorf("%v\n%s", err, s.log())
				}
				if st := stateOf(q.PID); st == 0 || st == 'Z' {
					t.Error("what was in the other turn is dead")
				}
				remove(t, y.Cgroup)
			}
			canary.lives()
		})
	}
}
