package containers

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// A gateway in each of the services of compose.yaml.
func TestCompose(t *testing.T) {
	file := manifest[compose](t, "compose.yaml")
	grades := map[string]api.Grade{"gateway": api.GradeSubreaper, "gateway-cgroups": api.GradeCgroup}
	runtimes(t, func(t *testing.T, rt oci) {
		if len(file.Services) != len(grades) {
			t.Fatalf("%d services", len(file.Services))
		}
		for name, s := range file.Services {
			t.Run(name, func(t *testing.T) {
				b := newService(t, s)
				if len(s.Healthcheck.Test) > 0 && s.Healthcheck.Test[0] != "CMD" {
					t.Fatalf("healthcheck %q", s.Healthcheck.Test)
				}
				orchestrated(t, rt, b, grades[name], slices.Clip(s.Healthcheck.Test)[min(1, len(s.Healthcheck.Test)):], stopGrace(t, s.StopGrace))
			})
		}
	})
}

func stopGrace(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A gateway in the pod of pod.yaml.
func TestPod(t *testing.T) {
	p := manifest[pod](t, "pod.yaml")
	if s := p.Spec.SecurityContext; p.Kind != "Pod" || !s.RunAsNonRoot || s.SeccompProfile.Type != "RuntimeDefault" ||
		!p.Spec.Containers[0].SecurityContext.ReadOnly || *p.Spec.Containers[0].SecurityContext.Escalation {
		t.Errorf("that is not restricted: %+v", p)
	}
	runtimes(t, func(t *testing.T, rt oci) {
		orchestrated(t, rt, newPod(t, p.Spec, ""), api.GradeSubreaper, p.Spec.Containers[0].Readiness.Exec.Command,
			time.Duration(p.Spec.Grace)*time.Second)
	})
}

// orchestrated runs the gateway of an image of its own: healthy while it runs, and
// stopped within the grace.
func orchestrated(t *testing.T, rt oci, b *bundle, grade api.Grade, health []string, grace time.Duration) {
	t.Helper()
	b.bind(run.exe, "/usr/local/bin/my-gateway", "ro")
	b.env(roleEnv + "=life")
	c := rt.start(t, b)
	s := c.story()
	mode{grade: grade}.check(t, s)
	if len(health) > 0 {
		if out, err := c.exec(health...).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", health, err, out)
		}
	}
	c.kill("TERM")
	if !c.endsIn(grace) || c.code() != 7 {
		t.Errorf("stopped, it ends with %d, or not in %v", c.code(), grace)
	}
}

// The service of daemonset.yaml: its socket is on the host, its turns outlive it,
// and the next one has them.
func TestDaemonSet(t *testing.T) {
	set := manifest[daemonSet](t, "daemonset.yaml")
	spec := set.Spec.Template.Spec
	if set.Kind != "DaemonSet" || set.Spec.Selector.MatchLabels["app"] != set.Spec.Template.Metadata.Labels["app"] || !spec.HostPID {
		t.Errorf("that is no such set: %+v", set)
	}
	var one sync.Mutex // there is one cgroup for it on a host
	runtimes(t, func(t *testing.T, rt oci) {
		one.Lock()
		defer one.Unlock()
		node := filepath.Join(run.dir, "node."+rt.name)
		socket := &client.Client{Socket: filepath.Join(node, "run/pinfold/pinfold.sock")}
		defer socket.Close()
		begin := func() *container {
			b := newPod(t, spec, node)
			b.detached = true
			c := rt.start(t, b)
			eventually(t, "the service answers on the host's socket", func() bool {
				h, err := socket.Host(context.Background())
				if c.endsIn(0) || err == nil && h.Grade != api.GradeCgroup {
					t.Fatalf("the service: grade %q, %v\n%s", h.Grade, err, c.out.String())
				}
				return err == nil
			})
			if probe := spec.Containers[0].Readiness.Exec.Command; c.exec(probe...).Run() != nil {
				t.Errorf("%q does not end with 0", probe)
			}
			return c
		}
		c := begin()
		turn := beginTurn(t, socket, node)
		stop := func(c *container) {
			socket.Close()
			c.kill("TERM")
			if code := c.code(); code != 0 {
				t.Errorf("the service ended with %d", code)
			}
			c.remove()
		}
		stop(c)
		if !held(node + "/var/lib/pinfold/turn") {
			t.Error("the turn went with the pod")
		}
		c = begin()
		r, err := socket.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: new(int64(100))})
		if err != nil || !r.Complete || r.Grade != api.GradeCgroup || held(node+"/var/lib/pinfold/turn") {
			t.Errorf("the next pod's receipt: %+v, %v", r, err)
		}
		stop(c)
		for _, dir := range cgroupsBelow(t, cgroupfs+"/pinfold") {
			if !strings.HasPrefix(filepath.Base(dir), "pinfold-") {
				t.Errorf("left behind: %s", dir)
			}
		}
	})
}

// beginTurn has processes in a turn that try to escape.
func beginTurn(t *testing.T, socket *client.Client, node string) (turn string) {
	t.Helper()
	ctx := context.Background()
	turn1, err := socket.Begin(ctx, api.BeginRequest{Label: "a pod's"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Launch(ctx, turn1.ID, api.LaunchRequest{Argv: as("escape", "/var/lib/pinfold/turn"), Env: gatewayEnv(), Cwd: "/"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what escapes", func() bool {
		fi, err := os.Stat(node + "/var/lib/pinfold/turn")
		return err == nil && fi.Size() == 3
	})
	return turn1.ID
}

// cgroupsBelow are the cgroups in one.
func cgroupsBelow(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.IsDir() {
			out = append(out, filepath.Join(dir, d.Name()))
		}
	}
	return out
}
