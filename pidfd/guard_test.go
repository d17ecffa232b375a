package pidfd

import (
	"errors"
	"slices"
	"testing"
)

func TestRefuse(t *testing.T) {
	const self, group = 500, 400
	for _, test := range []struct {
		what   string
		err    error
		refuse bool
	}{
		{"pid 0 (read from cgroup.procs)", RefusePID(0, self), true},
		{"pid -1 (everything)", RefusePID(-1, self), true},
		{"pid -500 (our own group)", RefusePID(-self, self), true},
		{"pid 1", RefusePID(1, self), true},
		{"ourselves", RefusePID(self, self), true},
		{"another", RefusePID(self+1, self), false},
		{"pid 2", RefusePID(2, self), false},
		{"pid 2^32+1, which kill(2) takes for 1", RefusePID(1<<32+1, self), true},
		{"pid 2^32-1, which kill(2) takes for -1", RefusePID(1<<32-1, self), true},
		{"the highest number", RefusePID(1<<31-1, self), false},
		{"group 2^32+1", RefuseGroup(1<<32+1, group), true},
		{"group 0 (our own)", RefuseGroup(0, group), true},
		{"group 1 (kill(-1) is everything)", RefuseGroup(1, group), true},
		{"negative group", RefuseGroup(-7, group), true},
		{"our own group", RefuseGroup(group, group), true},
		{"another group", RefuseGroup(group+1, group), false},
		{"no cgroup", RefuseCgroup(0, []uint64{9, 5, 1}), true},
		{"our own cgroup", RefuseCgroup(9, []uint64{9, 5, 1}), true},
		{"its parent", RefuseCgroup(5, []uint64{9, 5, 1}), true},
		{"the root", RefuseCgroup(1, []uint64{9, 5, 1}), true},
		{"another cgroup", RefuseCgroup(7, []uint64{9, 5, 1}), false},
		{"a cgroup that holds us", RefuseHolding(slices.Values([]int{7, self, 9}), self), true},
		{"a cgroup that does not", RefuseHolding(slices.Values([]int{7, 0, 9}), self), false},
		{"an empty cgroup", RefuseHolding(slices.Values([]int{}), self), false},
		{"any cgroup where ours is unknown", RefuseCgroup(7, nil), false},
	} {
		if got := errors.Is(test.err, ErrRefused); got != test.refuse || (test.err == nil) == test.refuse {
			t.Errorf("%s: %v", test.what, test.err)
		}
	}
}
