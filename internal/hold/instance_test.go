package hold

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/ownfile"
)

const someMark = "00c0ffee"

// record writes what is looked at of a record.
func record(t *testing.T, dir, turn, mark, where string) {
	t.Helper()
	d := filepath.Join(dir, "turns", turn)
	b := `{"schema":1,"facts":{"nonce":"` + mark + `.0123","dir":"` + where + `"}}` + "\n" + `{"crc32c":"00000000"}`
	if err := errors.Join(os.MkdirAll(d, 0o700), os.WriteFile(filepath.Join(d, "record.json"), []byte(b), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	time.Sleep(20 * time.Millisecond) // file systems' clocks tick: its birth is to be another
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// marked is a runtime directory with a mark.
func marked(t *testing.T) (dir, mark string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	in, err := openInstance(dir, "b1")
	if err != nil || len(in.notes) > 0 || !instanceName().MatchString(in.mark) {
		t.Fatal(in, err)
	}
	return dir, in.mark
}

// The mark stays with its directory, and with nothing else: whatever becomes of
// one of its files, wherever it is moved, and not in a copy.
func TestInstance(t *testing.T) {
	kept := func(dir, mark, boot string) func(t *testing.T, note string) {
		return func(t *testing.T, note string) {
			t.Helper()
			in, err := openInstance(dir, boot)
			if err != nil || in.mark != mark {
				t.Errorf("%+v, it was %s (%v)", in, mark, err)
			}
			if told := strings.Join(in.notes, "; "); !strings.Contains(told, note) || (note == "") != (told == "") {
				t.Errorf("told %q, want %q", told, note)
			}
			if in, err := openInstance(dir, boot); err != nil || in.mark != mark || len(in.notes) > 0 {
				t.Errorf("the next time %+v (%v)", in, err)
			}
		}
	}
	for name, do := range map[string]struct {
		damage func(dir string) error
		note   string
	}{
		"nothing":             {func(string) error { return nil }, ""},
		"mark emptied":        {func(d string) error { return os.Truncate(d+"/instance", 0) }, "was lost"},
		"mark removed":        {func(d string) error { return os.Remove(d + "/instance") }, "was lost"},
		"mark of another":     {func(d string) error { return os.WriteFile(d+"/instance", []byte(someMark), 0o600) }, "was another's"},
		"home emptied":        {func(d string) error { return os.Truncate(d+"/instance.json", 0) }, "not used"},
		"home cut":            {func(d string) error { return os.Truncate(d+"/instance.json", 20) }, "not used"},
		"as before":           {func(d string) error { return os.Remove(d + "/instance.json") }, ""},
		"home newer":          {func(d string) error { return os.WriteFile(d+"/instance.json", []byte(`{"schema":99}`), 0o600) }, "newer"},
		"mark a directory":    {func(d string) error { return errors.Join(os.Remove(d+"/instance"), os.Mkdir(d+"/instance", 0o700)) }, "a directory is there"},
		"others may write it": {func(d string) error { return os.Chmod(d+"/instance", 0o666) }, "others may write"},
		"mark a fifo": {func(d string) error {
			return errors.Join(os.Remove(d+"/instance"), syscall.Mkfifo(d+"/instance", 0o600))
		}, "FIFO"},
		"home a fifo": {func(d string) error {
			return errors.Join(os.Remove(d+"/instance.json"), syscall.Mkfifo(d+"/instance.json", 0o600))
		}, "FIFO"},
		"home a socket": {func(d string) error {
			l, err := net.Listen("unix", d+"/s")
			if err == nil {
				defer l.Close()
				err = os.Rename(d+"/s", d+"/instance.json")
			}
			return err
		}, "socket"},
		"home a link": {func(d string) error {
			return errors.Join(os.Rename(d+"/instance.json", d+"/aside"), os.Symlink(d+"/aside", d+"/instance.json"))
		}, "a link is there"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, mark := marked(t)
			if err := do.damage(dir); err != nil {
				t.Fatal(err)
			}
			if name == "mark a directory" || name == "home newer" { // told until it is away
				if in, err := openInstance(dir, "b1"); err != nil || in.mark != mark || !strings.Contains(strings.Join(in.notes, ";"), do.note) {
					t.Errorf("%+v (%v)", in, err)
				}
				return
			}
			kept(dir, mark, "b1")(t, do.note)
		})
	}
	t.Run("moved", func(t *testing.T) {
		dir, mark := marked(t)
		if err := os.Rename(dir, dir+".moved"); err != nil {
			t.Fatal(err)
		}
		kept(dir+".moved", mark, "b1")(t, "")
	})
	t.Run("another boot", func(t *testing.T) {
		dir, mark := marked(t)
		kept(dir, mark, "b2")(t, "")
	})
}

// A copy has a mark of its own, whatever it is a copy of; the original keeps its.
func TestCopiedInstance(t *testing.T) {
	check := func(t *testing.T, copied, original, mark, boot string) {
		t.Helper()
		in, err := openInstance(copied, boot)
		if err != nil || in.mark == mark {
			t.Errorf("the copy: %+v, %v", in, err)
		}
		if told := strings.Join(in.notes, ";"); boot == "b1" && !(strings.Contains(told, mark) && strings.Contains(told, "remove "+copied+"/instance.json")) {
			t.Errorf("told %q", told)
		}
		if in, err = openInstance(original, "b1"); err != nil || in.mark != mark || len(in.notes) > 0 {
			t.Errorf("the original: %+v, %v", in, err)
		}
	}
	t.Run("beside", func(t *testing.T) {
		dir, mark := marked(t)
		copyTree(t, dir, dir+".copy")
		check(t, dir+".copy", dir, mark, "b1")
	})
	t.Run("restored in another boot", func(t *testing.T) {
		dir, mark := marked(t)
		copyTree(t, dir, dir+".copy")
		check(t, dir+".copy", dir, mark, "b2")
	})
	t.Run("in its place", func(t *testing.T) {
		dir, mark := marked(t)
		if err := os.Rename(dir, dir+".original"); err != nil {
			t.Fatal(err)
		}
		copyTree(t, dir+".original", dir)
		check(t, dir, dir+".original", mark, "b1")
	})
	t.Run("of an earlier version", func(t *testing.T) {
		dir, mark := marked(t)
		const turn = "00000000000000aa"
		record(t, dir, turn, mark, dir+"/turns/"+turn)
		if err := os.Remove(dir + "/instance.json"); err != nil {
			t.Fatal(err)
		}
		copyTree(t, dir, dir+".copy")
		check(t, dir+".copy", dir, mark, "b1")
	})
	t.Run("taken over, as the note says", func(t *testing.T) {
		dir, mark := marked(t)
		copyTree(t, dir, dir+".copy")
		check(t, dir+".copy", dir, mark, "b1")
		c := dir + ".copy"
		if err := errors.Join(os.Remove(c+"/instance.json"), os.WriteFile(c+"/instance", []byte(mark+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if in, err := openInstance(c, "b1"); err != nil || in.mark != mark {
			t.Errorf("%+v %v", in, err)
		}
	})
}

// With both files lost the records tell, if they were written here and agree.
func TestInstanceOfRecords(t *testing.T) {
	const a, b = "00000000000000aa", "00000000000000bb"
	for name, c := range map[string]struct {
		put  func(t *testing.T, dir string)
		want bool
	}{
		"one": {func(t *testing.T, d string) { record(t, d, a, someMark, d+"/turns/"+a) }, true},
		"two agree": {func(t *testing.T, d string) {
			record(t, d, a, someMark, d+"/turns/"+a)
			record(t, d, b, someMark, d+"/turns/"+b)
		}, true},
		"two do not": {func(t *testing.T, d string) {
			record(t, d, a, someMark, d+"/turns/"+a)
			record(t, d, b, "11c0ffee", d+"/turns/"+b)
		}, false},
		"copied":  {func(t *testing.T, d string) { record(t, d, a, someMark, "/elsewhere/turns/"+a) }, false},
		"no mark": {func(t *testing.T, d string) { record(t, d, a, "xx", d+"/turns/"+a) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.put(t, dir)
			in, err := openInstance(dir, "b1")
			if err != nil || (in.mark == someMark) != c.want {
				t.Errorf("%+v %v", in, err)
			}
		})
	}
}

// A directory that takes nothing is refused when it has no mark, and used when it
// has one.
func TestInstanceThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/instance/in", 0o700), os.Mkdir(dir+"/instance.json", 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := openInstance(dir, "b1"); !errors.Is(err, ownfile.ErrStrange) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(os.RemoveAll(dir+"/instance"), os.WriteFile(dir+"/instance", []byte(someMark), 0o600)); err != nil {
		t.Fatal(err)
	}
	if in, err := openInstance(dir, "b1"); err != nil || in.mark != someMark || len(in.notes) == 0 {
		t.Errorf("%+v %v", in, err)
	}
}
