package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// With the socket unit the first who connects starts the service, also after it
// was stopped, and turns do not notice. A socket that is not the one the service
// was told to use is refused, and why is told.
func TestSocketUnitThere(t *testing.T) {
	needBed(t, "unit")
	u := installUnit(t)
	u.systemctl("start", "pinfold.socket")
	if got := u.show("ActiveState"); got != "inactive" {
		t.Fatalf("before anybody connects, the service is %s", got)
	}
	id := strings.Fields(u.pinfold(0, "run", "--detach", "--", "sleep", "300"))
	if len(id) != 2 {
		t.Fatalf("run --detach printed %q", id)
	}
	u.systemctl("stop", "pinfold.service")
	if _, err := os.Lstat(u.socket()); err != nil {
		t.Errorf("the socket is the unit's, and goes with the service: %v", err)
	}
	if out := u.pinfold(0, "tree", id[0]); !strings.Contains(out, " sleep\n") {
		t.Errorf("after a stop and a start by who connects, the turn holds:\n%s", out)
	}
	u.systemctl("restart", "pinfold.service")
	u.kill()
	u.pinfold(0, "show", id[0]) // waits in the socket
	u.kept(1)                   // the process; the socket is the unit's
	u.pinfold(0, "abandon", "--grace", "0", id[0])

	log := t.TempDir() + "/log"
	toLog := "[Service]\nStandardError=append:" + log + "\n"
	refused := func(want string) {
		t.Helper()
		u.systemctl("stop", "pinfold.service")
		if u.try("start", "pinfold.service") == nil {
			t.Errorf("it starts, though %q", want)
		}
		u.soon("it tells "+want, func() bool {
			out, err := os.ReadFile(log)
			return err == nil && strings.Contains(string(out), want)
		})
		u.systemctl("stop", "pinfold.service")
	}
	u.dropIn("pinfold.service", toLog+"Environment=PINFOLD_SOCKET=/run/another.sock\n")
	refused("/run/another.sock is asked for: change ListenStream=")
	whole := u.dropIn("pinfold.service", toLog)
	undo := u.dropIn("pinfold.socket", "[Socket]\nListenStream="+u.socket()+".two\n")
	u.systemctl("stop", "pinfold.service", "pinfold.socket")
	u.systemctl("start", "pinfold.socket")
	refused("systemd passes two sockets")
	u.systemctl("stop", "pinfold.socket")
	undo()
	undo = u.dropIn("pinfold.socket", "[Socket]\nListenStream=\nListenDatagram="+u.socket()+"\n")
	u.systemctl("start", "pinfold.socket")
	refused("on which nobody listens")
	u.systemctl("stop", "pinfold.socket")
	undo()
	whole()
	u.systemctl("start", "pinfold.service")
	u.pinfold(0, "ps")
}

// systemctl stop leaves turns and jobs running; stop --turns ends them, and what
// was there before is none of it.
func TestStopTurnsThere(t *testing.T) {
	needBed(t, "unit")
	u := installUnit(t)
	canary := exec.Command("sleep", "300")
	if err := canary.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := canary.Process.Kill(); err != nil {
			t.Errorf("the canary: %v", err)
		}
		_ = canary.Wait()
	}()
	u.systemctl("start", "pinfold.service")
	var ids []string
	for range 3 {
		ids = append(ids, strings.Fields(u.pinfold(0, "run", "--detach", "--", "sleep", "300"))[0])
	}
	job := strings.TrimSpace(u.pinfold(0, "job", "start", "--", "sleep", "300"))
	u.systemctl("stop", "pinfold.service")
	for _, id := range ids {
		if out := u.systemctl("status", "pinfold-"+id+".scope"); !strings.Contains(out, "sleep 300") {
			t.Errorf("with the service stopped, the scope is:\n%s", out)
		}
	}
	u.systemctl("start", "pinfold.service")
	u.pinfold(124, "job", "wait", "--timeout", "50ms", job)
	out := u.pinfold(0, "stop", "--turns", "--grace", "0")
	for _, id := range append(ids, job) {
		if !strings.Contains(out, id) {
			t.Errorf("%s is not told of in:\n%s", id, out)
		}
	}
	u.noScopes()
	if out := u.pinfold(0, "ps"); strings.Contains(out, "sleep") {
		t.Errorf("left:\n%s", out)
	}
	u.pinfold(0, "run", "--", "true") // the service goes on
}
