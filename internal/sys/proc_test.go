package sys

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tail is fields 4 to 24 and a little more, as the kernel writes them.
const tail = " 1 20 30 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 98765 4096000 321 18446744073709551615 1 1\n"

func TestParseStat(t *testing.T) {
	for name, test := range map[string]struct {
		in   string
		want Stat
		err  error
	}{
		"plain":      {in: "77 (sleep) S" + tail, want: Stat{77, "sleep", 'S', 1, 20, 30, 1, 98765, 321}},
		"space":      {in: "77 (a b) R" + tail, want: Stat{77, "a b", 'R', 1, 20, 30, 1, 98765, 321}},
		"parens":     {in: "77 (a) S 1 2) Z" + tail, want: Stat{77, "a) S 1 2", 'Z', 1, 20, 30, 1, 98765, 321}},
		"newline":    {in: "77 (a\n) 1 (b) D" + tail, want: Stat{77, "a\n) 1 (b", 'D', 1, 20, 30, 1, 98765, 321}},
		"empty name": {in: "77 () S" + tail, want: Stat{77, "", 'S', 1, 20, 30, 1, 98765, 321}},
		"empty":      {err: ErrParse},
		"short":      {in: "77 (sleep) S 1 20 30", err: ErrParse},
		"no paren":   {in: "77 sleep S" + tail, err: ErrParse},
		"no pid":     {in: "(sleep) S" + tail, err: ErrParse},
		"bad start":  {in: "77 (x) S" + strings.Replace(tail, "98765", "-5", 1), err: ErrParse},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseStat([]byte(test.in))
			if !errors.Is(err, test.err) {
				t.Fatalf("error %v, want %v", err, test.err)
			}
			if d := cmp.Diff(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("sleep", uint64(98765))
	f.Add(") S 1 2 (\n", uint64(0))
	f.Fuzz(func(t *testing.T, comm string, start uint64) {
		in := "77 (" + comm + ") S" + strings.Replace(tail, "98765", strconv.FormatUint(start, 10), 1)
		got, err := ParseStat([]byte(in))
		if err != nil || got.Comm != comm || got.StartTicks != start || got.State != 'S' {
			t.Fatalf("ParseStat(%q) = %+v, %v", in, got, err)
		}
		for cut := range len(in) { // read short: an error, or the right pid, never a panic
			if got, err := ParseStat([]byte(in[:cut])); err == nil && got.PID != 77 {
				t.Fatalf("ParseStat(%q) = %+v", in[:cut], got)
			}
		}
	})
}

func TestParseStatus(t *testing.T) {
	const in = "Name:\tUid:\\n 5\nUmask:\t0022\nTgid:\t44\nNgid:\t0\nPid:\t45\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t45\t3\n"
	got, err := ParseStatus([]byte(in))
	if d := cmp.Diff(Status{TGID: 44, UID: 1000, EUID: 0, NSPIDs: []int{45, 3}}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, in := range []string{"", "Tgid:\t1\n", "Uid:\t1\t1\t1\t1\n", "Tgid:\tx\nUid:\t1\t1\n", "Tgid:\t1\nUid:\t1\n", "Tgid:\t1\nUid:\t-1\t0\n"} {
		if got, err := ParseStatus([]byte(in)); !errors.Is(err, ErrParse) {
			t.Errorf("ParseStatus(%q) = %+v, %v", in, got, err)
		}
	}
}

func TestParseCgroup(t *testing.T) {
	for in, want := range map[string]struct {
		path string
		err  error
	}{
		"0::/\n": {path: "/"},
		"9:name=systemd:/x\n8:pids:/y\n0::/a/b c\n": {path: "/a/b c"},
		"0::/../../x\n":                       {path: "/../../x"},
		"0::/x (deleted)\n":                   {path: "/x (deleted)"},
		"1:name=0::/fake:/real\n0::/a:b::c\n": {path: "/a:b::c"},
		"":                                    {err: ErrNoCgroup2},
		"8:pids:/y\n":                         {err: ErrNoCgroup2},
		"0::/cut":                             {err: ErrParse},
		"0::relative\n":                       {err: ErrParse},
		"0::\n":                               {err: ErrParse},
		"10::/not-the-unified-one\n0::/the-real-one\n": {path: "/the-real-one"},
	} {
		got, err := ParseCgroup([]byte(in))
		if got != want.path || !errors.Is(err, want.err) {
			t.Errorf("ParseCgroup(%q) = %q, %v", in, got, err)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("0::/a\n"))
	f.Add([]byte("31 23 0:28 / /a\\040b rw - tmpfs tmpfs rw\n"))
	f.Add([]byte("1\n2\n0\n"))
	f.Add([]byte("Tgid:\t1\nUid:\t1\t1\t1\t1\nNSpid:\t1\n"))
	f.Add([]byte("Uid:0 0\nUid:0 0"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if p, err := ParseCgroup(in); err == nil && !strings.HasPrefix(p, "/") {
			t.Errorf("cgroup %q", p)
		}
		if s, err := ParseStatus(in); err == nil && s.TGID < 0 {
			t.Errorf("status %+v", s)
		}
		ns, _ := ParseNumbers(in)
		for _, n := range ns {
			if n < 0 {
				t.Errorf("numbers %v", ns)
			}
		}
		ms, err := ParseMountinfo(in)
		if err != nil && ms != nil {
			t.Error("mounts with an error")
		}
		Cgroup2Candidates(ms, "/a")
		ParseKV(in, "populated")
	})
}

func TestParseNumbers(t *testing.T) {
	for in, want := range map[string][]int{
		"":                 {},
		"12\n0\n7\n":       {12, 0, 7},
		"12 13 ":           {12, 13},
		"12":               {12},
		"\n\n5\n":          {5},
		"2147483647\n1\n":  {2147483647, 1},
		"99999999999999\n": nil,
		"1\nx\n":           nil,
		"-1\n":             nil,
	} {
		got, err := ParseNumbers([]byte(in))
		if (err != nil) != (want == nil) || (err == nil && !cmp.Equal(got, want)) {
			t.Errorf("ParseNumbers(%q) = %v, %v", in, got, err)
		}
	}
}

func TestParseKV(t *testing.T) {
	in := []byte("populated 1\nfrozen 0\noom_kill 12\noom_kill_x y\n")
	for key, want := range map[string]int64{"populated": 1, "frozen": 0, "oom_kill": 12} {
		if n, ok := ParseKV(in, key); !ok || n != want {
			t.Errorf("%s = %d, %v", key, n, ok)
		}
	}
	for _, key := range []string{"pop", "oom", "oom_kill_x", ""} {
		if n, ok := ParseKV(in, key); ok {
			t.Errorf("%q = %d", key, n)
		}
	}
}
