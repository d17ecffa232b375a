package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// Whoever logs is not held up by who does not read; what did not fit is told
// when that one reads again.
func TestBehind(t *testing.T) {
	r, w := io.Pipe()
	b := newBehind(w, func(lost int64) { fmt.Fprintf(w, "lost %d\n", lost) })
	const all = queued + 500
	for i := range all {
		if n, err := fmt.Fprintf(b, "%d\n", i); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	b.flush(time.Millisecond) // does not wait for ever
	text := make(chan string)
	go func() {
		got, _ := io.ReadAll(r)
		text <- string(got)
	}()
	b.flush(time.Minute)
	w.Close()
	got := <-text
	// Told once, or twice: what was lost before the writer first ran is told
	// then, and what was lost after it, later.
	lines, lost, said := 0, 0, 0
	for l := range strings.Lines(got) {
		some := 0
		if n, _ := fmt.Sscanf(l, "lost %d", &some); n == 1 {
			said++
			lost += some
		} else {
			lines++
		}
	}
	if said < 1 || said > 2 || lost < 400 || lines+lost != all {
		t.Errorf("%d lines, %d lost, told %d times", lines, lost, said)
	}
}
