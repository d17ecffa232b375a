package pidfd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// rung opens the recorded processes (JSON in args[1:]) as a kernel of args[0]
// would have it, and says of each the verdict and the evidence.
func rung(args []string) error {
	var err error
	switch args[0] {
	case "6.18":
	case "6.9": // no file handles
		err = systest.Refuse(syscall.EOPNOTSUPP, "name_to_handle_at")
	case "filter": // a container's filter, which knows of them
		err = systest.Refuse(syscall.EPERM, "open_by_handle_at")
	case "6.1":
		err = systest.LikeOld(false)
	}
	if err != nil {
		return err
	}
	o := NewOpener()
	for _, text := range args[1:] {
		var rec api.Identity
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			return err
		}
		h, v, why := o.Open(rec)
		if h != nil {
			h.Close()
		}
		fmt.Printf("%s: %s\n", v, strings.Join(why, ", "))
	}
	return nil
}

// TestRungs: a recorded process is found again, and one that is gone is not, on
// each kernel by the best that it has, and the evidence says by what.
func TestRungs(t *testing.T) {
	p, ended := sleeper(t), sleeper(t)
	identity := func(pid int) string {
		id, err := open(t, pid).Identity()
		if err != nil {
			t.Fatal(err)
		}
		if id.Ino == 0 {
			systest.Feature(t, "pidfs", "6.9", ErrNotSupported)
		}
		b, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	lives, gone := identity(p.PID()), identity(ended.PID())
	ended.End()
	for kernel, by := range map[string]Rung{"6.18": ByHandle, "6.9": ByInode, "filter": ByInode, "6.1": ByTicks} {
		t.Run(kernel, func(t *testing.T) {
			h := systest.Start(t, suite.Command(t, "rung", kernel, lives, gone))
			if kernel == "6.18" {
				systest.Feature(t, "file handles of processes", "6.14", NewOpener().handles)
			}
			if got := h.Line(t); !strings.HasPrefix(got, "owned: looked for by "+string(by)) {
				t.Errorf("alive: %s; want by %s", got, by)
			}
			if got := h.Line(t); !strings.HasPrefix(got, "gone: looked for by ") {
				t.Errorf("gone: %s", got)
			}
		})
	}
}

// TestReopenAcrossNamespaces: a process that was recorded in a PID namespace below
// ours is found by its handle, under the number that it has here; the other way
// round it cannot be told.
func TestReopenAcrossNamespaces(t *testing.T) {
	systest.Root(t)
	systest.Feature(t, "file handles of processes", "6.14", NewOpener().handles)
	cmd := suite.Command(t, "below")
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	p := systest.Start(t, cmd)
	var rec api.Identity
	if err := json.Unmarshal([]byte(p.Line(t)), &rec); err != nil {
		t.Fatal(err)
	}
	h, v, why := OpenVerified(rec)
	if v != api.VerdictOwned || h == nil {
		t.Fatalf("%s, %q", v, why)
	}
	defer h.Close()
	if h.PID() == rec.PID {
		t.Errorf("its number is %d there, and here", h.PID())
	}
	if err := h.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if got := p.Line(t); got != "signal: terminated" {
		t.Errorf("it ended of %q", got)
	}
	rec.Ino = 0
	if h, v, why := OpenVerified(rec); v != api.VerdictUnverifiable || h != nil {
		t.Errorf("without the inode: %s, %q", v, why)
	}
}

// below is init of a PID namespace, and says the identity of a child, and how it
// ended.
func below([]string) error {
	if err := ownProc(); err != nil {
		return err
	}
	x, err := startAs(0)
	if err != nil {
		return err
	}
	h, err := Open(x.Process.Pid)
	if err != nil {
		return err
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		return err
	}
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	fmt.Println(string(b))
	fmt.Println(x.Wait())
	return nil
}

// TestRecordThatContradictsItself: the inode of one process with the number of
// another is nobody's record.
func TestRecordThatContradictsItself(t *testing.T) {
	a := sleeper(t)
	rec, err := open(t, a.PID()).Identity()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(30 * time.Millisecond) // without an inode, before Linux 6.9, only another start tick tells them apart
	b := sleeper(t)
	rec.PID = b.PID()
	if h, v, why := OpenVerified(rec); v == api.VerdictOwned || v == api.VerdictGone || h != nil {
		t.Errorf("%s, %q", v, why)
	} else if Contradicts(why) != (v == api.VerdictUnverifiable) {
		t.Errorf("%s, but contradicts: %v, %q", v, Contradicts(why), why)
	}
	alive(t, a)
	alive(t, b)
}

// TestTableIsInTheDocs: docs/identity.md has the table as it is.
func TestTableIsInTheDocs(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, at := string(b), 0
	for _, row := range Table() {
		v := string(row.Verdict)
		if v == "" {
			v = "→ next"
		}
		line := fmt.Sprintf("\n| %s | %s |", row.When, v)
		i := strings.Index(text[at:], line)
		if i < 0 {
			t.Errorf("docs/identity.md has not, or not in its place:%s", line)
			continue
		}
		at += i
	}
}

func TestUnsupportedIsToldApart(t *testing.T) {
	err := error(&Unsupported{"a thing", "9.9", syscall.EINVAL})
	if !errors.Is(err, ErrNotSupported) || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "Linux 9.9") {
		t.Error(err)
	}
}

// BenchmarkOpen: finding recorded processes again, one alone and one of many, and
// one that is gone.
func BenchmarkOpen(b *testing.B) {
	rec, err := open(b, sleeper(b).PID()).Identity()
	if err != nil {
		b.Fatal(err)
	}
	gone := rec
	gone.Ino += 1 << 40
	o := NewOpener()
	for name, f := range map[string]func() (*Handle, api.Verdict, []string){
		"alone":    func() (*Handle, api.Verdict, []string) { return OpenVerified(rec) },
		"one-of":   func() (*Handle, api.Verdict, []string) { return o.Open(rec) },
		"recycled": func() (*Handle, api.Verdict, []string) { return o.Open(gone) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h, v, why := f()
				if (v == api.VerdictOwned) != (name != "recycled") {
					b.Fatal(v, why)
				}
				if h != nil {
					h.Close()
				}
			}
		})
	}
}
