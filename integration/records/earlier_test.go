package records

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/wire"
)

// git runs git in the tree that this test is of.
func git(args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "../..", &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, &errs)
	}
	return strings.TrimSpace(out.String()), nil
}

// lastOf finds the last commit before the protocol got version v. By what the
// source says, not by a commit's name, so that it is found in any history.
func lastOf(t *testing.T, v int) string {
	t.Helper()
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || shallow != "false" {
		t.Skipf("missing: the repository's history, to build an earlier keeper from (shallow: %s, %v)", shallow, err)
	}
	all, err := git("log", "--format=%H", "-S", fmt.Sprintf("const Version = %d", v), "--", "internal/wire/wire.go")
	if err != nil {
		t.Fatal(err)
	}
	if all == "" {
		t.Fatalf("no commit has made the protocol's version %d", v)
	}
	lines := strings.Split(all, "\n")
	return lines[len(lines)-1] + "^"
}

// buildOf builds the programs of a commit, or of the last one before it that can
// be built: not every one can.
func buildOf(t *testing.T, commit string) (bin string) {
	t.Helper()
	all, err := git("rev-list", "--max-count=20", commit)
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	for c := range strings.SplitSeq(all, "\n") {
		bin, err := tryBuild(t, c)
		if err == nil {
			t.Logf("built from %s", c)
			return bin
		}
		failed = err
	}
	t.Fatal(failed)
	return ""
}

func tryBuild(t *testing.T, commit string) (bin string, err error) {
	t.Helper()
	src, err := os.MkdirTemp(run.dir, "src.")
	if err != nil {
		t.Fatal(err)
	}
	archive := exec.Command("git", "archive", commit)
	archive.Dir = "../.."
	unpack := exec.Command("tar", "-x", "-C", src)
	pipe, err := archive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	unpack.Stdin = pipe
	if err := unpack.Start(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Run(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, pipe)
	if err := unpack.Wait(); err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(src, "built")
	cmd := exec.Command("go", "build", "-trimpath", "-o", bin+"/", "./cmd/pinfold", "./cmd/pinfold-init")
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD="+src)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", commit, err, out)
	}
	return bin, nil
}

// A service of today has the turns of an earlier one: it speaks to the keepers
// that run, launches through them, restarts, and ends what they hold. The last
// commit of each version of the protocol between them, and the commit before this
// one, are built from the repository.
func TestEarlierKeepers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	commits := map[string]string{"the commit before": "HEAD~1"}
	for v := 2; v <= wire.Version; v++ {
		commits[fmt.Sprintf("protocol %d", v-1)] = lastOf(t, v)
	}
	for name, commit := range commits {
		t.Run(name, func(t *testing.T) {
			bin := buildOf(t, commit)
			t.Run("upgrade", func(t *testing.T) {
				s := newService(t)
				now, init := s.bin, s.init
				s.bin, s.init = bin+"/pinfold", bin+"/pinfold-init"
				s.start()
				s.outlives(func() { s.bin, s.init = now, init })
			})
			t.Run("its keeper, today's service", func(t *testing.T) {
				s := newService(t)
				s.init = bin + "/pinfold-init"
				s.start()
				s.outlives(func() {})
			})
		})
	}
}

// outlives begins a turn, launches, has the service changed, and goes on.
func (s *service) outlives(change func()) {
	t := s.t
	canary := newCanary(t, "")
	x := s.begin(api.BeginRequest{Label: "early"})
	s.exits(x.ID, "exit 5")
	p := s.launch(x.ID, "exec sleep 100000")
	meanwhile := s.launch(x.ID, "while [ ! -e "+s.dir+"/go ]; do sleep 0.02; done; exit 7")
	s.kill()
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one has ended while there was no service", func() bool { return stateOf(meanwhile.PID) == 0 })
	change()
	for range 2 {
		s.start()
		v := s.look(x.ID)
		if v.State != api.StateOpen || v.Alive != 1 || v.Label != "early" || v.KeeperPID != x.KeeperPID || len(v.Degraded) > len(x.Degraded) {
			t.Errorf("it is %s, alive %d, keeper %d, degraded %q", v.State, v.Alive, v.KeeperPID, v.Degraded)
		}
		if len(v.Processes) < 3 || v.Processes[0].Status.Code != 5 || v.Processes[2].Status.Code != 7 {
			t.Errorf("processes %+v", v.Processes)
		}
		q, err := s.Launch(context.Background(), x.ID, api.LaunchRequest{Argv: []string{"sh", "-c", "exit 3"}, Cwd: "/"})
		if err != nil {
			t.Fatalf("launch through an earlier keeper: %v", err)
		}
		if q, err = s.WaitProcess(context.Background(), x.ID, q.ID); err != nil || q.Status.Code != 3 {
			t.Errorf("%+v (%v)", q.Status, err)
		}
		s.kill()
	}
	s.start()
	r, err := s.Abandon(context.Background(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if st := stateOf(p.PID); err != nil || !r.Complete || st != 0 && st != 'Z' || r.Processes[1].Status.Signal != "SIGKILL" {
		t.Errorf("complete %v, %+v (%v)", r.Complete, r.Processes, err)
	}
	s.archived(x.ID)
	canary.lives()
}
