package main

import "time"

// gapEvery is how often a gap that goes on is told.
const gapEvery = 5 * time.Second

// gaps tells of bytes that cannot be shown: at once, then, while they go on and
// on, as when the bound of a turn's output is reached, now and then, and at last
// when that is over.
type gaps struct {
	tell     func(from, to int64) // nil: nobody asks
	from, to int64                // what is not told yet
	last     time.Time            // when some was
}

func (g *gaps) add(from, to int64) {
	if from != g.to { // another
		g.flush()
		g.from, g.last = from, time.Time{}
	}
	g.to = to
	if time.Since(g.last) >= gapEvery {
		g.flush()
	}
}

// flush tells what was not told yet.
func (g *gaps) flush() {
	if g.from < g.to && g.tell != nil {
		g.tell(g.from, g.to)
		g.last = time.Now()
	}
	g.from = g.to
}
