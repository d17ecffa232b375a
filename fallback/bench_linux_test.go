package fallback

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// hosts are this one, and this one with less.
func hosts() map[string]*Host {
	byDir, byToken := newKernel(), newKernel()
	byDir.opens = false
	byToken.opens, byToken.sends = false, false
	return map[string]*Host{string(ByPidfd): NewHost(), string(ByProcDir): {byDir}, string(ByToken): {byToken}}
}

// BenchmarkHeld: what verifying before a signal costs (signal 0: the whole way but
// the delivery), and finding a recorded process again.
func BenchmarkHeld(b *testing.B) {
	pid := systest.Start(b, sleepCommand()).PID()
	for how, h := range hosts() {
		p, err := h.Hold(pid)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { p.Close() })
		b.Run("verify+signal/"+how, func(b *testing.B) {
			for b.Loop() {
				if v, _, err := p.Signal(0); v != api.VerdictOwned || err != nil {
					b.Fatal(v, err)
				}
			}
		})
		b.Run("recall/"+how, func(b *testing.B) {
			for b.Loop() {
				q, v, why := h.Recall(p.Identity())
				if v != api.VerdictOwned {
					b.Fatal(v, why)
				}
				q.Close()
			}
		})
	}
}

// BenchmarkObserve: a walk of what is below one process.
func BenchmarkObserve(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done; echo up; wait", n))
		p := systest.Start(b, cmd)
		if line := p.Line(b); strings.TrimSpace(line) != "up" {
			b.Fatal(line)
		}
		scan := newKernel()
		scan.childLog = false
		for how, h := range map[string]*Host{"children": NewHost(), "scan": {scan}} {
			root, err := h.Hold(p.PID())
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%d", how, n), func(b *testing.B) {
				for b.Loop() {
					s, err := h.Observe(context.Background(), root)
					if err != nil || len(s.Members) != n {
						b.Fatal(len(s.Members), err)
					}
					s.Close()
				}
			})
			root.Close()
		}
		h := NewHost()
		root, err := h.Hold(p.PID())
		if err != nil {
			b.Fatal(err)
		}
		if res := h.End(context.Background(), root, Ending{}); len(res.Survivors) > 0 {
			b.Fatal(res)
		}
		root.Close()
		p.End()
	}
}
