package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/cgroup"
	"pinfold.dev/integration/guard"
)

// setting is how the service of a test holds turns, and who uses it. Without
// variables that is root, and grade cgroup: TestSettings runs the other settings
// that this machine can have, package integration those that need systemd.
type setting struct {
	grade string // PINFOLD_TEST_GRADE
	uid   int    // PINFOLD_TEST_UID: who types the commands
	own   bool   // PINFOLD_TEST_OWN: the service is that user's own, not root's
	name  string // of the user
}

func theSetting() (setting, error) {
	s := setting{grade: "cgroup", uid: os.Getuid(), own: os.Getenv("PINFOLD_TEST_OWN") != "" || os.Getuid() != 0}
	if g := os.Getenv("PINFOLD_TEST_GRADE"); g != "" {
		s.grade = g
	}
	if w := os.Getenv("PINFOLD_TEST_UID"); w != "" {
		var err error
		if s.uid, err = strconv.Atoi(w); err != nil {
			return s, fmt.Errorf("PINFOLD_TEST_UID: %w", err)
		}
	}
	s.name = strconv.Itoa(s.uid)
	if u, err := user.LookupId(s.name); err == nil {
		s.name = u.Username
	}
	return s, nil
}

// changes tells whether the commands are another user's than this process's.
func (s setting) changes() bool { return s.uid != os.Getuid() }

// path is where the user finds programs: of this process's, an ordinary user may
// be unable to look into some.
func (p place) path() string {
	if !p.changes() {
		return os.Getenv("PATH")
	}
	return p.bin + ":/usr/local/bin:/usr/bin:/bin"
}

// credential makes a process the user's.
func (s setting) credential() *syscall.Credential {
	if !s.changes() {
		return nil
	}
	id := uint32(s.uid)
	return &syscall.Credential{Uid: id, Gid: id}
}

// programs is the directory of pinfold and pinfold-init, which everybody may
// enter.
func programs() (string, error) {
	path, err := exec.LookPath("pinfold")
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	to := filepath.Join(dir, initName)
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if from := os.Getenv("PINFOLD_BIN_DIR"); from != "" {
		b, err := os.ReadFile(filepath.Join(from, initName))
		if err != nil {
			return "", err
		}
		// Others may look for it just now: it is there when all of it is.
		own := fmt.Sprintf("%s.%d", to, time.Now().UnixNano())
		if err := os.WriteFile(own, b, 0o755); err != nil {
			return "", err
		}
		return dir, os.Rename(own, to)
	}
	out, err := exec.Command("go", "build", "-o", to, "pinfold.dev/cmd/pinfold-init").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", initName, err, out)
	}
	return dir, nil
}

// place is where a service and what uses it have their things.
type place struct {
	setting
	dir    string // everybody's
	bin    string
	cgroup string // of its turns, at grade cgroup
}

// newPlace makes it. name is the test's.
func newPlace(name, dir string) (place, error) {
	s, err := theSetting()
	if err != nil {
		return place{}, err
	}
	p := place{setting: s, dir: dir}
	if p.bin, err = programs(); err != nil {
		return p, err
	}
	if s.grade == "cgroup" {
		if p.cgroup, err = testCgroup(name, true); err != nil {
			return p, err
		}
	}
	if !s.changes() {
		return p, nil
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return p, err
	}
	if !s.own || p.cgroup == "" {
		return p, nil
	}
	return p, p.delegate()
}

// delegate gives the user the tree, as systemd does it, with a cgroup in it for
// the user's programs: cgroups(7).
func (p place) delegate() error {
	if err := os.Mkdir(p.callers(), 0o755); err != nil {
		return err
	}
	for _, dir := range []string{p.cgroup, p.callers()} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, f), p.uid, p.uid); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p place) callers() string { return filepath.Join(p.cgroup, "callers") }

// runAs has a command run as the user. Where the service is the user's own,
// which may move only what is in its part of the tree, it is started in there.
func (p place) runAs(c *exec.Cmd) (close func(), err error) {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Credential = p.credential()
	if !p.own || p.cgroup == "" {
		return func() {}, nil
	}
	d, err := os.Open(p.callers())
	if err != nil {
		return nil, err
	}
	c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(d.Fd())
	return func() { d.Close() }, nil
}

// wrapper writes, for scripts, a program pinfold into dir that runs the real one
// as runAs does.
func (p place) wrapper(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := "#!/bin/sh\n"
	if p.own && p.cgroup != "" {
		text += fmt.Sprintf("echo $$ >'%s/cgroup.procs'\n", p.callers())
	}
	text += fmt.Sprintf("exec setpriv --reuid %d --regid %d --clear-groups '%s/pinfold' \"$@\"\n", p.uid, p.uid, p.bin)
	return os.WriteFile(filepath.Join(dir, "pinfold"), []byte(text), 0o755)
}

// serveArgs are the words after pinfold that start the service.
func (p place) serveArgs() []string {
	args := []string{"serve", "--runtime-dir", p.dir + "/run", "--state-dir", p.dir + "/state", "--init", filepath.Join(p.bin, initName),
		"--grade", p.grade, "--log-level", "debug"}
	if p.cgroup != "" {
		args = append(args, "--cgroup-parent", p.cgroup)
	}
	return args
}

// managerEnv is what a user's program finds its service manager by.
func managerEnv() (env []string) {
	for _, name := range []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// left are the cgroups of turns that are still there when the service has gone.
func (p place) left() (left []string) {
	if p.cgroup != "" {
		// The service's own directory stays, the turns' must not.
		for _, dir := range removeCgroup(p.cgroup) {
			if rel, _ := filepath.Rel(p.cgroup, dir); strings.Contains(rel, "/") {
				left = append(left, rel)
			}
		}
		return left
	}
	m, err := cgroup.FindMount()
	if err != nil {
		return []string{err.Error()}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left = guard.Scopes(m.Path)
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// An ordinary user, of root's service and of one of their own, types what the
// other tests have root type.
func TestSettings(t *testing.T) {
	if testing.Short() || os.Getenv("PINFOLD_TEST_UID")+os.Getenv("PINFOLD_TEST_GRADE") != "" {
		t.Skip("it runs the tests in other settings, unless one was chosen already")
	}
	if f := lacks("root", "cgroup2", "bash", "setpriv"); f != "" {
		t.Skip("this host has no " + f)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][]string{"root's service": nil, "own service": {"PINFOLD_TEST_OWN=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// What runs long for a reason that is the same in every setting is left out.
			cmd := exec.Command("/proc/self/exe", "-test.v", "-test.timeout=15m", "-test.skip=FastCommands|WhenTheServiceGoes|TestHuman|TestRender",
				"-test.run=^Test(InPlace|Run|TTY|Attach|Stop).*$|^TestScripts$/^(run|run_options|run_places|run_signals|run_leftovers|logs|turn|abandon)$")
			cmd.Env = append(append(os.Environ(), "PINFOLD_TEST_UID="+nobody.Uid), env...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			runtime.LockOSThread() // see start of service
			defer runtime.UnlockOSThread()
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			for _, want := range []string{"TestInPlaceServerOverPipes", "TestStopAndGoOn", "TestScripts/run_options"} {
				if !slices.ContainsFunc(strings.Split(out.String(), "\n"), func(l string) bool { return strings.Contains(l, "--- PASS: "+want) }) {
					t.Errorf("%s did not pass:\n%s", want, &out)
				}
			}
		})
	}
}
