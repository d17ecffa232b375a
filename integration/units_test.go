package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pinfold.dev/client"
)

// The units that are shipped, under a real systemd: turns outlive every way in
// which the service can end, and the next one ends them.
func TestUnitsInBeds(t *testing.T) {
	needRoot(t)
	for _, user := range []string{"", "bed"} {
		t.Run("as "+user, func(t *testing.T) {
			InNamespaceBed(t, "", shippedUnits("unit", user), "^Test(Unit|SocketUnit|StopTurns)There$")
		})
	}
}

// shippedUnits are the options of a bed whose tests install the units: the
// system's, or a user's.
func shippedUnits(bed, user string) BedOptions {
	dir := "packaging/systemd/system"
	if user != "" {
		dir = "packaging/systemd/user"
	}
	return BedOptions{Bed: bed, User: user, Bin: true, Tree: []string{dir}, Env: []string{"PINFOLD_UNITS=" + dir}}
}

func TestUnitThere(t *testing.T) {
	needBed(t, "unit")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	if out := u.pinfold(0, "doctor"); !strings.Contains(out, "holds turns at grade scope") {
		t.Errorf("doctor says:\n%s", out)
	}
	id := strings.Fields(u.pinfold(0, "run", "--detach", "--label", "outlives", "--", "sleep", "300"))
	if len(id) != 2 {
		t.Fatalf("run --detach printed %q", id)
	}
	held := func(after string) {
		t.Helper()
		if out := u.pinfold(0, "tree", id[0]); !strings.Contains(out, " sleep\n") {
			t.Fatalf("after %s the turn holds:\n%s", after, out)
		}
		code := 0
		u.soon("the process runs", func() bool { // its keeper may not have answered a new service at once
			code = exitCode(exec.Command(u.bin, "wait", "--timeout", "50ms", id[0], id[1]).Run())
			return code != 125
		})
		if code != 124 {
			t.Errorf("after %s, a wait exits with %d", after, code)
		}
	}
	held("the launch")
	u.systemctl("restart", "pinfold")
	held("a restart")
	u.systemctl("kill", "--signal", "KILL", "pinfold")
	u.ready()
	held("a kill")
	u.systemctl("stop", "pinfold")
	u.pinfold(125, "ps")
	if _, err := os.Lstat(u.socket()); !os.IsNotExist(err) {
		t.Errorf("with the service stopped for good, its socket is there still: %v", err)
	}
	if out := u.systemctl("status", "pinfold-"+id[0]+".scope"); !strings.Contains(out, "sleep 300") || !strings.Contains(out, "outlives") {
		t.Errorf("with the service stopped, the scope is:\n%s", out)
	}
	u.systemctl("start", "pinfold")
	held("a stop and a start")
	if os.Getuid() == 0 {
		// Root's service serves everybody, each as themselves.
		u.bin = "setpriv --reuid 4242 --regid 4242 --clear-groups " + u.bin
		if out := u.pinfold(0, "run", "--", "id", "-u"); out != "4242\n" {
			t.Errorf("for another user, id -u is %q", out)
		}
		u.pinfold(3, "abandon", id[0])
		u.bin = u.bin[strings.LastIndex(u.bin, " ")+1:]
	}
	u.pinfold(0, "abandon", "--grace", "1s", id[0])
	if out := u.pinfold(0, "receipt", id[0]); !strings.Contains(out, "SIGTERM") {
		t.Errorf("the receipt:\n%s", out)
	}
	u.systemctl("restart", "pinfold")
	u.pinfold(0, "receipt", id[0])
}

// unit is the service as its unit runs it.
type unit struct {
	t   *testing.T
	bin string
}

// installUnit puts the shipped units where the manager looks, changed only in
// where the program is. The test ends with nothing of theirs left.
func installUnit(t *testing.T) *unit {
	t.Helper()
	u := &unit{t, filepath.Join(os.Getenv("PINFOLD_BIN_DIR"), "pinfold")}
	if err := os.MkdirAll(u.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pinfold.service", "pinfold.socket"} {
		text, err := os.ReadFile(filepath.Join(os.Getenv("PINFOLD_UNITS"), name))
		if err != nil {
			t.Fatal(err)
		}
		out := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/pinfold `).ReplaceAllString(string(text), "ExecStart="+u.bin+" ")
		if name == "pinfold.service" && out == string(text) {
			t.Fatal("the unit does not start /usr/bin/pinfold")
		}
		if err := os.WriteFile(filepath.Join(u.dir(), name), []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	u.systemctl("daemon-reload")
	t.Cleanup(u.remove)
	return u
}

// dir is where the manager looks for units.
func (u *unit) dir() string {
	if os.Getuid() != 0 {
		return os.Getenv("XDG_RUNTIME_DIR") + "/systemd/user"
	}
	return "/run/systemd/system"
}

// socket is where the service listens.
func (u *unit) socket() string {
	if os.Getuid() != 0 {
		return os.Getenv("XDG_RUNTIME_DIR") + "/pinfold/pinfold.sock"
	}
	return "/run/pinfold/pinfold.sock"
}

func (u *unit) client() *client.Client {
	c := &client.Client{Socket: u.socket()}
	u.t.Cleanup(func() { c.Close() })
	return c
}

// dropIn adds to a unit, until the end of the test or until undo is called.
func (u *unit) dropIn(name, text string) (undo func()) {
	u.t.Helper()
	dir := filepath.Join(u.dir(), name+".d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		u.t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/test.conf", []byte(text), 0o644); err != nil {
		u.t.Fatal(err)
	}
	u.systemctl("daemon-reload")
	undo = func() {
		if os.RemoveAll(dir) == nil {
			u.systemctl("daemon-reload")
		}
	}
	u.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return undo
}

// remove ends what the test has left, and looks whether that was all.
func (u *unit) remove() {
	if u.t.Failed() {
		out, _ := exec.Command("journalctl", "--no-pager", "-n", "300", "-o", "short-precise").CombinedOutput()
		u.t.Logf("the journal:\n%s", out)
	}
	u.systemctl("start", "pinfold.service")
	u.pinfold(0, "stop", "--turns", "--grace", "0")
	u.noScopes()
	if u.try("is-active", "pinfold.socket") == nil {
		u.systemctl("stop", "pinfold.socket")
	}
	u.systemctl("stop", "pinfold.service")
	if out := u.systemctl("list-units", "--failed", "--all", "--plain", "--no-legend", "pinfold*"); strings.TrimSpace(out) != "" {
		u.t.Errorf("failed units are left:\n%s", out)
	}
	for _, name := range []string{"pinfold.service", "pinfold.socket"} {
		_ = os.Remove(filepath.Join(u.dir(), name))
	}
	u.systemctl("daemon-reload")
}

// noScopes waits until no turn has a scope.
func (u *unit) noScopes() {
	u.t.Helper()
	out := ""
	u.soon("no scope of a turn is left", func() bool {
		out = strings.TrimSpace(u.systemctl("list-units", "--all", "--plain", "--no-legend", "pinfold-*.scope"))
		return out == ""
	})
}

// soon waits for cond, a long time.
func (u *unit) soon(what string, cond func() bool) {
	u.t.Helper()
	for end := time.Now().Add(patience(u.t)); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			u.t.Fatalf("not seen within %v: %s", patience(u.t), what)
		}
	}
}

// show is a property of the service's unit.
func (u *unit) show(property string) string {
	u.t.Helper()
	return strings.TrimSpace(u.systemctl("show", "--value", "--property="+property, "pinfold.service"))
}

// pid is the service's.
func (u *unit) pid() int {
	u.t.Helper()
	n, err := strconv.Atoi(u.show("MainPID"))
	if err != nil {
		u.t.Fatal(err)
	}
	return n
}

// kept waits until systemd keeps so many descriptors for the service.
func (u *unit) kept(want int) {
	u.t.Helper()
	got := ""
	for end := time.Now().Add(patience(u.t)); got != strconv.Itoa(want); time.Sleep(20 * time.Millisecond) {
		if got = u.show("NFileDescriptorStore"); time.Now().After(end) {
			u.t.Fatalf("systemd keeps %s descriptors, not %d", got, want)
		}
	}
}

// kill ends the service, and nothing else, by SIGKILL.
func (u *unit) kill() { u.systemctl("kill", "--kill-whom=main", "--signal=KILL", "pinfold.service") }

func (u *unit) systemctl(args ...string) string {
	u.t.Helper()
	out, err := u.command(args).CombinedOutput()
	if err != nil {
		journal, _ := exec.Command("journalctl", "--no-pager", "-n", "40").CombinedOutput()
		u.t.Fatalf("systemctl %v: %v\n%s\n%s", args, err, out, journal)
	}
	return string(out)
}

// try is systemctl where it may fail.
func (u *unit) try(args ...string) error { return u.command(args).Run() }

func (u *unit) command(args []string) *exec.Cmd {
	if os.Getuid() != 0 {
		args = slices.Concat([]string{"--user"}, args)
	}
	return exec.Command("systemctl", args...)
}

// pinfold runs the command line, which finds the service by itself, and expects
// an exit code. It returns standard output.
func (u *unit) pinfold(want int, args ...string) string {
	u.t.Helper()
	words := append(strings.Fields(u.bin), args...)
	out, err := exec.Command(words[0], words[1:]...).Output()
	var exit *exec.ExitError
	got, told := 0, ""
	if errors.As(err, &exit) {
		got, told = exit.ExitCode(), string(exit.Stderr)
	} else if err != nil {
		u.t.Fatal(err)
	}
	if got != want {
		u.t.Fatalf("pinfold %v exited with %d, not %d\n%s%s", args, got, want, out, told)
	}
	return string(out)
}

// exitCode is what a command exited with.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return 0
}

// ready waits until the service answers.
func (u *unit) ready() {
	u.t.Helper()
	u.soon("the service answers", func() bool { return exec.Command(u.bin, "doctor").Run() == nil })
}
