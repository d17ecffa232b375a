package main

import (
	"fmt"
	"strings"
	"time"

	"pinfold.dev/api"
)

// doctorRecords tells what is on disk, and what is wrong with it.
func (a *app) doctorRecords(l api.RecordList) error {
	if err := a.print(l, func(st style) string { return renderRecords(l, st) }); err != nil {
		return err
	}
	if !sound(l) {
		return status(exitNo)
	}
	return nil
}

// sound tells that nothing on disk needs somebody to look at it.
func sound(l api.RecordList) bool {
	for _, r := range l.Records {
		if r.Standing != api.StandingLive && r.Standing != api.StandingOver {
			return false
		}
	}
	return len(l.LeftOver) == 0 && (l.History == nil || l.History.Problem == "" && l.History.Waiting == 0)
}

func renderRecords(l api.RecordList, st style) string {
	var b strings.Builder
	n := map[api.Standing]int{}
	for _, r := range l.Records {
		n[r.Standing]++
	}
	fmt.Fprintf(&b, "records: %d live, %d over and not in the history yet\n", n[api.StandingLive], n[api.StandingOver])
	for _, r := range l.Records {
		if r.Standing == api.StandingLive || r.Standing == api.StandingOver {
			continue
		}
		fmt.Fprintf(&b, "  %s turn %s is %s: %s\n", st.paint(yellow, st.glyph("✘", "no")), clean(r.Turn), r.Standing, clean(r.Why))
		if r.Remedy != "" {
			fmt.Fprintf(&b, "      %s\n", clean(r.Remedy))
		}
	}
	if h := l.History; h != nil {
		fmt.Fprintf(&b, "history: %s of at most %d, %s of at most %s, file %s: %s\n", count(h.Turns, "turn"), h.MaxTurns, size(h.Bytes), size(h.MaxBytes), size(h.FileSize), clean(h.Path))
		if h.Oldest != nil {
			fmt.Fprintf(&b, "  the oldest is of %s; they stay for %s\n", h.Oldest.Local().Format(time.DateTime), time.Duration(h.MaxAgeMS)*time.Millisecond)
		}
		if h.Waiting > 0 {
			verb := "wait"
			if h.Waiting == 1 {
				verb = "waits"
			}
			fmt.Fprintf(&b, "  %s %s to be moved there\n", count(h.Waiting, "turn"), verb)
		}
		if h.Problem != "" {
			fmt.Fprintf(&b, "  %s %s\n", st.paint(yellow, st.glyph("✘", "no")), clean(h.Problem))
		}
	}
	if len(l.LeftOver) > 0 {
		b.WriteString("left over (see `pinfold gc`):\n" + renderLeftOver(l.LeftOver, st))
	}
	return b.String()
}
