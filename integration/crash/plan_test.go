package crash

import (
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// mode is what happens at a point.
type mode string

const (
	itself mode = "itself" // who comes to the point dies there
	other  mode = "other"  // it waits there while the other, service or keeper, dies
	both   mode = "both"
	late   mode = "late" // the keeper waits there while the service dies, and still when the next one greets it
	gone   mode = "gone" // the service waits there while its client leaves
)

// stage is when a point is armed.
type stage string

const (
	atBegin   stage = "begin" // before the turn is begun; the usual one
	atLaunch  stage = "launch"
	atEnd     stage = "end"
	atRestart stage = "restart"     // a service that was killed finds its turns again
	atLoss    stage = "keeper loss" // the keeper is killed
	atRemoval stage = "removal"     // the turn's cgroup was removed while there was no service
	atSecond  stage = "second"      // after a first crash, at the point that plan.first names
)

// plan is how a point is come to.
type plan struct {
	point   string
	in      victim
	mode    mode
	stage   stage
	first   string    // the point of a crash before
	along   string    // a point at which the keeper exits beside
	finish  bool      // the turn is finished, not abandoned
	grace   int64     // of the ending, in ms
	beside  bool      // something is beside work/ in the turn's cgroup
	patient bool      // the service is started again only after the point was come to
	job     bool      // one launch is made a job, which outlives its turn
	adopts  bool      // a process that runs is adopted
	full    bool      // the turn's record cannot be written any more once it is to end
	lasting bool      // what does not end by itself is launched first
	bare    api.Grade // the service holds turns without cgroups; "": it has cgroups
}

// unreached are the points that no plan comes to, and why.
func unreached() map[string]string {
	const scope = "grade scope only, which needs systemd: integration/turns kills services there"
	const gate = "only where clone3 is refused, which this kernel does not: integration/turns, seccomp, goes through the gate"
	return map[string]string{
		"scope.asked": scope, "scope.placed": scope, "scope.stop": scope, "scope.stopped": scope,
		"gate.cloned": gate, "gate.moved": gate, "gate.opened": gate,
	}
}

// stages are when a point is armed, where that is not at the beginning, or not
// then only: records, journals and requests there are all the time.
func stages(name string) []stage {
	switch name {
	case "recover.loaded", "recover.held", "recover.adopted", "recover.resumed", "recover.done", "keeper.met", "adopt.reopened":
		return []stage{atRestart}
	case "keeper.lost":
		return []stage{atLoss}
	case "recover.lost":
		return []stage{atRemoval}
	case "recover.unbegun", "unbegun.ended", "keeper.killed", "stray.killed", "dir.swept", "recover.closed", "recover.truer", "keeper.leaving":
		return []stage{atSecond}
	case "record.opened", "record.synced", "record.renamed":
		return []stage{atBegin, atEnd}
	case "journal.write", "journal.written", "request.read", "answer.ready", "answer.written":
		return []stage{atBegin, atLaunch, atEnd}
	case "exit.reaped", "exit.written", "exit.told", "exit.heard":
		return []stage{atBegin, atEnd}
	case "hello.sent", "hello.answered":
		return []stage{atBegin, atRestart}
	}
	return []stage{atBegin}
}

// first is the point of a crash that has to come before.
func first(name string) string {
	switch name {
	case "recover.unbegun", "unbegun.ended", "keeper.killed":
		return "begin.recorded"
	case "stray.killed", "keeper.leaving":
		return "keeper.spawned"
	case "dir.swept":
		return "dir.made"
	case "recover.closed":
		return "rmdir.done"
	case "recover.truer":
		return "ended.there"
	}
	return ""
}

// modes are who dies at a point. Where there is no keeper that matters, the
// service alone does.
func modes(p point, s stage) []mode {
	switch {
	case p.in == keeper && p.name == "keeper.leaving":
		return []mode{itself} // there is no service
	case strings.HasPrefix(p.name, "adopt."):
		return []mode{itself} // its keeper has no part in it
	case strings.HasPrefix(p.name, "ended."):
		return []mode{itself, other}
	case p.in == keeper:
		return []mode{itself, other, both, late}
	case s == atSecond, s == atRemoval, s == atLoss, strings.HasPrefix(p.name, "undo."):
		return []mode{itself}
	case s == atRestart:
		return []mode{itself, other, both}
	}
	return []mode{itself, other, both, gone}
}

// plans are all that is to be tried. Endings alternate, where the point does not
// say which.
func plans(all []point) (out []plan) {
	for i, p := range all {
		if p.in == caller || unreached()[p.name] != "" {
			continue
		}
		for j, s := range stages(p.name) {
			for k, m := range modes(p, s) {
				x := plan{point: p.name, in: p.in, mode: m, stage: s, first: first(p.name), finish: (i+j+k)%2 == 0,
					beside:  p.name == "beside.killed" || p.name == "draft.saved",
					adopts:  strings.HasPrefix(p.name, "adopt."),
					patient: p.name == "keeper.leaving", lasting: (i+j+k)%3 == 0, bare: bareOf(p)}
				x.full = strings.HasPrefix(p.name, "ended.") || p.name == "recover.truer"
				for _, w := range []string{"promote.", "job.", "leaf.still", "leaf.moving"} {
					x.job = x.job || strings.HasPrefix(p.name, w)
				}
				if strings.HasPrefix(p.name, "end.") && x.bare == "" || x.beside {
					x.finish = false
				}
				if strings.HasPrefix(p.name, "finish.") || strings.HasPrefix(p.name, "leftovers.") {
					x.finish = true
				}
				if p.name == "end.termed" {
					x.grace = 300
				}
				if strings.HasPrefix(p.name, "undo.") {
					x.along = "keeper.began"
				}
				out = append(out, x)
			}
		}
		out = append(out, barely(p)...)
	}
	return out
}

// quick is what -short tries.
func quick(all []plan) []plan {
	words := []string{"launch.", "child.", "intent.", "started.", "exit.", "end.", "fence.", "kill.", "seen.", "receipt.", "rmdir."}
	return slices.DeleteFunc(all, func(p plan) bool {
		return p.mode != itself || !slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(p.point, w) })
	})
}

func (p plan) String() string {
	s := p.point + "/" + string(p.mode)
	if p.stage != atBegin && p.stage != atSecond {
		s += " at " + string(p.stage)
	}
	if p.bare != "" {
		s += " of " + string(p.bare)
	}
	return s
}

// TestPoints checks that each excuse is of a point that there is.
func TestPoints(t *testing.T) {
	all := points(t)
	if len(all) < 50 {
		t.Errorf("only %d points are found", len(all))
	}
	for name := range unreached() {
		if !slices.ContainsFunc(all, func(p point) bool { return p.name == name }) {
			t.Errorf("there is no point %q that would not be reached", name)
		}
	}
}
