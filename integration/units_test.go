package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The units that are shipped, under a real systemd: turns outlive every way in
// which the service can end, and the next one ends them.
func TestUnitsInBeds(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ user, unit string }{
		{"", "../packaging/systemd/system/pinfold.service"},
		{"bed", "../packaging/systemd/user/pinfold.service"},
	} {
		t.Run("as "+c.user, func(t *testing.T) {
			dir := stage(t)
			unit := stageFile(t, dir, c.unit)
			if err := os.Chmod(unit, 0o644); err != nil {
				t.Fatal(err)
			}
			InNamespaceBed(t, "", BedOptions{Bed: "unit", User: c.user, Bin: true, Env: []string{"PINFOLD_UNIT=" + unit}}, "^TestUnitThere$")
		})
	}
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
		u.pinfold(124, "wait", "--timeout", "50ms", id[0], id[1])
	}
	held("the launch")
	u.systemctl("restart", "pinfold")
	held("a restart")
	u.systemctl("kill", "--signal", "KILL", "pinfold")
	u.ready()
	held("a kill")
	u.systemctl("stop", "pinfold")
	u.pinfold(125, "ps")
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

// installUnit puts the shipped unit where the manager looks, changed only in
// where the program is.
func installUnit(t *testing.T) *unit {
	t.Helper()
	u := &unit{t, filepath.Join(os.Getenv("PINFOLD_BIN_DIR"), "pinfold")}
	text, err := os.ReadFile(os.Getenv("PINFOLD_UNIT"))
	if err != nil {
		t.Fatal(err)
	}
	dir := "/run/systemd/system"
	if os.Getuid() != 0 {
		dir = os.Getenv("XDG_RUNTIME_DIR") + "/systemd/user"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/pinfold `).ReplaceAllString(string(text), "ExecStart="+u.bin+" ")
	if out == string(text) {
		t.Fatal("the unit does not start /usr/bin/pinfold")
	}
	if err := os.WriteFile(filepath.Join(dir, "pinfold.service"), []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	u.systemctl("daemon-reload")
	return u
}

func (u *unit) systemctl(args ...string) string {
	u.t.Helper()
	if os.Getuid() != 0 {
		args = append([]string{"--user"}, args...)
	}
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		journal, _ := exec.Command("journalctl", "--no-pager", "-n", "40").CombinedOutput()
		u.t.Fatalf("systemctl %v: %v\n%s\n%s", args, err, out, journal)
	}
	return string(out)
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

// ready waits until the service answers.
func (u *unit) ready() {
	u.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if exec.Command(u.bin, "doctor").Run() == nil {
			return
		}
	}
	u.t.Fatal("the service does not answer")
}
