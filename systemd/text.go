package systemd

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDescription bounds a description, in bytes: it is one line of a listing.
const maxDescription = 256

// Description makes any text fit for a unit's Description and for a status
// line: valid UTF-8, one line, printable, at most 256 bytes. It ends in no
// backslash, which in the unit file that a manager writes and reads again
// would swallow the next line, the one that delegates the cgroup.
func Description(s string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	s = strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) && !unicode.Is(unicode.Zl, r) && !unicode.Is(unicode.Zp, r) {
			return r
		}
		return ' '
	}, s)
	const more = "…"
	if len(s) > maxDescription {
		n := maxDescription - len(more)
		for !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + more
	}
	s = strings.TrimRightFunc(strings.TrimSpace(s), func(r rune) bool { return r == '\\' || unicode.IsSpace(r) })
	if s == "" {
		return "pinfold"
	}
	return s
}

// UnitName is the scope's name for an id of ours: 1 to 64 lower-case letters and
// digits. For anything else it is "", which StartScope refuses, so that nothing
// a caller says can get into a unit name or a path.
func UnitName(id string) string {
	unit := unitPrefix + id + unitSuffix
	if !ourUnit(unit) {
		return ""
	}
	return unit
}

const (
	unitPrefix = "pinfold-"
	unitSuffix = ".scope"
)

// ourUnit tells whether UnitName could have made the name.
func ourUnit(unit string) bool {
	id, ok := strings.CutPrefix(unit, unitPrefix)
	if !ok {
		return false
	}
	if id, ok = strings.CutSuffix(id, unitSuffix); !ok || len(id) < 1 || len(id) > 64 {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}
