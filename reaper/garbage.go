package reaper

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"strconv"

	"pinfold.dev/internal/sys"
)

// garbage decides when to collect. The runtime's own collector is off: it keeps
// as much again as is alive, and wakes an idle process every two minutes. Work
// is counted, and the heap looked at seldom.
type garbage struct {
	work  int    // frames and children since the last collection, about
	next  int    // look at the heap when work has come here
	start uint64 // heap after the last collection
}

const (
	garbageLook  = 128     // work between two looks at the heap
	garbageSome  = 64      // work that is worth a collection once nothing happens
	garbageMost  = 1 << 20 // bytes that are not let grow
	garbagePause = 1000    // ms without anything happening
)

// did notes that a child, a frame or something else of so many bytes was handled.
func (g *garbage) did(bytes int) {
	if g.work += 1 + bytes>>12; g.work < g.next {
		return
	}
	g.next = g.work + garbageLook
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > g.start+garbageMost {
		g.collect()
	}
}

// collect collects, and gives the system back what is free.
func (g *garbage) collect() {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*g = garbage{next: garbageLook, start: m.HeapAlloc}
}

// pause is how long the loop may wait for something to happen before it should
// collect, or -1.
func (g *garbage) pause() int {
	if g.work < garbageSome {
		return -1
	}
	return garbagePause
}

// staySmall keeps the runtime's mappings free of huge pages. Where they are on
// for everybody, the kernel makes one of 2 MiB wherever one page is used: more
// than all that the keeper needs.
func staySmall() {
	maps, err := sys.ProcFile(0, "maps")
	if err != nil {
		return
	}
	for line := range bytes.Lines(maps) {
		f := bytes.Fields(line)
		if len(f) != 5 || string(f[1]) != "rw-p" { // with a sixth it is a file, or the stack
			continue
		}
		from, to, _ := bytes.Cut(f[0], []byte("-"))
		a, err := strconv.ParseUint(string(from), 16, 64)
		b, err2 := strconv.ParseUint(string(to), 16, 64)
		if err == nil && err2 == nil && b > a {
			_ = sys.NoHugePage(uintptr(a), uintptr(b-a))
		}
	}
}
