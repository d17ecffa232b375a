package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pinfold.dev/api"
)

func TestNothingTwice(t *testing.T) {
	for body, bad := range map[string]string{
		`{"argv":["rm"],"argv":["true"]}`:                                       "argv",
		`{"argv":["rm"] , "cwd":"/" ,"ARGV" :["true"]}`:                         "ARGV",
		`{"argv":["rm"],"\u0061rgv":["true"]}`:                                  "argv",
		"{\"a\u017fk\":1,\"ASK\":2}":                                            "ASK",
		"{\"nice\":1,\"umask\":2,\"uma\u017fk\":3}":                             "uma\u017fk",
		`{"labels":{"a":"1","b":"2","a":"1"}}`:                                  "a",
		`{"labels":{"a":"1","A":"2","aa":"3"},"argv":["labels","labels"]}`:      "",
		`{"labels":{"a":"1","A":"2","A":"3"}}`:                                  "A",
		`{"rlimits":{"core":{"soft":1,"Soft":2}}}`:                              "Soft",
		`{"rlimits":{"core":{"soft":1},"nofile":{"soft":2,"hard":3}}}`:          "",
		`{"rlimits":{"core":{"soft":1},"core":{"soft":2}}}`:                     "core",
		`{"pass_fds":[{"fd":0,"number":3},{"fd":1,"fd":2}]}`:                    "fd",
		`{"pass_fds":[{"fd":0,"number":3},{"fd":1,"number":4}],"argv":["}\""]}`: "",
		`{"argv":["\\","\"","{\"a\":1,\"a\":2}"],"env":[],"labels":{}}`:         "",
		`{"stdio":{"stdin":"null"},"nice":null,"Stdio":{}}`:                     "Stdio",
		`[]`: "", `"\\"`: "", `12`: "", `{}`: "", ` { } `: "",
	} {
		if !json.Valid([]byte(body)) {
			t.Fatal(body)
		}
		err := noneTwice([]byte(body), &api.LaunchRequest{})
		if e, ok := err.(*api.Error); (err != nil) != (bad != "") || ok && (e.Code != api.CodeBadRequest || !strings.Contains(e.Message, `"`+bad+`"`)) {
			t.Errorf("%s: %v, want %q", body, err, bad)
		}
	}
}

// FuzzNothingTwice compares with what is left of the names once they are decoded, of
// those that are twice one: it reads no tokens, as the code does.
func FuzzNothingTwice(f *testing.F) {
	for _, body := range []string{`{"a":{"b":[1,{"c":null,"d":"\\\""}]},"e":-1.5e3}`, `{"a":1,"a":2}`, `[{"":1,"":2}]`, `{"a":[{"b":1}],"c":{"b":1}}`, ` [ true , { "x" : [ ] } ] `, `{"a":{"b":1,"b":":"},"a":3}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var all any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if !json.Valid(body) || !bytes.Equal(bytes.ToLower(body), body) || d.Decode(&all) != nil {
			return // not what is looked at, or alike in another case only
		}
		var into struct{}
		want := namesIn(all) < colons(body)
		if got := noneTwice(body, &into) != nil; got != want {
			t.Errorf("%q: twice is %v", body, got)
		}
	})
}

// colons are those of a JSON text that are in no string: one after each name.
func colons(body []byte) (n int) {
	in := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			in = !in
		case c == '\\':
			i++
		case c == ':' && !in:
			n++
		}
	}
	return n
}

func namesIn(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			n += 1 + namesIn(x)
		}
	case []any:
		for _, x := range v {
			n += namesIn(x)
		}
	}
	return n
}
