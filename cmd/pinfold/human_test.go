package main

import (
	"testing"
	"time"

	"pinfold.dev/api"
)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m1s", 11 * time.Minute: "11m",
		90 * time.Minute: "1h30m", 11 * time.Hour: "11h", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 20: "10 MiB", 1<<20 - 1: "1.0 MiB", 5 << 60: "5.0 EiB",
	} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{"": 0, "0": 0, "7": 7, "512M": 512 << 20, "4g": 4 << 30, "1K": 1024} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"M", "-1", "1.5G", "9999999T", "x", "1MB"} {
		if got, err := parseBytes(s); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", s, got)
		}
	}
}

func TestCleanAndCommand(t *testing.T) {
	for s, want := range map[string]string{
		"plain ü": "plain ü", "a\x1b[2Jb": `a\x1b[2Jb`, "x\ny": `x\ny`, "\xff": `\xff`, "\u202e": `\u202e`,
	} {
		if got := clean(s); got != want {
			t.Errorf("clean(%q) = %q, want %q", s, got, want)
		}
	}
	if got, want := command([]string{"sh", "-c", "it's", "", "a\x07"}), `sh -c 'it'\''s' '' a\a`; got != want {
		t.Errorf("command = %q, want %q", got, want)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 0, "abc"}, {"abc", 3, "abc"}, {"abcd", 3, "ab~"}, {"äöüß", 2, "ä~"}, {"ab", 1, "~"}} {
		if got := cut(c.s, c.n, style{}); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}

func TestStatusText(t *testing.T) {
	for want, s := range map[string]api.Status{
		"running":              {State: api.ProcessRunning},
		"exited 0":             {State: api.ProcessExited},
		"SIGSEGV, core dumped": {State: api.ProcessSignaled, Signal: "SIGSEGV", Core: true},
		"out of memory":        {State: api.ProcessOOM, Signal: "SIGKILL"},
		"lost":                 {State: api.ProcessLost, Why: "x"},
	} {
		if got := statusText(s); got != want {
			t.Errorf("statusText(%+v) = %q, want %q", s, got, want)
		}
	}
}

func TestIsUTF8(t *testing.T) {
	env := func(kv map[string]string) func(string) string { return func(k string) string { return kv[k] } }
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "en_GB.UTF-8"}, true},
		{map[string]string{"LANG": "C.utf8"}, true},
		{map[string]string{"LANG": "en_GB.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true},
	} {
		if got := isUTF8(env(c.env)); got != c.want {
			t.Errorf("isUTF8(%v) = %v", c.env, got)
		}
	}
}
