package containment

import (
	"context"
	"errors"
	"testing"
	"time"

	"pinfold.dev/api"
)

// An ending tells by whom the turn was served where that was seen while the grace
// lasted. It never waits for that, and without a grace nobody looks.
func TestEndingTellsWhoServed(t *testing.T) {
	seen := []api.Served{{PID: 12, Comm: "gradle", Socket: "unix:/x", By: []api.Member{{PID: 34, Comm: "java"}}}}
	late := func(d time.Duration) func(context.Context) ([]api.Served, error) {
		return func(ctx context.Context) ([]api.Served, error) {
			select {
			case <-time.After(d):
				return seen, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	for _, c := range []struct {
		name  string
		look  func(context.Context) ([]api.Served, error)
		grace int64
		want  int
	}{
		{"at once", late(0), 500, 1},
		{"within the grace", late(499 * time.Millisecond), 500, 1},
		{"not within the grace", late(501 * time.Millisecond), 500, 0},
		{"never", late(time.Hour), 3_600_000, 0},
		{"not to be seen", func(context.Context) ([]api.Served, error) { return nil, errors.New("no /proc") }, 500, 0},
		{"no grace", func(context.Context) ([]api.Served, error) { t.Error("somebody has looked"); return seen, nil }, 0, 0},
	} {
		timed(t, func(t *testing.T, m *Manager, h *memHost, records *memRecords) {
			h.setUp = func(x *memHold) { x.life.served = c.look }
			id := begun(t, m, api.BeginRequest{})
			launched(t, m, id)
			at := time.Now()
			r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{GraceMS: &c.grace})
			if took := time.Since(at); err != nil || !r.Complete || len(r.ServedBy) != c.want || took > time.Duration(c.grace)*time.Millisecond {
				t.Errorf("%s: after %s %+v (%v)", c.name, took, r.ServedBy, err)
			}
			stands(t, m, id, r)
			if kept, err := m.Receipt(t.Context(), id); err != nil || len(kept.ServedBy) != c.want {
				t.Errorf("%s: kept: %+v (%v)", c.name, kept.ServedBy, err)
			}
		})
	}
}

// A finished turn that leaves processes running waits for that, but not for long.
func TestFinishTellsWhoServes(t *testing.T) {
	seen := []api.Served{{PID: 12, Socket: "unix:/x"}}
	for _, hangs := range []bool{false, true} {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			h.setUp = func(x *memHold) {
				x.life.served = func(ctx context.Context) ([]api.Served, error) {
					if hangs {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(time.Millisecond)
					return seen, nil
				}
			}
			id := begun(t, m, api.BeginRequest{Leftovers: api.LeftoversKeep})
			launched(t, m, id)
			at := time.Now()
			r, err := m.Finish(t.Context(), id, root, api.FinishRequest{})
			if err != nil || len(r.Leftovers) != 1 || (len(r.ServedBy) == 1) == hangs || time.Since(at) > servedSoon {
				t.Errorf("hangs %v: after %s %+v (%v)", hangs, time.Since(at), r, err)
			}
			if hangs {
				return
			}
			if w, err := m.Why(t.Context(), id); err != nil || len(w.ServedBy) != 1 || w.Because[len(w.Because)-1] != seen[0].Words() {
				t.Errorf("%+v (%v)", w, err)
			}
			if p, err := m.Plan(t.Context(), id, api.AbandonRequest{Leftovers: true}); err != nil || len(p.ServedBy) != 1 {
				t.Errorf("%+v (%v)", p, err)
			}
		})
	}
}
