package hold

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/ownfile"
	"pinfold.dev/internal/sys"
)

// instance is the random mark of what was begun from one runtime directory: it
// begins the nonce of each cgroup. It is no hash of the path: services in two
// mount namespaces may share one path and one cgroup tree, and must not take
// each other's turns for strays. It is bound to the directory itself, so that a
// copy is another instance.
type instance struct {
	mark  string
	place sys.Place // of the directory
	notes []string  // what was found, for people
}

// The files that have it: the mark alone, which earlier versions know too, and
// whose it is. Either is enough where the other is lost.
const (
	markFile = "instance"
	homeFile = "instance.json"
)

var instanceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{8}$`) })

// home is which directory a mark belongs to.
type home struct {
	Schema int       `json:"schema"`
	Mark   string    `json:"mark"`
	Boot   string    `json:"boot,omitempty"`
	Place  sys.Place `json:"place"`
}

const homeSchema = 1

// openInstance finds the mark of a runtime directory, or gives it one.
func openInstance(dir, boot string) (in instance, err error) {
	place, err := sys.PlaceOf(dir)
	if err != nil {
		return in, fmt.Errorf("name this instance: %w", err)
	}
	in.place = place
	said, serr := readMark(dir)
	h, herr := readHome(dir)
	note := func(format string, args ...any) { in.notes = append(in.notes, fmt.Sprintf(format, args...)) }
	for _, err := range []error{serr, herr} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			note("it is not used: %v", err)
		}
	}
	known := true
	switch {
	case herr == nil && h.Place.Same(place):
		in.mark = h.Mark
		if said != h.Mark {
			note("the file instance was lost, or was another's; %s has the mark %s", homeFile, h.Mark)
		}
	case herr == nil:
		in.mark, known = newMark(), false
		if h.Boot == boot {
			note("%s", copied(dir, h.Mark))
		}
	case serr == nil && ofOther(dir) != "":
		in.mark, known = newMark(), false
		note("%s", copied(dir, said))
	case serr == nil:
		in.mark = said // of an earlier version, which bound it to nothing
	default:
		if in.mark = markOfRecords(dir); in.mark != "" {
			note("the files instance and %s were lost; all records are of the mark %s", homeFile, in.mark)
		} else {
			in.mark, known = newMark(), false
		}
	}
	if err := in.write(dir, boot, place); err != nil && !known {
		return in, fmt.Errorf("name this instance: %w", err)
	} else if err != nil {
		note("the mark %s is not written down as it should be: %v", in.mark, err)
	}
	return in, nil
}

func newMark() string {
	var raw [4]byte
	rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}

// copied says what it means that a directory is not the one that its mark was made
// for, and how the mark is moved here all the same.
func copied(dir, mark string) string {
	return fmt.Sprintf("%s is not the directory that its mark %s was made for, but a copy, or was moved here from another file system: "+
		"turns that are named in it and live are left to the service of the original; "+
		"if there is none any more, stop this service, remove %s, write %s into %s, and start it again",
		dir, mark, filepath.Join(dir, homeFile), mark, filepath.Join(dir, markFile))
}

// readMark reads the file that has the mark alone.
func readMark(dir string) (string, error) {
	path := filepath.Join(dir, markFile)
	b, err := ownfile.Read(path, 64)
	if err != nil {
		return "", err
	}
	if b = bytes.TrimSpace(b); !instanceName().Match(b) {
		return "", fmt.Errorf("read %s: no mark is in it", path)
	}
	return string(b), nil
}

func readHome(dir string) (h home, err error) {
	path := filepath.Join(dir, homeFile)
	b, err := ownfile.Read(path, 4096)
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	switch {
	case err != nil:
		return h, err
	case h.Schema > homeSchema:
		return h, fmt.Errorf("read %s: it has schema %d, this service knows %d: %w", path, h.Schema, homeSchema, containment.ErrNewer)
	case !instanceName().MatchString(h.Mark) || h.Place.Ino == 0:
		return h, fmt.Errorf("read %s: no mark is in it", path)
	}
	return h, nil
}

// write has both files say what is so.
func (in instance) write(dir, boot string, place sys.Place) error {
	want := home{Schema: homeSchema, Mark: in.mark, Boot: boot, Place: place}
	h, err := readHome(dir)
	if !errors.Is(err, containment.ErrNewer) && (err != nil || h != want) {
		b, err := json.Marshal(want)
		if err == nil {
			err = ownfile.Replace(filepath.Join(dir, homeFile), append(b, '\n'), true)
		}
		if err != nil {
			return err
		}
	}
	if said, err := readMark(dir); err == nil && said == in.mark {
		return nil
	}
	return ownfile.Replace(filepath.Join(dir, markFile), []byte(in.mark), true)
}

// maxScanned bounds the record that is read for its mark.
const maxScanned = 16 << 20

// eachFacts reads what records say of where they are, until fn says that it is
// enough.
func eachFacts(dir string, fn func(own string, f containment.Facts) (more bool)) {
	paths, _ := filepath.Glob(filepath.Join(dir, "turns", "*", "record.json"))
	for _, path := range paths {
		b, err := ownfile.Read(path, maxScanned)
		var r struct {
			Facts containment.Facts `json:"facts"`
		}
		if err != nil || json.NewDecoder(bytes.NewReader(b)).Decode(&r) != nil {
			continue
		}
		if !fn(filepath.Dir(path), r.Facts) {
			return
		}
	}
}

// markOfRecords is the mark that all records of a directory have which were
// written in it; empty: there is none, or more than one.
func markOfRecords(dir string) (mark string) {
	eachFacts(dir, func(own string, f containment.Facts) bool {
		if f.Dir != own {
			return true
		}
		m, ok := markOf(f.Nonce)
		if !ok || mark != "" && m != mark {
			mark = ""
			return false
		}
		mark = m
		return true
	})
	return mark
}

// ofOther is the directory of which a record here is a copy, where that is still
// there.
func ofOther(dir string) (original string) {
	eachFacts(dir, func(own string, f containment.Facts) bool {
		if isCopy(own, f.Dir) {
			original = f.Dir
		}
		return original == "" && f.Dir != own // one that was written here is enough
	})
	return original
}

// isCopy tells whether a turn's directory is a copy of the one that its record
// names: that is another, and has a record.
func isCopy(own, named string) bool {
	if named == own || named == "" {
		return false
	}
	there, err := os.Stat(named)
	if err != nil {
		return false // it was moved
	}
	if here, err := os.Stat(own); err == nil && os.SameFile(here, there) {
		return false
	}
	_, err = os.Lstat(filepath.Join(named, "record.json"))
	return err == nil
}

// markOf is the mark in a nonce.
func markOf(nonce string) (string, bool) {
	m, _, ok := strings.Cut(nonce, ".")
	return m, ok && instanceName().MatchString(m)
}

// another says why a record is none of this instance's: it has another's mark, or
// was copied here from a directory that is still there. Nil: it is ours.
func (h *Host) another(turn string, facts containment.Facts) error {
	if m, ok := markOf(facts.Nonce); ok && m != h.instance {
		return fmt.Errorf("it is of another instance: it has the mark %s, this directory has %s; it is left alone, and ended by the service of that mark", m, h.instance)
	}
	if !isCopy(h.turnDir(turn), facts.Dir) {
		return nil
	}
	return fmt.Errorf("it is of another instance: its record is a copy of that in %s; it is left alone, and ended by the service of that directory", facts.Dir)
}

func (h *Host) turnDir(turn string) string { return filepath.Join(h.cfg.RuntimeDir, "turns", turn) }

// leaveToOther is what becomes of another instance's record: as long as its cgroup
// lives it is shown, and nothing of it is touched.
func leaveToOther(facts containment.Facts, why error) (api.Verdict, error) {
	if facts.Cgroup == "" {
		return api.VerdictGone, nil // it had not begun, and its keeper goes by itself
	}
	d, v, err := cgroup.OpenVerified(facts.Cgroup, facts.CgroupID, facts.Nonce)
	if v == api.VerdictOwned {
		_ = d.Close()
		return api.VerdictUnverifiable, why
	}
	return v, err
}
