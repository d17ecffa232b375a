//go:build linux

package cgroup

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
)

// BenchmarkKill ends N sleepers: by Kill, and by a bare write to cgroup.kill
// and re-reading cgroup.events, in turns. Compare the two; ratio is the median
// of Kill's times over that of the bare ones in the same run.
func BenchmarkKill(b *testing.B) {
	for _, n := range []int{0, 1, 10, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var whole, bare []time.Duration
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 { // the first pays for a cold cache
					whole = append(whole, oneKill(b, n, timeKill))
				}
				bare = append(bare, oneKill(b, n, timeBare))
				if i%2 == 1 {
					whole = append(whole, oneKill(b, n, timeKill))
				}
			}
			slices.Sort(whole)
			slices.Sort(bare)
			k, r := whole[len(whole)/2], bare[len(bare)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(k.Microseconds()), "kill-us")
			b.ReportMetric(float64(r.Microseconds()), "bare-us")
			b.ReportMetric(float64(whole[0].Microseconds()), "kill-min-us")
			b.ReportMetric(float64(bare[0].Microseconds()), "bare-min-us")
			b.ReportMetric(float64(k)/float64(r), "ratio")
		})
	}
}

// oneKill fills a fresh cgroup with n sleepers and times how they are ended.
func oneKill(b testing.TB, n int, kill func(testing.TB, *Dir) time.Duration) time.Duration {
	base, err := testBase()
	if err != nil {
		b.Fatal(err)
	}
	d, err := Make(base + "/" + testPrefix + strconv.Itoa(os.Getpid()) + ".bench" + strconv.Itoa(int(testNumber.Add(1))))
	if err != nil {
		b.Fatal(err)
	}
	defer discard(b, d)
	var cmds []*exec.Cmd
	for range n {
		cmd := into(d, exec.Command("sleep", "1000"))
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	time.Sleep(20 * time.Millisecond)
	took := kill(b, d)
	for _, cmd := range cmds {
		_ = cmd.Wait()
	}
	return took
}

func timeKill(b testing.TB, d *Dir) time.Duration {
	start := time.Now()
	k, err := d.Kill(context.Background(), bound)
	took := time.Since(start)
	if err != nil || k.EmptyAt.IsZero() {
		b.Fatalf("%+v, %v", k, err)
	}
	return took
}

func timeBare(b testing.TB, d *Dir) time.Duration {
	start := time.Now()
	if err := os.WriteFile(d.Path()+"/cgroup.kill", []byte("1"), 0); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(d.Path() + "/cgroup.events")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64)
	for {
		n, _ := f.ReadAt(buf, 0)
		if bytes.Contains(buf[:n], []byte("populated 0")) {
			return time.Since(start)
		}
		sys.Nanosleep(100_000)
	}
}

func BenchmarkMakeRemove(b *testing.B) {
	d := testDir(b)
	for b.Loop() {
		c, err := d.Make("leaf")
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
