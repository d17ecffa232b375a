package main

import "os"

// spareFiles keeps some descriptors for what the service cannot do without, its
// socket above all, while it finds turns again: each takes several, and there may
// be more of them than fit. Those are shown as unverifiable, and left alone.
type spareFiles []*os.File

// spared is how many descriptors are kept.
const spared = 64

func keepSpareFiles() (s spareFiles) {
	for range spared {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		s = append(s, f)
	}
	return s
}

// spareFor is keepSpareFiles for a Manager, which goes on when all could be kept.
func spareFor() (free func(), ok bool) {
	s := keepSpareFiles()
	return s.free, len(s) == spared
}

func (s spareFiles) free() {
	for _, f := range s {
		f.Close()
	}
}
