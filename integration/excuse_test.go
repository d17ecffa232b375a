package integration

import (
	"slices"
	"testing"
)

// A skip needs a reason that stands, wherever go test writes it.
func TestUnexcused(t *testing.T) {
	const out = `=== RUN   TestA
=== RUN   TestA/x
    a_test.go:1: this host or test bed has no loop devices
=== RUN   TestA/y
    a_test.go:2: just so
--- PASS: TestA (0.11s)
    --- SKIP: TestA/x (0.04s)
    --- SKIP: TestA/y (0.02s)
=== RUN   TestB
    b_test.go:1: skipped: no memory controller
--- SKIP: TestB (0.00s)
=== RUN   TestC
=== PAUSE TestC
=== RUN   TestD
=== PAUSE TestD
=== CONT  TestC
=== CONT  TestD
=== NAME  TestC
    c_test.go:1: skipped: no loop devices
--- SKIP: TestC (0.00s)
=== NAME  TestD
    d_test.go:1: just so
--- SKIP: TestD (0.00s)
`
	if got := unexcused(out); !slices.Equal(got, []string{"TestA/y", "TestD"}) {
		t.Errorf("%q", got)
	}
}
