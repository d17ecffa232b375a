package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// contestant does one thing in one way; run returns how long the part of it
// took that is compared.
type contestant struct {
	name string
	run  func() (time.Duration, error)
}

// samples are what a contestant took, sorted.
type samples []time.Duration

func (s samples) at(share float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[min(int(share*float64(len(s))), len(s)-1)]
}

func (s samples) median() time.Duration { return s.at(0.5) }
func (s samples) p90() time.Duration    { return s.at(0.9) }

// compare lets the contestants run in turn, A B C, B C A, …, so that what
// disturbs the machine disturbs all of them, and none always comes after the
// same one. The first rounds warm up and do not count.
func compare(rounds int, cs ...contestant) ([]samples, error) {
	warm := max(1, rounds/10)
	out := make([]samples, len(cs))
	for i := range warm + rounds {
		for j := range cs {
			k := (i + j) % len(cs)
			d, err := cs[k].run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cs[k].name, err)
			}
			if i >= warm {
				out[k] = append(out[k], d)
			}
		}
	}
	for _, s := range out {
		slices.SortFunc(s, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	}
	return out, nil
}

// budget is what DESIGN allows: at most Times of the peer and Plus on top.
type budget struct {
	times float64
	plus  time.Duration
}

func (b budget) String() string {
	switch {
	case b.times == 0:
		return ""
	case b.times == 1 && b.plus == 0:
		return "faster"
	case b.plus == 0:
		return fmt.Sprintf("%.2g x", b.times)
	}
	return fmt.Sprintf("%.2g x + %s", b.times, b.plus)
}

// row is one line of the table: ours against one peer, or a plain figure.
type row struct {
	Group  string `json:"group"`
	What   string `json:"what"`
	Ours   string `json:"ours"`
	Peer   string `json:"peer,omitempty"` // which
	Theirs string `json:"theirs,omitempty"`
	Ratio  string `json:"ratio,omitempty"`
	Budget string `json:"budget,omitempty"`
	// Stands says how the median stands against the budget: ok, or what it is
	// over by.
	Stands string `json:"stands,omitempty"`
}

// against makes a row of two contestants' samples.
func against(group, what string, ours, theirs samples, peer string, b budget) row {
	r := row{Group: group, What: what, Ours: show(ours), Peer: peer, Theirs: show(theirs), Budget: b.String()}
	om, tm := float64(ours.median()), float64(theirs.median())
	r.Ratio = fmt.Sprintf("%.2f", om/tm)
	if b.times > 0 {
		r.Stands = stands(om, b.times*tm+float64(b.plus), b.plus > 0)
	}
	return r
}

// stands tells whether a figure keeps to what is allowed. Where a budget has a
// fixed part the excess is a time, else a share.
func stands(have, allowed float64, absolute bool) string {
	switch {
	case have <= allowed:
		return "ok"
	case absolute:
		return "over by " + brief(time.Duration(have-allowed))
	}
	return fmt.Sprintf("over by %.0f %%", 100*(have/allowed-1))
}

func show(s samples) string { return brief(s.median()) + " (" + brief(s.p90()) + ")" }

// brief is a time to three digits.
func brief(d time.Duration) string {
	ms := float64(d) / 1e6
	switch {
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
