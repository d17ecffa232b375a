package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/ownfile"
)

// strayTime bounds the ending of one stray.
const strayTime = 5 * time.Second

// turnDirs are the names that turns' cgroups have, below our own directory or
// among the scopes.
var turnDirs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:pinfold-)?([0-9a-f]{16})(?:\.scope)?$`) })

// EndStrays ends what bears this instance's mark and is none of the known
// turns: what a service left that was killed while it began a turn, or while
// it tested the host. Every one is reported; whatever bears another mark is left
// alone, and so is what bears none, unless it is empty and in our own directory.
func (h *Host) EndStrays(ctx context.Context, known func(turn string) bool) []error {
	var out []error
	for _, place := range h.places() {
		entries, err := os.ReadDir(place)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			out = append(out, fmt.Errorf("look for strays: %w", err))
		}
		for _, e := range entries {
			m := turnDirs().FindStringSubmatch(e.Name())
			if m == nil || known(m[1]) {
				continue
			}
			if err := h.endStray(ctx, filepath.Join(place, e.Name()), m[1]); err != nil {
				out = append(out, err)
			}
		}
	}
	return append(out, h.sweepDirs(ctx, known)...)
}

// sweepDirs removes the directories of turns that never had a record. One whose
// keeper still listens is left: that keeper has no turn, and goes by itself.
func (h *Host) sweepDirs(ctx context.Context, known func(turn string) bool) (out []error) {
	all := filepath.Join(h.cfg.RuntimeDir, "turns")
	entries, err := os.ReadDir(all)
	if err != nil && !os.IsNotExist(err) {
		out = append(out, fmt.Errorf("look for directories without a record: %w", err))
	}
	for _, e := range entries {
		if !turnDirs().MatchString(e.Name()) || known(e.Name()) {
			continue
		}
		dir := filepath.Join(all, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "record.json")); err == nil || listens(ctx, dir) {
			continue
		}
		fault.Point("dir.swept")
		if err := os.RemoveAll(dir); err != nil {
			out = append(out, fmt.Errorf("remove the directory of a turn that did not begin: %w", err))
		}
	}
	return out
}

// listens tells whether a keeper may still be there.
func listens(ctx context.Context, dir string) bool {
	d, err := ownfile.Dir(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socketPath(d))
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT)
}

// endStray ends one, if it is ours; the error says that it was, and how it went.
func (h *Host) endStray(ctx context.Context, path, turn string) error {
	d, err := cgroup.Open(path)
	if err != nil {
		return nil // gone meanwhile
	}
	defer d.Close()
	v := h.whose(d)
	if v == api.VerdictUnverifiable && (h.inOwn(path) || h.remade(ctx, d)) {
		_ = os.Remove(path) // made and not marked yet: rmdir takes it only if nobody is in it
	}
	if containment.RuleFor(containment.FoundStray, v).Do != containment.DeedEnd {
		return nil
	}
	if live, err := d.Populated(); err == nil && !live {
		_ = d.Remove(ctx) // what is left of the self-test, say; systemd may be at it, too
		return nil
	}
	if dir := runtimeDirOf(d, turn); dir != "" && isCopy(h.turnDir(turn), filepath.Join(dir, "turns", turn)) {
		return fmt.Errorf("left %s alone, which has our mark and a record in %s: one of the two directories is a copy, and has the other's mark", path, dir)
	}
	k, err := d.Kill(ctx, strayTime)
	fault.Point("stray.killed")
	switch {
	case err != nil:
		return fmt.Errorf("end the stray %s, which has our mark and no record: %w", path, err)
	case k.EmptyAt.IsZero():
		return fmt.Errorf("end the stray %s, which has our mark and no record: %d survivors", path, len(k.Survivors))
	}
	if err := d.Remove(ctx); err != nil {
		return fmt.Errorf("remove the stray %s, which had our mark and no record: %w", path, err)
	}
	return fmt.Errorf("ended the stray %s, which had our mark and no record: %d processes", path, k.Seen)
}

// remade tells whether a directory is one that systemd has made once more for a
// scope that is over, and forgotten: rmScope removes those, unless it is killed.
func (h *Host) remade(ctx context.Context, d *cgroup.Dir) bool {
	unit := filepath.Base(d.Path())
	if h.mgr == nil || h.inOwn(d.Path()) || !strings.HasSuffix(unit, ".scope") {
		return false
	}
	live, err := d.Populated()
	return err == nil && !live && h.mgr.Over(ctx, unit)
}

// whose is the verdict on a cgroup that no record names, by its mark.
func (h *Host) whose(d *cgroup.Dir) api.Verdict {
	nonce, err := d.Nonce()
	switch {
	case err != nil:
		return api.VerdictUnverifiable
	case strings.HasPrefix(nonce, h.instance+"."):
		return api.VerdictOwned
	}
	return api.VerdictForeign
}

// inOwn tells whether a path is directly in our own directory.
func (h *Host) inOwn(path string) bool {
	return h.parent != nil && filepath.Dir(path) == h.parent.Path()
}
