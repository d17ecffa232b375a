package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BedOptions say how a bed is booted and what runs in it.
type BedOptions struct {
	// Bed is what the tests in there find in PINFOLD_BED.
	Bed string
	// Binary is a test binary from PackageTests; empty means this one.
	Binary string
	// User runs the tests as that user, in a log-in session: "bed" is one
	// that every bed has. Empty means root. Its user manager is started.
	User string
	// Bin puts pinfold and pinfold-init there; PINFOLD_BIN_DIR says where.
	Bin bool
	// Env are more variables for the tests, as NAME=value.
	Env []string
	// Props are properties of the tests' unit, such as Delegate=yes.
	Props []string
	// RW are directories that the bed shares with this machine, writable.
	RW []string
	// Tree are directories of this module that the tests need, and Dir is where
	// in it they run; empty: nowhere in it. Namespace beds have both.
	Tree []string
	Dir  string
	// Args are more for the test binary, such as -test.short.
	Args []string
	// Timeout bounds the tests, without the boot; 0 means 5 minutes.
	Timeout time.Duration
}

// needRoot skips a test that root is needed for. Root has no excuse.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces, cgroups and virtual machines")
	}
}

// needBed skips a test outside its bed.
func needBed(t *testing.T, bed string) {
	t.Helper()
	if have := os.Getenv("PINFOLD_BED"); have != bed {
		t.Skipf("runs in the test bed %q, which another test boots", bed)
	}
}

// InNamespaceBed boots a real systemd in namespaces and runs the tests of
// o.Binary that match pattern in there. root is the root file system: "" for
// this machine's own, else a Debian release, whose systemd it then is. It fails
// the test when one of them fails, when none ran, and when one was skipped
// without an excuse. It returns what they wrote.
func InNamespaceBed(t *testing.T, root string, o BedOptions, pattern string) string {
	t.Helper()
	needRoot(t)
	dir := stage(t)
	argv := []string{bedScript(t, "boot-systemd-ns.sh"), "--no-bus", "--linger", "--chdir", stageTree(t, dir, o)}
	if root != "" {
		argv = append(argv, "--root", rootfs(t, root))
	}
	binary := o.Binary
	if binary == "" {
		binary = executable(t)
	}
	if o.Bin {
		o.Env = append(o.Env, stageBinaries(t, dir))
	}
	argv = append(argv, o.flags()...)
	argv = append(argv, "--", stageFile(t, dir, binary),
		"-test.v", "-test.run="+pattern, "-test.timeout="+o.timeout().String())
	out, err := runBed(t, o.timeout(), append(argv, o.Args...))
	checkTests(t, out, err)
	return out
}

func (o BedOptions) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return 5 * time.Minute
}

// flags are the options that all bed scripts take.
func (o BedOptions) flags() []string {
	// The tests end themselves, and tell where they hang; the bed is patient.
	f := []string{"--timeout", strconv.Itoa(int(o.timeout().Seconds()) + 30)}
	for _, e := range append([]string{"PINFOLD_BED=" + o.Bed}, o.Env...) {
		f = append(f, "--env", e)
	}
	if o.User != "" {
		f = append(f, "--uid", o.User, "--prop", "PAMName=login")
	}
	for _, p := range o.Props {
		f = append(f, "--prop", p)
	}
	for _, d := range o.RW {
		f = append(f, "--rw", d)
	}
	return f
}

// runBed runs a bed script. It dies with this test binary.
func runBed(t *testing.T, timeout time.Duration, argv []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout+5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "BED_VERBOSE=1", "BED_CACHE="+bedCache(t))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it cleans up
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	err := onOwnThread(cmd.Run)
	return out.String(), err
}

var (
	passed  = regexp.MustCompile(`(?m)^\s*--- PASS: (\S+)`)
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	skipped = regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+)`)
	// named is the line before what a test writes, when another has written or begun.
	named = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
	// excuse is how the reason for a skip reads that stands in a bed: another
	// bed is the place for it, or package systest has looked for the feature.
	excuse = regexp.MustCompile(`test beds?\b|: skipped: `)
)

// checkTests judges a verbose test run in a bed.
func checkTests(t *testing.T, out string, err error) {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == 125:
		t.Errorf("the bed failed; scripts/deps.sh installs what it needs\n%s", out)
		return
	default:
		t.Errorf("in the bed: %v\n%s", err, out)
		return
	}
	switch {
	case failed.MatchString(out), !passed.MatchString(out):
		t.Errorf("no test passed, or one failed\n%s", out)
	default:
		t.Log(out)
	}
	for _, name := range unexcused(out) {
		t.Errorf("%s was skipped in its bed", name)
	}
}

// unexcused lists tests that were skipped without an excuse. go test -v writes
// the reason after a line that names the test, and the verdict, of a subtest, later.
func unexcused(out string) (names []string) {
	reasons := make(map[string]string)
	var running string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := named.FindStringSubmatch(line); m != nil {
			running = m[1]
		} else if excuse.MatchString(line) {
			reasons[running] = line
		}
		if m := skipped.FindStringSubmatch(line); m != nil && reasons[m[1]] == "" {
			names = append(names, m[1])
		}
	}
	return names
}

// bedScript is the path of a script in beds.
func bedScript(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("beds", name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
