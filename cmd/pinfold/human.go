package main

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"pinfold.dev/api"
)

// age is a span of time as people say it: one unit, or two small ones.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 10*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func ageMS(ms int64) string { return age(time.Duration(ms) * time.Millisecond) }

// size is a size in powers of 1024.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1023.95 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[u])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[u])
}

// cpu is processor time.
func cpu(usec int64) string {
	d := time.Duration(usec) * time.Microsecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// owner is a uid's name, or its number where it has none.
func owner(uid uint32) string {
	n := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return n
}

// clean makes text from elsewhere safe to show: what runs in a turn chooses
// its own name, and may put terminal commands into it.
func clean(s string) string {
	ok := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if ok(r) {
			b.WriteRune(r)
			continue
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		q := strconv.QuoteToASCII(s[i : i+n])
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

// cut shortens s to at most n characters; n < 1 means no limit.
func cut(s string, n int, st style) string {
	if n < 1 || utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	more := st.glyph("…", "~")
	return string(r[:max(0, n-1)]) + more
}

// command is an argv on one line, quoted where a word would not stand alone.
func command(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`;&|<>()*?[]{}#~!") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = clean(w)
	}
	return strings.Join(words, " ")
}

// statusText is how a process is, or how it ended.
func statusText(s api.Status) string {
	core := ""
	if s.Core {
		core = ", core dumped"
	}
	switch s.State {
	case api.ProcessExited:
		return fmt.Sprintf("exited %d", s.Code)
	case api.ProcessSignaled:
		return s.Signal + core
	case api.ProcessOOM:
		return "out of memory"
	}
	return string(s.State)
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "s") {
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
