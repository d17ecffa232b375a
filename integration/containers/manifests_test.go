package containers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"
)

// What of Kubernetes' and Compose's formats packaging/images uses. A field that is
// not here fails the tests: it would go unchecked.
type (
	pod struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       podSpec
	}
	metadata struct {
		Name   string
		Labels map[string]string
	}
	daemonSet struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata metadata
				Spec     podSpec
			}
		}
	}
	podSpec struct {
		HostPID         bool  `yaml:"hostPID"`
		Grace           int   `yaml:"terminationGracePeriodSeconds"`
		SecurityContext rules `yaml:"securityContext"`
		Containers      []podContainer
		Volumes         []volume
	}
	rules struct {
		Privileged     bool
		RunAsNonRoot   bool   `yaml:"runAsNonRoot"`
		RunAsUser      *int64 `yaml:"runAsUser"`
		RunAsGroup     *int64 `yaml:"runAsGroup"`
		SeccompProfile struct {
			Type string
		} `yaml:"seccompProfile"`
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities struct {
			Add, Drop []string
		}
	}
	podContainer struct {
		Name, Image     string
		Command, Args   []string
		Env             []struct{ Name, Value string }
		SecurityContext rules `yaml:"securityContext"`
		Readiness       struct {
			Exec struct{ Command []string }
		} `yaml:"readinessProbe"`
		Mounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	volume struct {
		Name     string
		EmptyDir *struct{ Medium string }     `yaml:"emptyDir"`
		HostPath *struct{ Path, Type string } `yaml:"hostPath"`
	}
	compose struct {
		Services map[string]composeService
		Volumes  map[string]any
	}
	composeService struct {
		Image       string
		Command     []string
		User        string
		ReadOnly    bool `yaml:"read_only"`
		Cgroup      string
		CapDrop     []string `yaml:"cap_drop"`
		CapAdd      []string `yaml:"cap_add"`
		SecurityOpt []string `yaml:"security_opt"`
		Tmpfs       []string
		Volumes     []string
		PidsLimit   int64  `yaml:"pids_limit"`
		StopGrace   string `yaml:"stop_grace_period"`
		Healthcheck struct {
			Test        []string
			Interval    string
			StartPeriod string `yaml:"start_period"`
		}
	}
)

// manifest reads a file of packaging/images; nothing in it may be unknown.
func manifest[T any](t testing.TB, name string) (v T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(packaging, name))
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// newPod is a pod's only container, as a kubelet has it made. What it has of the
// host's file system is below node.
func newPod(t testing.TB, s podSpec, node string) *bundle {
	t.Helper()
	if len(s.Containers) != 1 {
		t.Fatalf("%d containers", len(s.Containers))
	}
	c := s.Containers[0]
	r := merge(s.SecurityContext, c.SecurityContext)
	b := newBundle(t, run.image.command(c.Command, c.Args)...)
	for _, at := range []string{"/tmp", "/run/pinfold", "/var/lib/pinfold"} {
		b.without(at)
	}
	b.imageEnv()
	for _, e := range c.Env {
		b.env(e.Name + "=" + e.Value)
	}
	b.Root.Readonly = r.ReadOnly
	if r.RunAsNonRoot && (r.RunAsUser == nil || *r.RunAsUser == 0) {
		t.Error("it must not run as root, and does")
	}
	b.security(r)
	for _, m := range c.Mounts {
		i := slices.IndexFunc(s.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("no volume %q", m.Name)
		}
		b.podVolume(t, s.Volumes[i], m.MountPath, node)
	}
	if s.HostPID {
		b.share(specs.PIDNamespace)
	}
	return b
}

// merge is the pod's rules, and the container's where it has some.
func merge(pod, own rules) rules {
	if own.RunAsUser == nil {
		own.RunAsUser = pod.RunAsUser
	}
	if own.RunAsGroup == nil {
		own.RunAsGroup = pod.RunAsGroup
	}
	if own.SeccompProfile.Type == "" {
		own.SeccompProfile = pod.SeccompProfile
	}
	own.RunAsNonRoot = own.RunAsNonRoot || pod.RunAsNonRoot
	return own
}

// security does what a container runtime makes of a security context.
func (b *bundle) security(r rules) {
	b.Process.NoNewPrivileges = r.Escalation != nil && !*r.Escalation
	b.Process.Capabilities = caps(capabilities(r.Capabilities.Drop, r.Capabilities.Add)...)
	if r.SeccompProfile.Type != "RuntimeDefault" {
		b.Linux.Seccomp = nil
	}
	if r.Privileged {
		b.Linux.MaskedPaths, b.Linux.ReadonlyPaths = nil, nil
		b.Process.Capabilities = caps(allCaps()...)
		b.cgroups("rw")
		b.share(specs.CgroupNamespace)
	}
	var uid, gid uint32
	if r.RunAsUser != nil {
		uid = uint32(*r.RunAsUser)
	}
	if r.RunAsGroup != nil {
		gid = uint32(*r.RunAsGroup)
	}
	b.user(uid, gid)
}

// podVolume mounts what a kubelet does.
func (b *bundle) podVolume(t testing.TB, v volume, at, node string) {
	t.Helper()
	var from string
	mode := os.FileMode(0o755)
	switch {
	case v.HostPath != nil && v.EmptyDir == nil && v.HostPath.Type == "DirectoryOrCreate":
		if from = v.HostPath.Path; !strings.HasPrefix(from, cgroupfs+"/") {
			from = filepath.Join(node, from)
		}
	case v.EmptyDir != nil && v.HostPath == nil:
		from, mode = filepath.Join(b.dir, "volume."+v.Name), 0o777
		if v.EmptyDir.Medium == "Memory" {
			b.Mounts = append(b.Mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=777"}})
			return
		}
	default:
		t.Fatalf("a volume of no kind that is known here: %+v", v)
	}
	if err := os.MkdirAll(from, mode); err != nil {
		t.Fatal(err)
	}
	if mode == 0o777 {
		if err := os.Chmod(from, mode); err != nil {
			t.Fatal(err)
		}
	}
	b.bind(from, at, "rw")
}

// newService is a container of a Compose file.
func newService(t testing.TB, s composeService) *bundle {
	t.Helper()
	b := newBundle(t, run.image.command(nil, s.Command)...)
	for _, at := range []string{"/tmp", "/run/pinfold", "/var/lib/pinfold"} {
		b.without(at)
	}
	b.imageEnv()
	b.Root.Readonly = s.ReadOnly
	b.Process.NoNewPrivileges = false
	for _, o := range s.SecurityOpt {
		switch o {
		case "no-new-privileges:true":
			b.Process.NoNewPrivileges = true
		case "writable-cgroups=true":
			b.cgroups("rw")
		default:
			t.Fatalf("security_opt %s", o)
		}
	}
	b.Process.Capabilities = caps(capabilities(s.CapDrop, s.CapAdd)...)
	uid, gid, _ := strings.Cut(s.User, ":")
	b.user(number(t, uid), number(t, gid))
	for _, m := range s.Tmpfs {
		at, options, _ := strings.Cut(m, ":")
		b.Mounts = append(b.Mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: append([]string{"nosuid", "nodev"}, strings.Split(options, ",")...)})
	}
	for _, v := range s.Volumes { // a named one begins as what the image has there
		name, at, _ := strings.Cut(v, ":")
		from := filepath.Join(b.dir, "volume."+name)
		if err := os.Mkdir(from, 0o755); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(filepath.Join(b.Root.Path, at)); err != nil {
			t.Fatal(err)
		} else if err := os.Chmod(from, fi.Mode()); err != nil {
			t.Fatal(err)
		}
		b.bind(from, at, "rw")
	}
	if bounded(t, "pids"); s.PidsLimit > 0 {
		b.tasks(s.PidsLimit)
	}
	return b
}

// command is what an engine runs of an image that has no CMD.
func (im image) command(entrypoint, args []string) []string {
	if entrypoint == nil {
		entrypoint = im.entrypoint
	}
	return slices.Concat(entrypoint, args)
}

// capabilities are those that are left of Docker's.
func capabilities(drop, add []string) (out []string) {
	if !slices.Contains(drop, "ALL") {
		out = dockerCaps()
	}
	for _, c := range add {
		out = append(out, "CAP_"+c)
	}
	return out
}

// allCaps are those that this process has: nobody can give more.
func allCaps() (out []string) {
	names := []string{"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
		"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
		"SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
		"LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ"}
	var have uint64
	b, err := os.ReadFile("/proc/self/status")
	check(err)
	_, rest, _ := strings.Cut(string(b), "CapPrm:")
	_, err = fmt.Sscanf(strings.TrimSpace(rest), "%x", &have)
	check(err)
	for i, n := range names {
		if have>>i&1 != 0 {
			out = append(out, "CAP_"+n)
		}
	}
	return out
}

func number(t testing.TB, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}
