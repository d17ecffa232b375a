package main

import (
	"os"
	"path/filepath"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
)

// probeLocal looks without trying: what only a trial can tell, such as whether
// a cgroup can be made and killed, is left to the service.
func probeLocal(h *api.Host) {
	check := func(name, detail string, err error, remedy string) {
		c := api.HostCheck{Name: name, OK: err == nil, Detail: detail, Remedy: remedy}
		if err != nil {
			c.Detail = err.Error()
		}
		h.Checks = append(h.Checks, c)
	}
	h.Kernel = firstLine("/proc/sys/kernel/osrelease")
	h.Boot = firstLine("/proc/sys/kernel/random/boot_id")
	m, err := cgroup.FindMount()
	detail := ""
	if err == nil {
		h.CgroupMount = m.Path
		h.Controllers = strings.Fields(firstLine(filepath.Join(m.Path, "cgroup.controllers")))
		detail = m.Path
		if !m.Unified {
			detail += " (beside cgroup v1, which has the controllers)"
		}
	}
	check("cgroup v2 mounted", detail, err, "mount it: mount -t cgroup2 none /sys/fs/cgroup/unified")
	if err == nil {
		own, err := m.Own()
		check("own cgroup seen", own, err, "mount /proc")
	}
	_, err = os.Stat("/run/systemd/system")
	check("systemd runs here", "grade scope can be asked for", err, "none is needed for grade cgroup")
	init, err := findInit("", "")
	check("pinfold-init found", init, err, "")
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}
