package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
)

// bareGrades are those without a cgroup, best first.
var bareGrades = [...]api.Grade{api.GradePIDNS, api.GradeSubreaper, api.GradeToken}

func bareGrade(g api.Grade) bool { return slices.Contains(bareGrades[:], g) }

// verdict is what came of trying a grade.
type verdict struct {
	err error
	at  time.Time
}

// mayUse tells whether a bare grade may be used: a PID namespace of its own shows
// in a turn, so somebody has to have allowed it.
func (h *Host) mayUse(g api.Grade, allowPIDNS bool) error {
	switch {
	case !h.allows(g):
		return fmt.Errorf("not asked for (--grade %s)", h.cfg.Grade)
	case g == api.GradePIDNS && h.cfg.Grade != g && !h.cfg.AllowPIDNS && !allowPIDNS:
		return errors.New("turns would see their own PID namespace, which nobody has allowed (--allow-pidns, or allow_pidns of a turn)")
	}
	return nil
}

// bestBare is the best grade without a cgroup; the error says of each why not.
func (h *Host) bestBare(ctx context.Context, least api.Grade, allowPIDNS bool) (api.Grade, error) {
	var errs []error
	for _, g := range bareGrades {
		err := h.mayUse(g, allowPIDNS)
		if err == nil && !g.AtLeast(least) {
			err = fmt.Errorf("less than %s, which was demanded", least)
		}
		if err == nil {
			err = h.proveBare(ctx, g)
		}
		if err == nil {
			return g, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", g, err))
	}
	return "", errors.Join(errs...)
}

// proveBare tries a grade without a cgroup, unless it was tried lately.
func (h *Host) proveBare(ctx context.Context, g api.Grade) error {
	h.proving.Lock()
	defer h.proving.Unlock()
	if v, ok := h.tried[g]; ok && (v.err == nil || time.Since(v.at) < time.Minute) {
		return v.err
	}
	err := h.tryOnce(ctx, g)
	switch {
	case err == nil:
		h.keepProof(g)
	case h.opening && h.goByProof(ctx, g, err):
		return nil
	case ctx.Err() != nil || inconclusive(err):
		return err
	}
	h.tried[g] = verdict{err, time.Now()}
	return err
}

// beginAt begins at one grade.
func (h *Host) beginAt(ctx context.Context, spec containment.Spec, hooks containment.Hooks, g api.Grade, degraded []string) (containment.Hold, error) {
	if g == api.GradeScope || g == api.GradeCgroup {
		return wrap(h.begin(ctx, spec, hooks, g, degraded))
	}
	x, err := h.beginBare(ctx, spec, hooks, g, degraded)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// beginLess begins a turn without a cgroup.
func (h *Host) beginLess(ctx context.Context, spec containment.Spec, hooks containment.Hooks, degraded []string) (containment.Hold, error) {
	g, err := h.bestBare(ctx, spec.MinGrade, spec.AllowPIDNS)
	if err != nil {
		return nil, api.Errorf(api.CodeGradeUnavailable, "this host holds no turn so well: %s", oneLine(err)).
			WithRemedy("%s", bareRemedy)
	}
	return h.beginAt(ctx, spec, hooks, g, degraded)
}

const bareRemedy = "run under systemd, or give the service a writable cgroup v2 directory with --cgroup-parent; see docs/grades.md"

func oneLine(err error) string { return strings.ReplaceAll(fmt.Sprint(err), "\n", "; ") }

// lacks is what a turn without a cgroup does not get.
func lacks(g api.Grade) []string {
	out := []string{"no cgroup: no limits, no counters but of processor time, no freezing, and no job of what runs already",
		"no bound on the number of processes"}
	switch g {
	case api.GradePIDNS:
		out = append(out, "the turn's processes see a PID namespace and a /proc of their own, and end with their keeper, which is its init")
		if os.Geteuid() != 0 {
			out = append(out, "they are in a user namespace, too: other users' files show as nobody's, and set-uid programs gain nothing")
		}
		return out
	case api.GradeSubreaper:
		return append(out, "processes are found and ended one by one: a storm of forks takes its time, and what is not seen to end is unconfirmed, not dead",
			"if the keeper is killed, what has lost its parents is not to be found")
	}
	return append(out, "processes are ended by their keeper, whose children they are or become; nobody else can signal them safely here",
		"if the keeper is killed, what has lost its parents is not to be found, and the rest is known by numbers and start times")
}

// fits tells whether what a grade claims shows in a turn with one process: that the
// service itself finds and holds who is below the keeper.
func (x *bare) fits(ctx context.Context) error {
	if x.facts.Grade != api.GradeSubreaper {
		return nil
	}
	v, err := x.look(ctx)
	if err != nil {
		return fmt.Errorf("look below the keeper: %w", err)
	}
	defer v.close()
	switch {
	case !v.whole:
		return fmt.Errorf("not all that is below the keeper can be looked at: %s", join(v.notes))
	case len(v.members) == 0:
		return errors.New("what the keeper has launched is not seen below it")
	}
	for _, m := range v.members {
		if m.How() != fallback.ByPidfd {
			return fmt.Errorf("processes can be held by %s only, not by pidfd", m.How())
		}
	}
	return nil
}

// fitsEnding tells whether a kill was what the grade claims.
func (x *bare) fitsEnding(k containment.Killed) error {
	if x.facts.Grade == api.GradeSubreaper && k.Mechanism != byWalk {
		return fmt.Errorf("the service could not end the turn itself (%s): %s", k.Mechanism, join(k.Notes))
	}
	return nil
}

// bareChecks tell of each grade without a cgroup whether this host has it. They are
// tried when somebody asks.
func (h *Host) bareChecks(ctx context.Context) (out []api.HostCheck) {
	for _, g := range bareGrades {
		c := api.HostCheck{Name: "grade " + string(g)}
		err := h.proveBare(ctx, g)
		may := h.mayUse(g, false)
		switch {
		case err != nil:
			c.Detail, c.Remedy = oneLine(err), bareNeeds(g)
		case may != nil:
			c.OK, c.Detail = true, "possible here, and not used: "+may.Error()
		default:
			c.OK, c.Detail = true, "the self-test's turn was launched, killed and seen to be over"
		}
		out = append(out, c)
	}
	return out
}

func bareNeeds(g api.Grade) string {
	switch g {
	case api.GradePIDNS:
		return "it needs CAP_SYS_ADMIN, or user namespaces, and a /proc that may be mounted"
	case api.GradeSubreaper:
		return "it needs Linux 5.3, a /proc of the service's own PID namespace that shows the turn's processes, and a sandbox that lets pidfd_open and pidfd_send_signal through"
	}
	return "it needs Linux 5.3, and a runtime directory that may be written"
}
