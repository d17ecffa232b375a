package hold

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"pinfold.dev/cgroup"
)

// strayTime bounds the ending of one stray.
const strayTime = 5 * time.Second

// turnDirs are the names that turns' cgroups have, below our own directory or
// among the scopes.
var turnDirs = regexp.MustCompile(`^(?:pinfold-)?([0-9a-f]{16})(?:\.scope)?$`)

// EndStrays ends what bears this instance's mark and is none of the known
// turns: what a service left that was killed while it began a turn, or while
// it tested the host. Every one is reported; whatever bears another mark, or
// none, is left alone.
func (h *Host) EndStrays(ctx context.Context, known func(turn string) bool) []error {
	var out []error
	h.mu.Lock()
	places := []string{h.scopes}
	h.mu.Unlock()
	if h.parent != nil {
		places = append(places, h.parent.Path())
	}
	for _, place := range places {
		entries, err := os.ReadDir(place)
		if place == "" || os.IsNotExist(err) {
			continue
		}
		if err != nil {
			out = append(out, fmt.Errorf("look for strays: %w", err))
		}
		for _, e := range entries {
			m := turnDirs.FindStringSubmatch(e.Name())
			if m == nil || known(m[1]) {
				continue
			}
			if err := h.endStray(ctx, filepath.Join(place, e.Name())); err != nil {
				out = append(out, err)
			}
		}
	}
	return out
}

// endStray ends one, if it is ours; the error says that it was, and how it went.
func (h *Host) endStray(ctx context.Context, path string) error {
	d, err := cgroup.Open(path)
	if err != nil {
		return nil // gone meanwhile
	}
	defer d.Close()
	nonce, err := d.Nonce()
	if err != nil || !strings.HasPrefix(nonce, h.instance+".") {
		return nil
	}
	k, err := d.Kill(ctx, strayTime)
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
