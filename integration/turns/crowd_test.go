package turns

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// crowdSize is how many sleepers a turn is to hold.
func crowdSize(t *testing.T) int {
	n := 5000 / run.slow
	if testing.Short() {
		n /= 10
	}
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return min(n, most/3)
}

func TestCrowd(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		n := crowdSize(t)
		s := serve(t, g, options{})
		began := time.Now()
		r := stray{name: "a crowd", atLeast: n + 1, launch: func(t *testing.T, x *turn) []string {
			f := files(t, "leader")
			x.launch(helper(t, "crowd", f[0], strconv.Itoa(n)))
			for was := -1; was < n; { // on a busy machine it takes its time, but grows
				eventually(t, "more of the crowd", func() bool { return x.look().Alive > was })
				was = x.look().Alive
			}
			return f
		}}.end(t, s)
		t.Logf("%d sleepers: %v from begin to the check after the receipt; killed to seen empty: %v", n,
			time.Since(began).Round(time.Millisecond), r.SeenEmptyAt.Sub(*r.KilledAt).Round(time.Microsecond))
	})
}

// bombSeconds bound a bomb in time; its end by itself is no success.
const bombSeconds = 60

// bombs are the fork bombs. Each has bounds of its own besides.
func bombs(t *testing.T) []stray {
	seconds := bombSeconds * run.slow
	return []stray{
		{name: "fork and setsid", atLeast: 500, launch: func(t *testing.T, x *turn) []string {
			f := files(t, "bomb")
			x.launch(helper(t, "bomb", "fork", f[0], strconv.Itoa(seconds)))
			eventually(t, "the bomb has grown", func() bool { return x.look().Alive > 1000 })
			return f
		}},
		{name: "vfork and exec", atLeast: 20, launch: func(t *testing.T, x *turn) []string {
			f := files(t, "bomb")
			x.launch(helper(t, "vforkbomb", f[0], strconv.FormatInt(monotonic()+int64(seconds), 10)))
			eventually(t, "the bomb has grown", func() bool { return x.look().Alive > 60 })
			return f
		}},
		{name: "moving target", status: api.ProcessExited, atLeast: 1, launch: func(t *testing.T, x *turn) []string {
			f := files(t, "bomb")
			x.launch(helper(t, "bomb", "moving", f[0], strconv.Itoa(seconds)))
			heart(f[0]).beating(t)
			eventually(t, "the bomb has moved on", func() bool { return x.look().Processes[0].Status.State == api.ProcessExited })
			return f
		}},
	}
}

// TestBombs runs inside a bed as it is. Elsewhere it runs itself, with a
// service of its own, in a PID namespace that ends with it.
func TestBombs(t *testing.T) {
	if os.Getenv("PINFOLD_BED") == "" && os.Getenv("PINFOLD_TEST_NAMESPACE") == "" {
		grades(t) // or is skipped
		inNamespace(t)
		return
	}
	eachGrade(t, func(t *testing.T, g api.Grade) {
		for _, b := range bombs(t) {
			t.Run(b.name, func(t *testing.T) {
				r := b.end(t, serve(t, g, options{}))
				t.Logf("%s, %d rounds, %d seen, killed to seen empty: %v", r.Mechanism, r.Rounds, r.Counts.Ended,
					r.SeenEmptyAt.Sub(*r.KilledAt).Round(time.Microsecond))
			})
		}
	})
}

// inNamespace runs this test in a PID namespace of its own.
func inNamespace(t *testing.T) {
	t.Helper()
	for _, name := range []string{"bomb", "vforkbomb"} {
		useHelper(name)
	}
	sub := run.cgroup + "/ns"
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeTree(sub)
	useHelper("nsinit")
	cmd := exec.Command(run.exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), helperEnv+"=nsinit", "PINFOLD_TEST_NAMESPACE=1", "PINFOLD_TEST_CGROUP="+sub, "PINFOLD_BIN_DIR="+run.bin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := run.kids.output(cmd)
	t.Logf("in a PID namespace:\n%s", out)
	if err != nil || !strings.Contains(out, "--- PASS: "+t.Name()) {
		t.Errorf("in a PID namespace: %v", err)
	}
}
