package containers

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ordinary is the uid that has nothing special, for what needs no root.
const ordinary = 65532

// bundle is what a runtime makes a container of.
type bundle struct {
	*specs.Spec
	dir      string
	detached bool // the runtime makes it, and is gone, as an engine's
}

// newBundle is a container as Docker makes one that is told nothing: some
// capabilities, a filter of system calls, a cgroup of its own that it sees
// read-only. The root file system is of packaging/images, and read-only, too.
func newBundle(t testing.TB, args ...string) *bundle {
	t.Helper()
	needHost(t)
	dir, err := os.MkdirTemp(run.dir, "bundle.")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &specs.Spec{
		Version:  "1.0.0",
		Hostname: "container",
		Root:     &specs.Root{Path: rootfs(t), Readonly: true},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
			Capabilities: caps(dockerCaps()...), NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: cgroupfs, Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
			{Destination: "/gateway", Type: "bind", Source: run.exe, Options: []string{"bind", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + filepath.Base(dir),
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.CgroupNamespace}},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Seccomp:       dockerSeccomp(),
		},
	}
	if slow := os.Getenv(slowEnv); slow != "" {
		s.Process.Env = append(s.Process.Env, slowEnv+"="+slow)
	}
	b := &bundle{Spec: s, dir: dir}
	for _, at := range []string{"/tmp", "/run/pinfold", "/var/lib/pinfold"} {
		b.volume(at)
	}
	return b
}

const cgroupfs = "/sys/fs/cgroup"

// volume is an empty directory that everybody may write, as an engine's.
func (b *bundle) volume(at string) {
	b.Mounts = append(b.Mounts, tmpfs(at))
}

func tmpfs(at string) specs.Mount {
	return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}}
}

// bind mounts a file or directory of the host.
func (b *bundle) bind(from, to string, options ...string) {
	b.Mounts = append(b.Mounts, specs.Mount{Destination: to, Type: "bind", Source: from, Options: append([]string{"rbind"}, options...)})
}

// cgroups has the container see its cgroups read-only (ro), writable (rw), or
// not at all ("").
func (b *bundle) cgroups(how string) {
	i := b.mount(cgroupfs)
	if how == "" {
		b.Mounts = slices.Delete(b.Mounts, i, i+1)
		return
	}
	o := b.Mounts[i].Options
	o[len(o)-1] = how
}

func (b *bundle) mount(at string) int {
	return slices.IndexFunc(b.Mounts, func(m specs.Mount) bool { return m.Destination == at })
}

// without takes the container a mount.
func (b *bundle) without(at string) {
	if i := b.mount(at); i >= 0 {
		b.Mounts = slices.Delete(b.Mounts, i, i+1)
	}
}

// share has the container use the host's namespace of a kind.
func (b *bundle) share(kind specs.LinuxNamespaceType) {
	b.Linux.Namespaces = slices.DeleteFunc(b.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// join has the container use a namespace of another.
func (b *bundle) join(kind specs.LinuxNamespaceType, path string) {
	b.share(kind)
	b.Linux.Namespaces = append(b.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
}

// rootless makes it a container of a user who has one uid only: its root is
// that user.
func (b *bundle) rootless() {
	b.Linux.Namespaces = append(b.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	one := []specs.LinuxIDMapping{{ContainerID: 0, HostID: ordinary, Size: 1}}
	b.Linux.UIDMappings, b.Linux.GIDMappings = one, one
	b.Linux.CgroupsPath = "/user" + b.Linux.CgroupsPath
	if i := b.mount("/sys"); i >= 0 { // its own sysfs nobody may mount without a network namespace
		b.Mounts[i] = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}}
	}
}

func (b *bundle) env(nameValue string) { b.Process.Env = append(b.Process.Env, nameValue) }

func (b *bundle) user(uid, gid uint32) {
	b.Process.User = specs.User{UID: uid, GID: gid}
	if uid != 0 { // execve(2) leaves them none, since none is ambient
		b.Process.Capabilities.Effective, b.Process.Capabilities.Permitted = nil, nil
	}
}

// bounded tells whether the host has a controller, in cgroup v1 or v2.
func bounded(t testing.TB, controller string) {
	t.Helper()
	b, err := os.ReadFile(cgroupfs + "/cgroup.controllers")
	if run.v1[controller] == "" && (err != nil || !slices.Contains(strings.Fields(string(b)), controller)) {
		missing(t, "the controller "+controller)
	}
}

// tasks bounds how many the container may have.
func (b *bundle) tasks(most int64) {
	if run.v1["pids"] == "" {
		b.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &most}}
		return
	}
	b.enter(limited("pids", b, "pids.max", strconv.FormatInt(most, 10)))
}

// memory bounds what the container may use, and has it see how much that is.
func (b *bundle) memory(most int64) {
	if run.v1["memory"] == "" {
		b.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &most, Swap: &most}}
		return
	}
	dir := limited("memory", b, "memory.limit_in_bytes", strconv.FormatInt(most, 10))
	b.enter(dir)
	b.without(cgroupfs) // as where cgroup v1 is all that there is
	b.Mounts = append(b.Mounts, tmpfs(cgroupfs))
	b.bind(dir, filepath.Join(cgroupfs, "memory"), "ro")
}

// enter has the container's first process begin in a cgroup of our own, of
// cgroup v1's.
func (b *bundle) enter(dir string) {
	b.hook("place", dir+"/cgroup.procs")
}

// own gives the container's cgroup to a user.
func (b *bundle) own(uid int) { b.hook("give", cgroupfs+b.Linux.CgroupsPath, strconv.Itoa(uid)) }

// hook has the runtime call this program in a role before the container starts.
func (b *bundle) hook(role string, words ...string) {
	h := specs.Hook{Path: run.exe, Args: append([]string{"gateway"}, words...), Env: []string{roleEnv + "=" + role}}
	b.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{h}}
}

// write makes config.json.
func (b *bundle) write(t testing.TB) {
	t.Helper()
	text, err := json.MarshalIndent(b.Spec, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, "config.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func caps(names ...string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}

// dockerCaps are what Docker leaves root in a container.
func dockerCaps() []string {
	return []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}
}

// overlay gives the container a root file system of its own that it may write,
// as engines do, and takes it the volumes.
func (b *bundle) overlay(t testing.TB) {
	t.Helper()
	for _, at := range []string{"/tmp", "/run/pinfold", "/var/lib/pinfold"} {
		b.without(at)
	}
	own, root := filepath.Join(b.dir, "own"), filepath.Join(b.dir, "root")
	err := errors.Join(os.Mkdir(own, 0o755), os.Mkdir(root, 0o755), syscall.Mount("tmpfs", own, "tmpfs", 0, "mode=755"),
		os.Mkdir(own+"/upper", 0o755), os.Mkdir(own+"/work", 0o755),
		syscall.Mount("overlay", root, "overlay", 0, "lowerdir="+b.Root.Path+",upperdir="+own+"/upper,workdir="+own+"/work"))
	if err != nil {
		t.Fatal("mount an overlay:", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount(root, 0), syscall.Unmount(own, 0)); err != nil {
			t.Error("unmount the overlay:", err)
		}
	})
	b.Root.Path, b.Root.Readonly = root, false
}
