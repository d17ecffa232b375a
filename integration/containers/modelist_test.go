package containers

import (
	"slices"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"pinfold.dev/api"
)

// modes are the rows of the table in docs/containers.md.
func modes() []mode { return slices.Concat(cgroupModes(), userModes(), otherModes()) }

const (
	sub      = api.GradeSubreaper
	readonly = "read-only file system"
)

// cgroupModes are told apart by the cgroups that there are.
func cgroupModes() []mode {
	return []mode{
		{name: "Docker's default: cgroups read-only", grade: sub, doctor: []string{readonly}},
		{name: "cgroups writable", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) { b.cgroups("rw") }},
		{name: "cgroups writable, the host's cgroup namespace", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.share(specs.CgroupNamespace)
		}},
		{name: "cgroups not mounted", grade: sub, change: func(t testing.TB, b *bundle) { b.cgroups("") }},
		{name: "cgroup v1 only", grade: sub, needs: "pids", change: func(t testing.TB, b *bundle) {
			b.cgroups("")
			b.Mounts = append(b.Mounts, tmpfs(cgroupfs))
			b.bind(limited("pids", b, "pids.max", "512"), cgroupfs+"/pids", "ro")
		}},
		{name: "cgroups read-only, CAP_SYS_ADMIN, PID namespaces allowed", grade: api.GradePIDNS, change: func(t testing.TB, b *bundle) {
			b.Process.Capabilities = caps(append(dockerCaps(), "CAP_SYS_ADMIN")...)
			b.Linux.Seccomp = nil // Docker's lets it make namespaces then
			b.env("PINFOLD_ALLOW_PIDNS=yes")
		}},
		{name: "cgroups read-only, any uid, user and PID namespaces allowed", grade: api.GradePIDNS, change: func(t testing.TB, b *bundle) {
			b.user(1000680000, 0)
			b.Linux.Seccomp = nil
			b.Linux.MaskedPaths, b.Linux.ReadonlyPaths = nil, nil // else the kernel lets nobody mount another /proc
			b.env("PINFOLD_ALLOW_PIDNS=yes")
		}},
		{name: "cgroups read-only, CAP_SYS_ADMIN, --cgroup-rw", flags: []string{"--cgroup-rw"}, grade: api.GradeCgroup,
			change: func(t testing.TB, b *bundle) {
				b.Process.Capabilities = caps(append(dockerCaps(), "CAP_SYS_ADMIN")...)
				b.Linux.Seccomp = nil
			}},
	}
}

// userModes are told apart by whom the container runs as.
func userModes() []mode {
	return []mode{
		{name: "rootless, cgroups read-only", rootless: true, grade: sub, doctor: []string{readonly}},
		{name: "rootless, cgroups read-only, CAP_SYS_ADMIN, PID namespaces allowed", rootless: true, grade: api.GradePIDNS,
			change: func(t testing.TB, b *bundle) {
				b.Process.Capabilities = caps(append(dockerCaps(), "CAP_SYS_ADMIN")...)
				b.Linux.Seccomp = nil
				b.env("PINFOLD_ALLOW_PIDNS=yes")
			}},
		{name: "rootless, cgroups writable", rootless: true, grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) { b.cgroups("rw") }},
		{name: "rootless, cgroups writable, the host's cgroup namespace", rootless: true, grade: api.GradeCgroup,
			change: func(t testing.TB, b *bundle) {
				b.cgroups("rw")
				b.share(specs.CgroupNamespace)
			}},
		{name: "any uid, no capability, cgroups writable by root", grade: sub, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.user(1000680000, 0)
		}},
		{name: "any uid, no capability, cgroups writable by it", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.user(1000680000, 0)
			b.own(1000680000)
		}},
		{name: "root without capabilities, cgroups writable", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.Process.Capabilities = caps()
		}},
	}
}

// otherModes are told apart by what the container is refused, or spared.
func otherModes() []mode {
	return []mode{
		{name: "the host's PID namespace", grade: api.GradeCgroup, flags: []string{"--kill-remaining=1s"}, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.share(specs.PIDNamespace)
		}},
		{name: "no /proc", grade: sub, doctor: []string{"/proc"}, unless: "runc", change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.without("/proc")
			b.Linux.MaskedPaths, b.Linux.ReadonlyPaths = nil, nil
		}},
		{name: "a writable root file system, no volumes", grade: api.GradeCgroup, dir: "/tmp", change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.overlay(t)
		}},
		{name: "no filter of system calls", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.Linux.Seccomp = nil
		}},
		{name: "pidfd_open refused", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.refuse(syscall.EPERM, "pidfd_open", "pidfd_send_signal")
		}},
		{name: "prctl refused: no subreaper, no parent-death signal", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			b.cgroups("rw")
			b.refusePrctl()
		}},
		{name: "prctl refused as above, cgroups read-only", flags: []string{"--serve-optional"}, change: func(t testing.TB, b *bundle) { b.refusePrctl() }},
		{name: "at most 64 tasks", grade: api.GradeCgroup, change: func(t testing.TB, b *bundle) {
			bounded(t, "pids")
			b.cgroups("rw")
			b.tasks(64)
		}},
	}
}
