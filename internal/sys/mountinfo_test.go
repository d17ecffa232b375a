package sys

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	hybrid = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
`
	unified   = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	container = "700 690 0:26 /docker/1f /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
	inherited = "700 690 0:26 /../.. /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
	strange   = "50 23 0:26 / /mnt/a\\040b\\134c rw master:1 propagate_from:2 - cgroup2 none rw\n"
)

func TestCgroup2Candidates(t *testing.T) {
	for name, test := range map[string]struct {
		in, own string
		path    string
		n       int
		unified bool
	}{
		"hybrid":             {hybrid, "/", "/sys/fs/cgroup/unified", 1, false},
		"unified":            {unified, "/user.slice", "/sys/fs/cgroup", 1, true},
		"container":          {container, "/docker/1f/x", "/sys/fs/cgroup", 1, true},
		"odd path":           {strange, "/", `/mnt/a b\c`, 1, true},
		"none":               {"23 1 8:1 / / rw - ext4 /dev/vda rw\n", "/", "", 0, true},
		"whole tree first":   {container + "701 690 0:26 / /cg rw - cgroup2 c rw\n", "/docker/1f", "/cg", 2, true},
		"own cgroup first":   {"9 1 0:26 /a /first rw - cgroup2 c rw\n" + container, "/docker/1f", "/sys/fs/cgroup", 2, true},
		"hidden by a later":  {unified + "60 30 0:99 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "/", "", 0, true},
		"later is the same":  {container + unified, "/", "/sys/fs/cgroup", 1, true},
		"outside is as good": {inherited, "/x", "/sys/fs/cgroup", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			mounts, err := ParseMountinfo([]byte(test.in))
			if err != nil {
				t.Fatal(err)
			}
			list, unified := Cgroup2Candidates(mounts, test.own)
			if len(list) != test.n || unified != test.unified {
				t.Fatalf("%+v, unified %v", list, unified)
			}
			if len(list) > 0 && list[0].Path != test.path {
				t.Errorf("first is %s, want %s", list[0].Path, test.path)
			}
		})
	}
}

func TestMountDir(t *testing.T) {
	for _, test := range []struct {
		root, cgroup, want string
		err                error
	}{
		{"/", "/", "/m", nil},
		{"/", "/a/b", "/m/a/b", nil},
		{"/docker/1f", "/docker/1f", "/m", nil},
		{"/docker/1f", "/docker/1f/a", "/m/a", nil},
		{"/docker/1f", "/docker/1ff", "", ErrOutside},
		{"/docker/1f", "/", "", ErrOutside},
		{"/", "/../x", "", ErrOutside},
		{"/", "/x/../../y", "", ErrOutside},
		{"/../..", "/x", "", ErrOutside},
		{"/", "", "", ErrOutside},
		{"/", "/a..b/..c", "/m/a..b/..c", nil},
	} {
		got, err := MountEntry{Root: test.root, Path: "/m"}.Dir(test.cgroup)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("root %s, cgroup %s: %q, %v", test.root, test.cgroup, got, err)
		}
	}
}

func TestParseMountinfoRefuses(t *testing.T) {
	for _, in := range []string{"x\n", "31 23 0:28 / /a rw - \n31 23\n", "31 23 zero / /a rw - tmpfs t rw\n", "31 23 0:28 / /a rw tmpfs t rw\n"} {
		if got, err := ParseMountinfo([]byte(in)); !errors.Is(err, ErrParse) {
			t.Errorf("ParseMountinfo(%q) = %v, %v", in, got, err)
		}
	}
	got, err := ParseMountinfo([]byte(strange))
	want := []MountEntry{{ID: 50, Minor: 26, Root: "/", Path: `/mnt/a b\c`, FSType: "cgroup2"}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
}
