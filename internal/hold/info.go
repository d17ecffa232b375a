package hold

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// bootID is this boot's, or empty where procfs does not show it.
func bootID() string { return readLine("/proc/sys/kernel/random/boot_id") }

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Boot is the id of this boot; records of another are closed.
func (h *Host) Boot() string { return h.boot }

// Info describes the host, for people.
func (h *Host) Info(ctx context.Context) api.Host {
	out := api.Host{Version: h.cfg.Version, Kernel: readLine("/proc/sys/kernel/osrelease"), Boot: h.boot, Grade: h.Grade(),
		Asked: h.cfg.Grade, CgroupMount: h.mount.Path, Controllers: h.ctrls, RuntimeDir: h.cfg.RuntimeDir, StateDir: h.cfg.StateDir,
		Checks: h.checks(ctx)}
	if h.parent != nil {
		out.CgroupRoot = h.parent.Path()
	}
	if h.mgr != nil {
		v, _ := h.mgr.Version()
		out.Systemd = v + " (system manager)"
		if h.mgr.User() {
			out.Systemd = v + " (user manager)"
		}
	}
	if out.Controllers == nil {
		out.Controllers = []string{}
	}
	return out
}

func (h *Host) checks(ctx context.Context) []api.HostCheck {
	scope := check("grade scope", h.mgr != nil, h.scopeErr, h.shown(api.GradeScope),
		"run under systemd with its bus reachable; for a user's service see loginctl enable-linger")
	if err := h.scopeTrusted(); err != nil {
		scope = check("grade scope", false, fmt.Errorf("failed lately, tried again within a minute: %w", err), "", "see systemctl status and the journal")
	}
	group := check("grade cgroup", h.parent != nil, h.groupErr, h.shown(api.GradeCgroup),
		"give the service a cgroup v2 directory that it may write, with --cgroup-parent or Delegate=yes")
	h.mu.Lock()
	mechanism := h.mechanism
	h.mu.Unlock()
	out := append([]api.HostCheck{scope, group}, h.bareChecks(ctx)...)
	if h.bare == "" {
		out = append(out, api.HostCheck{Name: "ending", OK: mechanism == "cgroup.kill", Detail: mechanism, Remedy: remedyUnless(mechanism == "cgroup.kill", "Linux 5.14 has cgroup.kill; without it members are frozen and killed one by one")})
	}
	out = append(out,
		api.HostCheck{Name: "unified cgroup v2", OK: h.mount.Unified, Detail: h.mount.Path, Remedy: remedyUnless(h.mount.Unified, "on a hybrid host v1 has the controllers: turns are held, but without limits; boot with systemd.unified_cgroup_hierarchy=1")},
	)
	out = append(out, h.checkHome()...)
	for _, n := range slices.Concat(h.notes, h.weak) {
		out = append(out, api.HostCheck{Name: "note", Detail: n})
	}
	return out
}

// shown is what a grade that turns may get rests on.
func (h *Host) shown(g api.Grade) string {
	if why := h.unproven[g]; why != "" {
		return why
	}
	return "the self-test's turn was launched, killed and seen empty"
}

func check(name string, ok bool, err error, detail, remedy string) api.HostCheck {
	c := api.HostCheck{Name: name, OK: ok, Detail: detail}
	if !ok {
		c.Detail, c.Remedy = fmt.Sprint(err), remedy
	}
	return c
}

func remedyUnless(ok bool, remedy string) string {
	if ok {
		return ""
	}
	return remedy
}
