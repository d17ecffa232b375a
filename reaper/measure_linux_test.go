package reaper_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// keeperFDs counts the keeper's descriptors, without those by which the Go
// runtime waits for timers: it makes them with the first collection.
func (b *bed) keeperFDs() (n int) {
	dir := fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range list {
		to, err := os.Readlink(filepath.Join(dir, d.Name()))
		if err == nil && to != "anon_inode:[eventpoll]" && to != "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

// keeperChildren lists the keeper's children, zombies included.
func (b *bed) keeperChildren() string {
	pid := b.cmd.Process.Pid
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var all strings.Builder
	for _, f := range tasks {
		text, _ := os.ReadFile(f)
		all.Write(text)
	}
	return all.String()
}

// keeperMemory is the keeper's private memory in bytes, without that of files.
func (b *bed) keeperMemory() (total int) {
	b.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		n := 0
		if _, err := fmt.Sscanf(string(line), "Anonymous: %d kB", &n); err == nil {
			return n << 10
		}
	}
	b.t.Fatal("no Anonymous line in smaps_rollup")
	return 0
}

// keeperTicks is the processor time that the keeper has used.
func (b *bed) keeperTicks() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
	user, system := 0, 0
	fmt.Sscan(f[12], &user)
	fmt.Sscan(f[13], &system)
	return user + system
}

// keeperSwitches counts how often the keeper's threads went to wait.
func (b *bed) keeperSwitches() (n int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", b.cmd.Process.Pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		var v int
		fmt.Sscan(rest, &v)
		n += v
	}
	return n
}

// idles waits until the keeper has been idle for so long: one that is woken again and
// again never is. At first the runtime's monitor has not gone to sleep, and leaves are
// removed.
func (b *bed) idles(d time.Duration) {
	b.t.Helper()
	time.Sleep(3 * time.Second)
	for try := 0; ; try++ {
		ticks, switches := b.keeperTicks(), b.keeperSwitches()
		time.Sleep(d)
		more, worked := b.keeperSwitches()-switches, b.keeperTicks()-ticks
		if more <= 2 && worked == 0 && switches > 0 { // the monitor looks once a minute
			return
		}
		if try == 10 {
			b.t.Errorf("%d thread switches and %d ticks in %s of idleness", more, worked, d)
			return
		}
	}
}

// connections counts the keeper's.
func (b *bed) connections() (n int) {
	dir := fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range list {
		if to, _ := os.Readlink(filepath.Join(dir, d.Name())); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n - 1 // it listens on one
}
