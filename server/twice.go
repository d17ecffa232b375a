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
	s := names{d: json.NewDecoder(bytes.NewReader(body)), root: reflect.TypeOf(req)}
	s.d.UseNumber() // or one that no float64 holds would end the walk
	s.value()
	switch {
	case s.err != nil:
		return badJSON(s.err)
	case s.twice == nil:
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "field %q is there twice", clip(*s.twice)).WithRemedy("say it once")
}

// names is a walk over valid JSON that looks at the names in it.
type names struct {
	d     *json.Decoder
	root  reflect.Type
	path  []string // down to where it is: names, and "" for what is in an array
	twice *string
	err   error
}

func (s *names) token() (t json.Token) {
	if s.err == nil {
		t, s.err = s.d.Token()
	}
	return t
}

// more tells whether there is more of an array or object that is worth a look.
func (s *names) more() bool { return s.twice == nil && s.err == nil && s.d.More() }

func (s *names) value() {
	switch s.token() {
	case json.Delim('{'):
		s.object()
	case json.Delim('['):
		for s.more() {
			s.below("")
		}
		s.token()
	}
}

func (s *names) below(name string) {
	s.path = append(s.path, name)
	s.value()
	s.path = s.path[:len(s.path)-1]
}

func (s *names) object() {
	seen, folded := map[string]bool{}, map[string]bool{}
	known, fields := false, false // whether it is one of fields
	for s.more() {
		name, _ := s.token().(string)
		f := fold(name)
		if !seen[name] && folded[f] && !known {
			known, fields = true, s.ofFields()
		}
		if seen[name] || folded[f] && fields {
			s.twice = &name
			return
		}
		seen[name], folded[f] = true, true
		s.below(name)
	}
	s.token()
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
