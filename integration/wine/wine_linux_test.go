package wine

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// find finds Wine: its loader, and the directory of its libraries.
func find(t *testing.T) (loader, libraries string) {
	t.Helper()
	for _, name := range []string{"/usr/lib/wine/wine64", "wine64", "wine"} {
		if path, err := exec.LookPath(name); err == nil {
			loader = path
			break
		}
	}
	dirs, _ := filepath.Glob("/usr/lib/*/wine/x86_64-windows")
	if loader == "" || len(dirs) == 0 {
		t.Fatal("no Wine: scripts/deps.sh installs it")
	}
	return loader, dirs[0]
}

// prefix makes a directory that Wine takes for an installed one: the libraries
// are links to its own, and nothing is set up, which would take seconds and
// 700 MB.
func prefix(t *testing.T, libraries string) string {
	t.Helper()
	dir := t.TempDir()
	system := filepath.Join(dir, "drive_c/windows/system32")
	devices := filepath.Join(dir, "dosdevices")
	for _, d := range []string{system, devices} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	link("../drive_c", filepath.Join(devices, "c:"))
	link("/", filepath.Join(devices, "z:"))
	names, err := filepath.Glob(libraries + "/*.[de][lx][le]")
	if err != nil || len(names) == 0 {
		t.Fatalf("%s is empty, %v", libraries, err)
	}
	for _, name := range names {
		link(name, filepath.Join(system, filepath.Base(name)))
	}
	prng := filepath.Join(system, "bcryptprimitives.dll")
	if _, err := os.Stat(prng); err != nil {
		t.Log("this Wine is older than 9: a library of ours forwards ProcessPrng")
		write(t, prng, forwarder("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036"))
	}
	write(t, filepath.Join(dir, ".update-timestamp"), []byte("disable\n"))
	return dir
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// update writes the table to the page instead of comparing.
var update = flag.Bool("update", false, "write the table to docs/platforms.md")

// TestWindows runs the tests of the identity packages as Windows programs. All
// of Wine is in a PID namespace that ends with the test.
func TestWindows(t *testing.T) {
	if testing.Short() || runtime.GOARCH != "amd64" {
		t.Skip("skipped: Windows programs are run on amd64, and not with -short")
	}
	systest.Root(t)
	loader, libraries := find(t)
	dir := prefix(t, libraries)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()

	bin := t.TempDir()
	began := time.Now()
	build := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", bin+"/", "./internal/sys", "./pidfd", "./fallback/token")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	t.Logf("built in %v", time.Since(began).Round(100*time.Millisecond))

	table := filepath.Join(bin, "table")
	began = time.Now()
	cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
		"sh", "-c", `loader=$1; shift; for exe; do "$loader" "$exe" -test.v || status=1; done; exit ${status-0}`, "sh",
		loader, bin+"/sys.test.exe", bin+"/pidfd.test.exe", bin+"/token.test.exe")
	cmd.Dir = bin
	cmd.Env = append(os.Environ(), "WINEPREFIX="+dir, "TMPDIR="+dir, "WINEDEBUG=-all", "PINFOLD_TEST_TABLE=Z:"+table)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	for _, name := range []string{"TestExitedWithoutWaiting", "TestEveryStartCell", "TestVerdicts", "TestEndThroughHandle"} {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%s was not run:\n%s", name, out)
		}
	}
	t.Logf("ran in %v", time.Since(began).Round(100*time.Millisecond))
	page(t, table)
}

// page holds docs/platforms.md to the table that the tests wrote.
func page(t *testing.T, table string) {
	t.Helper()
	const name, head, tail = "../../docs/platforms.md", "<!-- made by integration/wine -->\n", "<!-- end -->\n"
	made, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), head)
	old, after, ok2 := strings.Cut(rest, tail)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", name)
	}
	if *update {
		write(t, name, []byte(before+head+string(made)+tail+after))
	} else if old != string(made) {
		t.Errorf("%s says\n%s\nwant (go test ./integration/wine -update)\n%s", name, old, made)
	}
}
