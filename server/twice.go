package server

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"unicode/utf8"

	"pinfold.dev/api"
)

// noneTwice refuses an object that has a name twice, of which encoding/json takes
// the last: who looks at a request before us may take the first. The body is valid
// JSON. Fields are the same in whatever case, as encoding/json has it; names in a
// map are not.
func noneTwice(body []byte, req any) error {
	s := names{b: body, root: reflect.TypeOf(req)}
	s.value()
	if s.twice == nil {
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "field %q is there twice", clip(*s.twice)).WithRemedy("say it once")
}

// names is a walk over valid JSON that looks at the names in it.
type names struct {
	b     []byte
	at    int
	root  reflect.Type
	path  []string // down to where it is: names, and "" for what is in an array
	twice *string
}

func (s *names) value() {
	switch s.peek() {
	case '{':
		s.at++
		s.object()
	case '[':
		s.at++
		s.path = append(s.path, "")
		for s.more(']') {
			s.value()
		}
		s.path = s.path[:len(s.path)-1]
	case '"':
		s.text()
	default: // a number, or a word
		for s.at < len(s.b) && !strings.ContainsRune(",]} \t\r\n", rune(s.b[s.at])) {
			s.at++
		}
	}
}

func (s *names) object() {
	seen, folded := map[string]bool{}, map[string]bool{}
	known, fields := false, false // whether it is one of fields
	for s.more('}') {
		name := s.name()
		f := fold(name)
		if !seen[name] && folded[f] && !known {
			known, fields = true, s.ofFields()
		}
		if seen[name] || folded[f] && fields {
			s.twice, s.at = &name, len(s.b)
			return
		}
		seen[name], folded[f] = true, true
		s.path = append(s.path, name)
		s.value()
		s.path = s.path[:len(s.path)-1]
	}
}

// peek is the next byte that is no space; 0 at the end.
func (s *names) peek() byte {
	for s.at < len(s.b) && strings.IndexByte(" \t\r\n,:", s.b[s.at]) >= 0 {
		s.at++
	}
	if s.at == len(s.b) {
		return 0
	}
	return s.b[s.at]
}

// more tells whether something comes before the end of an array or object, which it
// goes past.
func (s *names) more(end byte) bool {
	c := s.peek()
	if c == end {
		s.at++
	}
	return c != 0 && c != end
}

// text goes past a string, and returns it with its quotes.
func (s *names) text() []byte {
	from := s.at
	for s.at++; s.at < len(s.b) && s.b[s.at] != '"'; s.at++ {
		if s.b[s.at] == '\\' {
			s.at++
		}
	}
	s.at = min(s.at+1, len(s.b))
	return s.b[from:s.at]
}

func (s *names) name() string {
	s.peek()
	text := s.text()
	if bytes.IndexByte(text, '\\') < 0 && len(text) >= 2 {
		return string(text[1 : len(text)-1])
	}
	var name string
	_ = json.Unmarshal(text, &name)
	return name
}

// fold is a name in one case.
func fold(name string) string {
	if name = strings.ToLower(name); len(name) == utf8.RuneCountInString(name) {
		return name
	}
	return strings.ToLower(strings.ToUpper(name)) // ſ and the Kelvin sign are letters of ASCII, too
}

// ofFields tells whether what is at the path has fields, not names of the client's.
func (s *names) ofFields() bool {
	t := bare(s.root)
	for _, name := range s.path {
		switch t.Kind() {
		case reflect.Slice, reflect.Array, reflect.Map:
			t = bare(t.Elem())
		case reflect.Struct:
			f, ok := fieldNamed(t, name)
			if !ok {
				return false
			}
			t = bare(f.Type)
		default:
			return false
		}
	}
	return t.Kind() == reflect.Struct
}

// bare is a type without its pointers.
func bare(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
