package systemd

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// anyText draws what a caller might send as a label or an id: text, bytes, and
// the characters that mean something to units, paths and terminals.
func anyText() *rapid.Generator[string] {
	nasty := rapid.StringOfN(rapid.SampledFrom([]rune("/\\-.%$@:\n\r\t\x00\x1b\u2028\u202eé🐑 aZ0\"'#;[]=")), 0, 300, -1)
	bytes := rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) })
	return rapid.OneOf(nasty, bytes, rapid.String())
}

func TestUnitNameIsOursOrNothing(t *testing.T) {
	ours := regexp.MustCompile(`\Apinfold-[0-9a-z]{1,64}\.scope\z`)
	rapid.Check(t, func(t *rapid.T) {
		id := anyText().Draw(t, "id")
		unit := UnitName(id)
		if unit != "" && !ours.MatchString(unit) {
			t.Fatalf("UnitName(%q) = %q", id, unit)
		}
		if unit != "" && unit != "pinfold-"+id+".scope" {
			t.Fatalf("UnitName(%q) = %q: another id", id, unit)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[0-9a-f]{1,64}`).Draw(t, "id")
		if got, want := UnitName(id), "pinfold-"+id+".scope"; got != want {
			t.Fatalf("UnitName(%q) = %q, want %q", id, got, want)
		}
	})
}

func TestDescriptionIsOneSafeLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := anyText().Draw(t, "label")
		d := Description(label)
		switch {
		case d == "", len(d) > maxDescription, !utf8.ValidString(d):
			t.Fatalf("Description(%q) = %q", label, d)
		case strings.HasSuffix(d, `\`):
			t.Fatalf("Description(%q) = %q swallows the next line of a unit file", label, d)
		case strings.ContainsFunc(d, func(r rune) bool { return !unicode.IsGraphic(r) }):
			t.Fatalf("Description(%q) = %q has control characters", label, d)
		case Description(d) != d:
			t.Fatalf("Description(%q) = %q, and of that %q", label, d, Description(d))
		}
	})
}

func TestDescriptionKeepsWhatPeopleWrite(t *testing.T) {
	for label, want := range map[string]string{
		"fix the build":            "fix the build",
		"/etc/passwd & 100% done":  "/etc/passwd & 100% done",
		"-rf":                      "-rf",
		"Schafstall für 🐑":         "Schafstall für 🐑",
		"two\nlines":               "two lines",
		"\x1b[31mred":              " [31mred"[1:],
		`C:\`:                      "C:",
		"\xff":                     "\uFFFD",
		"":                         "pinfold",
		strings.Repeat("é", 200):   strings.Repeat("é", 126) + "…",
		strings.Repeat("a", 256):   strings.Repeat("a", 256),
		strings.Repeat(`a\`, 1000): strings.Repeat(`a\`, 126) + "a…",
	} {
		if got := Description(label); got != want {
			t.Errorf("Description(%q) = %q, want %q", label, got, want)
		}
	}
}
