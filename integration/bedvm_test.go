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

// vmPrologue runs each test binary in a cgroup of its own that has all
// controllers. Nothing else may be in the one above it: the kernel allows no
// process in a cgroup whose children have controllers.
const vmPrologue = `set -u
top=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
mkdir "$top/job" && echo $$ >"$top/job/cgroup.procs"
sed 's/[^ ]*/+&/g' "$top/cgroup.controllers" >"$top/cgroup.subtree_control"
run() {
	echo "=== BED $1 begins"
	mkdir "$top/run$1"
	(echo $BASHPID >"$top/run$1/cgroup.procs" && cd "$2" && shift 2 && exec env "$@") 2>&1
	echo "=== BED $1 ends with $?"
}
`

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
	script := vmPrologue
	for i, r := range runs {
		at := r.Dir
		if at == "" {
			at = dir
		}
		script += fmt.Sprintf("run %d '%s' %s '%s' -test.v -test.timeout=%v %s\n", i, at,
			strings.Join(r.Env, " "), stageFile(t, dir, r.Binary), o.timeout(), strings.Join(r.Args, " "))
	}
	job := filepath.Join(dir, "job.sh")
	if err := os.WriteFile(job, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	argv := []string{bedScript(t, "vm-run.sh"), "--linger", "--chdir", dir, "--kernel", kernelDir}
	all := o
	all.Timeout = o.timeout() * time.Duration(len(runs))
	all.Props = append(all.Props, "Delegate=yes")
	argv = append(append(argv, all.flags()...), "--", "/bin/bash", job)
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
