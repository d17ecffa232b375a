//go:build linux

package inspect

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

func noContext() context.Context { return context.Background() }

// space makes a workspace with a file, and one whose name begins as its does.
func space(t *testing.T) (dir, beside string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{top + "/ws/sub", top + "/ws2/sub", top + "/mnt"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{top + "/ws/sub/a file (deleted)", top + "/ws2/sub/file"} {
		if err := os.WriteFile(f, make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return top + "/ws", top + "/ws2"
}

func of(t *testing.T, dir string, pid int) []Use {
	t.Helper()
	u, err := NewUses(dir)
	if err != nil {
		t.Fatal(err)
	}
	uses, err := u.Of(t.Context(), handle(t, pid))
	if err != nil {
		t.Fatal(err)
	}
	return uses
}

func TestUses(t *testing.T) {
	systest.Root(t)
	dir, beside := space(t)
	file := dir + "/sub/a file (deleted)"
	for how, path := range map[string]string{"cwd": dir + "/sub", "open": file, "map": file, "root": dir} {
		p := systest.Start(t, suite.Command(t, "user", how, path))
		p.Line(t)
		uses := of(t, dir, p.PID())
		if !slices.Contains(uses, Use{how, path}) {
			t.Errorf("%s %s: %v", how, path, uses)
		}
		if got := of(t, filepath.Dir(dir), p.PID()); len(got) < len(uses) {
			t.Errorf("%s: the directory above has %v", how, got)
		}
		if got := of(t, "/", p.PID()); len(got) < 3 {
			t.Errorf("%s: / has %v", how, got)
		}
		if got := of(t, beside, p.PID()); len(got) > 0 {
			t.Errorf("%s: %s has %v", how, beside, got)
		}
		h := handle(t, p.PID())
		p.End()
		if got, err := mustUses(t, dir).Of(t.Context(), h); err != nil || len(got) > 0 {
			t.Errorf("%s: of one that has ended %v, %v", how, got, err)
		}
	}
}

func mustUses(t *testing.T, dir string) *Uses {
	t.Helper()
	u, err := NewUses(dir)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A file that was removed still is below where it was.
func TestUsesDeleted(t *testing.T) {
	dir, _ := space(t)
	path := dir + "/sub/gone"
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, suite.Command(t, "user", "deleted", path))
	p.Line(t)
	if uses := of(t, dir, p.PID()); !slices.Equal(uses, []Use{{"open", path + " (deleted)"}}) {
		t.Errorf("%v", uses)
	}
}

// Directories may be called what the kernel adds to names, or makes of them.
func TestUsesOddNames(t *testing.T) {
	ws, _ := space(t)
	for _, name := range []string{"x (deleted)", " (deleted)", `a\012b`, "a\nb", "a\\b", "\xff"} {
		dir := ws + "/" + name
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/file", make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
		for how, path := range map[string]string{"cwd": dir, "open": dir + "/file", "map": dir + "/file"} {
			p := systest.Start(t, suite.Command(t, "user", how, path))
			p.Line(t)
			if uses := of(t, dir, p.PID()); !slices.Contains(uses, Use{how, path}) {
				t.Errorf("%s of %q: %q", how, name, uses)
			}
			p.End()
		}
		p := systest.Start(t, suite.Command(t, "user", "cwd", dir))
		p.Line(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if uses := of(t, dir, p.PID()); !slices.Equal(uses, []Use{{"cwd", dir + " (deleted)"}}) {
			t.Errorf("%q, which is gone: %q", name, uses)
		}
	}
}

// A program that runs from the directory uses it.
func TestUsesProgram(t *testing.T) {
	dir, beside := space(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/prog", b, 0o755); err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, exec.Command(dir+"/prog", "1000"))
	systest.Until(t, "its exec", func() bool { return slices.Contains(of(t, dir, p.PID()), Use{"exe", dir + "/prog"}) })
	if got := of(t, beside, p.PID()); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// A thread may have a working directory that its process has not.
func TestUsesOfThreads(t *testing.T) {
	dir, beside := space(t)
	p := systest.Start(t, suite.Command(t, "thread", dir))
	p.Line(t)
	if uses := of(t, dir, p.PID()); !slices.Equal(uses, []Use{{"cwd", dir}}) {
		t.Errorf("%v", uses)
	}
	h := systest.Start(t, suite.Command(t, "headless", beside))
	h.Line(t)
	systest.Until(t, "the end of its main thread", func() bool {
		b, err := sys.ProcFile(h.PID(), "stat")
		return err == nil && dead(b)
	})
	if uses := of(t, beside, h.PID()); !slices.Contains(uses, Use{"cwd", beside}) {
		t.Errorf("%v", uses)
	}
}

// elsewhere is the helper in a mount namespace of its own. Its standard error is a
// pipe: if ours is a file, that would be on a mount which is hidden from there.
func elsewhere(t *testing.T, dir, place string, how ...string) *exec.Cmd {
	t.Helper()
	cmd := suite.Command(t, "elsewhere", append([]string{dir, place, "sub/file"}, how...)...)
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	cmd.Stderr = struct{ io.Writer }{os.Stderr}
	return cmd
}

// A process in another mount namespace has another name for the same place.
func TestUsesElsewhere(t *testing.T) {
	systest.Root(t)
	dir, beside := space(t)
	place := filepath.Dir(dir) + "/mnt"
	p := systest.Start(t, elsewhere(t, beside, place))
	p.Line(t)
	pid := p.PID()
	if uses := of(t, beside, pid); !slices.Contains(uses, Use{"open", place + "/sub/file"}) {
		t.Errorf("%v", uses)
	}
	if uses := of(t, dir, pid); len(uses) > 0 {
		t.Errorf("the other one: %v", uses)
	}
	if uses := of(t, place, pid); len(uses) > 0 { // to us that is an empty directory
		t.Errorf("our own place: %v", uses)
	}
}

// A process whose root is elsewhere, too, is seen; one that uses what is mounted
// nowhere any more is not, and that is said, but of the file system only that it
// is on.
func TestUsesHidden(t *testing.T) {
	systest.Root(t)
	dir, beside := space(t)
	other := t.TempDir()
	if err := syscall.Mount("none", other, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(other, syscall.MNT_DETACH) })
	for _, how := range []string{"", "root", "above", "detached", "map", "detached map"} {
		p := systest.Start(t, elsewhere(t, beside, filepath.Dir(dir)+"/mnt", how))
		p.Line(t)
		uses, err := mustUses(t, beside).Of(t.Context(), handle(t, p.PID()))
		hidden, elsewhere := strings.HasPrefix(how, "detached"), how == "root" || how == "above" // its program is out of its own sight then
		if hidden != (len(uses) == 0) || (hidden || elsewhere) != (err != nil) {
			t.Errorf("%q: %v (%v)", how, uses, err)
		}
		if uses, err := mustUses(t, other).Of(t.Context(), handle(t, p.PID())); len(uses) > 0 || err != nil {
			t.Errorf("%q, of another file system: %v (%v)", how, uses, err)
		}
		p.End()
	}
}

// What may not be looked at is said, not passed over.
func TestUsesUnseen(t *testing.T) {
	systest.Root(t)
	dir, _ := space(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	p := systest.Start(t, suite.Command(t, "user", "cwd", dir))
	p.Line(t)
	cmd := suite.Command(t, "nobody", strconv.Itoa(p.PID()), dir)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	q := systest.Start(t, readable(t, cmd))
	if got := q.Line(t); !strings.HasPrefix(got, "0 read ") || !strings.Contains(got, "permission denied") {
		t.Errorf("nobody sees: %s", got)
	}
}

// readable has a command run a copy of this binary that all may run.
func readable(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "pinfold-inspect")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile(cmd.Path)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(dir+"/test", b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Dir = dir+"/test", "/"
	return cmd
}
