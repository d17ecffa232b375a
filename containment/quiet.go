package containment

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// mostUses bounds a list of uses; a directory with one is not quiet.
const mostUses = 1000

// mostPath is the length of a path that the kernel takes, PATH_MAX in path_resolution(7).
const mostPath = 4095

// Quiet tells whether no process of any turn or job uses a directory; owner
// nil: of everybody's.
func (m *Manager) Quiet(ctx context.Context, owner *uint32, path string) (api.Quiet, error) {
	q := api.Quiet{Path: path, Uses: []api.Use{}, Unseen: []string{}, Grade: m.Grade()}
	if !filepath.IsAbs(path) {
		return q, api.Errorf(api.CodeBadRequest, "path %q is not absolute", path)
	}
	switch { // no process has anything there: that would be no answer
	case strings.Contains(path, "\x00"):
		return q, api.Errorf(api.CodeBadRequest, "path %q is no path: it contains a zero byte", path)
	case len(path) > mostPath:
		return q, api.Errorf(api.CodeBadRequest, "path is %d bytes long: no system call takes more than %d", len(path), mostPath)
	}
	q.Path = filepath.Clean(path) // as it is shown: what .. is, a link decides
	for _, t := range m.all() {
		if owner != nil && *owner != t.owner {
			continue
		}
		t.mu.Lock()
		h, s := t.hold, t.view.State
		t.mu.Unlock()
		if h == nil {
			if !s.Terminal() {
				q.Unseen = append(q.Unseen, fmt.Sprintf("turn %s cannot be verified", t.id))
			}
			continue
		}
		uses, unseen, err := h.Uses(ctx, path)
		if err != nil {
			unseen = append(unseen, err.Error())
		}
		for _, u := range unseen {
			q.Unseen = append(q.Unseen, fmt.Sprintf("turn %s: %s", t.id, u))
		}
		q.Uses = append(q.Uses, t.named(uses)...)
		if err := ctx.Err(); err != nil {
			return q, asAPI(err, api.CodeTimeout, "look who uses "+q.Path)
		}
	}
	slices.SortFunc(q.Uses, func(a, b api.Use) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.PID, b.PID), cmp.Compare(a.How, b.How), cmp.Compare(a.Path, b.Path))
	})
	q.Quiet = len(q.Uses) == 0 && len(q.Unseen) == 0
	q.Uses = q.Uses[:min(len(q.Uses), mostUses)]
	return q, nil
}

// named enters whose uses they are.
func (t *turn) named(uses []api.Use) []api.Use {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range uses {
		uses[i].Turn = t.id
		if j := t.job(uses[i].Process); j != nil && j.EndedAt == nil {
			uses[i].Job = jobID(t.id, j.Process)
		}
	}
	return uses
}
