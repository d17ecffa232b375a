package main

import (
	"os"
	"strings"

	"golang.org/x/term"
)

// style is what the reader's screen can show. The zero style is plain ASCII
// of any width: right for files and pipes.
type style struct {
	utf8  bool
	color bool
	width int // 0: no limit
}

// style looks at the environment and at standard output.
func (a *app) style() style {
	s := style{utf8: isUTF8(a.getenv)}
	f, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return s
	}
	s.color = a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
	if w, _, err := term.GetSize(int(f.Fd())); err == nil {
		s.width = w
	}
	return s
}

// isUTF8 follows locale(7): the first of the three that is set decides.
func isUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToUpper(v)
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return false
}

// glyph is u where the screen shows UTF-8, plain otherwise.
func (s style) glyph(u, plain string) string {
	if s.utf8 {
		return u
	}
	return plain
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	faint  = "2"
)

// paint colours text, where there is colour.
func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
