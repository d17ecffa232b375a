package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold.dev/internal/wire"
)

const journal = `{"at_ns":1,"fact":"keeper","hello":{"version":1,"turn":"t1","nonce":""}}
{"at_ns":2,"fact":"intent","process":"p1","started":{"process":"p1","pid":0,"uid":0,"leaf":"/w/p1","placement":"","started_ns":2}}
{"at_ns":3,"fact":"started","process":"p1","started":{"process":"p1","pid":11,"uid":0,"leaf":"/w/p1","placement":"clone","started_ns":2}}
{"at_ns":4,"fact":"intent","process":"p2","started":{"process":"p2","pid":0,"uid":0,"leaf":"/w/p2","placement":"","started_ns":4}}
{"at_ns":5,"fact":"not_started","process":"p2","error":{"kind":"exec","message":"no"}}
{"at_ns":6,"fact":"exit","process":"p1","exit":{"process":"p1","pid":11,"code":3,"ended_ns":6}}
{"at_ns":7,"fact":"from the future","process":"p1"}
{"at_ns":8,"fact":"intent","process":"p3","started":{"process":"p3","pid":0,"uid":0,"leaf":"/w/p3","placement":"","started_ns":8}}
`

func TestReadJournal(t *testing.T) {
	torn := strings.Replace(journal, "\n", "\n{\"at_ns\":9,\"fa\n\n", 1) + `{"at_ns":9,"fact":"exit","proc`
	for _, tt := range []struct {
		name, text string
		torn       int
	}{{"whole", journal, 0}, {"torn", torn, 2}, {"a line beyond every bound", journal + strings.Repeat("x", 3<<20) + "\n" + journal[:0], 1}} {
		list, n, err := wire.ReadJournal(strings.NewReader(tt.text))
		if err != nil || n != tt.torn || len(list) != 8 {
			t.Fatalf("%s: %d entries, %d torn, %v", tt.name, len(list), n, err)
		}
		want := []wire.Recorded{
			{Process: wire.Process{
				Started: wire.Started{Process: "p1", PID: 11, Leaf: "/w/p1", Placement: "clone", StartedNS: 2},
				Exit:    &wire.Exit{Process: "p1", PID: 11, Code: 3, EndedNS: 6},
			}},
			{Process: wire.Process{Started: wire.Started{Process: "p3", Leaf: "/w/p3", StartedNS: 8}}, Unsure: true},
		}
		if d := cmp.Diff(want, wire.Launches(list)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add([]byte(journal))
	f.Add([]byte(journal)[:300])
	f.Add([]byte("{}\n\n{\"fact\":\"exit\",\"exit\":{}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, torn, err := wire.ReadJournal(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(b, []byte("\n")) + 1; len(list)+torn > lines {
			t.Fatalf("%d entries and %d torn of %d lines", len(list), torn, lines)
		}
		for _, r := range wire.Launches(list) {
			if r.Process.Started.Process == "" {
				t.Fatal("a launch without a name")
			}
		}
	})
}
