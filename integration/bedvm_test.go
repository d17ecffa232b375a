package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// debian61 is Debian 12's kernel for virtual machines: it has cgroup.kill, but
// pidfds there have no inode of their own.
const debian61 = "linux-image-cloud-amd64"

// vmRun is one test binary to run in a virtual machine.
type vmRun struct {
	Name   string
	Binary string
	Dir    string // to run it in; empty means a scratch directory
	Args   []string
	Env    []string // NAME=value, without quotes
}

// InVM boots a virtual machine with a kernel from kernel, a unified cgroup v2
// with all controllers and this machine's systemd, and runs the test binaries
// in there one after the other: a boot takes some seconds, and everything is
// 10 to 30 times slower than here. Each becomes a subtest, judged as
// InNamespaceBed does.
func InVM(t *testing.T, kernelDir string, o BedOptions, runs []vmRun) {
	t.Helper()
	needRoot(t)
	dir := stage(t)
	if o.Bin {
		o.Env = append(o.Env, stageBinaries(t, dir))
	}
	var script strings.Builder
	for i, r := range runs {
		at := r.Dir
		if at == "" {
			at = dir
		}
		fmt.Fprintf(&script, "echo '=== BED %d begins'; (cd '%s' && exec env %s '%s' -test.v -test.timeout=%v %s) 2>&1; echo \"=== BED %d ends with $?\"\n",
			i, at, strings.Join(r.Env, " "), stageFile(t, dir, r.Binary), o.timeout(), strings.Join(r.Args, " "), i)
	}
	job := filepath.Join(dir, "job.sh")
	if err := os.WriteFile(job, []byte(script.String()), 0o755); err != nil {
		t.Fatal(err)
	}
	argv := []string{bedScript(t, "vm-run.sh"), "--no-bus", "--linger", "--chdir", dir, "--kernel", kernelDir}
	all := o
	all.Timeout = o.timeout() * time.Duration(len(runs))
	argv = append(append(argv, all.flags()...), "--", "/bin/sh", job)
	began := time.Now()
	out, err := runBed(t, all.Timeout, argv)
	t.Logf("the virtual machine took %v", time.Since(began).Round(time.Millisecond))
	for i, r := range runs {
		t.Run(r.Name, func(t *testing.T) {
			_, mine, began := strings.Cut(out, fmt.Sprintf("=== BED %d begins\n", i))
			mine, status, ended := strings.Cut(mine, fmt.Sprintf("=== BED %d ends with ", i))
			if !began || !ended {
				t.Fatalf("did not run to its end\n%s", mine)
			}
			if status, _, _ = strings.Cut(status, "\n"); status != "0" {
				t.Fatalf("exit status %s\n%s", status, mine)
			}
			checkTests(t, mine, nil)
		})
	}
	if err != nil {
		t.Errorf("virtual machine: %v\n%s", err, out)
	}
}
