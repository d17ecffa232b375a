package wire

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// random fills in a value: every field of every type that is reached.
func random(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			random(r, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			random(r, v.Field(i))
		}
	case reflect.Slice:
		if n := r.IntN(4); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n-1))
		}
		for i := range v.Len() {
			random(r, v.Index(i))
		}
	case reflect.String:
		all := []string{"", "x", "p1", "a b\"c\\d/\n\t\x00\x1f\x7f", "äöü€\u2028😀", strings.Repeat("y", 300)}
		v.SetString(all[r.IntN(len(all))])
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(256)))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt([]int64{0, 1, -1, 1<<63 - 1, -1 << 63, r.Int64()}[r.IntN(6)])
	case reflect.Uint32:
		v.SetUint([]uint64{0, 7, 1<<32 - 1}[r.IntN(3)])
	case reflect.Uint64:
		v.SetUint([]uint64{0, 7, 1<<64 - 1, r.Uint64()}[r.IntN(4)])
	default:
		panic(v.Kind())
	}
}

// The tags and the field lists say the same, whichever side reads or writes.
func TestCodecAgreesWithEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		for _, v := range []fielder{new(Message), new(Entry)} {
			random(r, reflect.ValueOf(v).Elem())
			ours := encode(nil, v)
			theirs, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			fresh := func() fielder { return reflect.New(reflect.TypeOf(v).Elem()).Interface().(fielder) }
			a, b, c, d := fresh(), fresh(), fresh(), fresh()
			if err := decode(ours, a); err != nil {
				t.Fatalf("we do not read what we wrote: %v\n%s", err, ours)
			}
			if err := decode(theirs, b); err != nil {
				t.Fatalf("we do not read %s: %v", theirs, err)
			}
			if err := json.Unmarshal(ours, c); err != nil {
				t.Fatalf("it does not read %s: %v", ours, err)
			}
			if err := json.Unmarshal(theirs, d); err != nil {
				t.Fatal(err)
			}
			for _, x := range []fielder{a, b, c} {
				if diff := cmp.Diff(d, x); diff != "" {
					t.Fatalf("%s\n%s", ours, diff)
				}
			}
			var m1, m2 map[string]any
			json.Unmarshal(ours, &m1)
			json.Unmarshal(theirs, &m2)
			if diff := cmp.Diff(m2, m1); diff != "" {
				t.Fatal(diff)
			}
		}
	}
}

func TestBytesStayBytes(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	m := Message{Launch: &Launch{Argv: []string{string(all), "\xff\xfe"}}}
	var got Message
	b := encode(nil, &m)
	if err := decode(b, &got); err != nil || got.Launch.Argv[0] != string(all) || got.Launch.Argv[1] != "\xff\xfe" {
		t.Errorf("%+v, %v", got.Launch, err)
	}
	if bytes.ContainsAny(b, "\n\r") {
		t.Error("a newline within a line")
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{`{}`, true},
		{` { "id" : 1 , "new" : [ {"a":[1,-2.5e3,true,null]} , "x\"y" ] } `, true},
		{`{"op":null,"hello":null,"launch":{"argv":null,"env":[]}}`, true},
		{`{"op":"\u0041\ud83d\ude00\ud83d\u0041\/"}`, true},
		{`{"id":18446744073709551615}`, true},
		{`{"id":18446744073709551616}`, false},
		{`{"id":-1}`, false},
		{`{"id":1.5}`, false},
		{`{"id":1e3}`, false},
		{`{"id":01}`, false},
		{`{"id":"1"}`, false},
		{`{"fds":9223372036854775808}`, false},
		{`{"launch":{"uid":4294967296}}`, false},
		{`{"launch":{"groups":[1,4294967296]}}`, false},
		{`{"launch":[]}`, false},
		{`{"launch":{"argv":"x"}}`, false},
		{`{"id":1}}`, false},
		{`{"id":1,}`, false},
		{`{"id":1 "op":"x"}`, false},
		{`{"id"}`, false},
		{`{id:1}`, false},
		{`{"op":"a` + "\n" + `"}`, false},
		{`{"op":"\x"}`, false},
		{`{"op":"\u12"}`, false},
		{`{"op":"`, false},
		{`{"op":"\`, false},
		{``, false},
		{`null`, false},
		{`{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, false},
		{`{"x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, true},
	} {
		var m, j Message
		err := decode([]byte(tt.text), &m)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.text, err)
		}
		if jerr := json.Unmarshal([]byte(tt.text), &j); err == nil && (jerr != nil || cmp.Diff(j, m) != "") {
			t.Errorf("%s: encoding/json says %v\n%s", tt.text, jerr, cmp.Diff(j, m))
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 10 {
		var m Message
		random(r, reflect.ValueOf(&m).Elem())
		f.Add(encode(nil, &m))
	}
	f.Add([]byte(`{"op":"\ud83d\ude00","x":[{"y":1e5}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if decode(b, &m) != nil {
			return
		}
		var again Message
		if err := decode(encode(nil, &m), &again); err != nil {
			t.Fatalf("we do not read what we wrote: %v", err)
		}
		if d := cmp.Diff(m, again, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		var j Message
		if json.Valid(b) && utf8.Valid(b) && json.Unmarshal(b, &j) == nil && !strings.Contains(string(b), `\u`) && lowerKeys(b) {
			if d := cmp.Diff(j, m); d != "" {
				t.Fatalf("encoding/json reads another thing: %s", d)
			}
		}
	})
}

// lowerKeys tells whether encoding/json, which also takes keys in other case
// and merges a repeated one, can be compared.
func lowerKeys(b []byte) bool {
	return bytes.Equal(b, bytes.ToLower(b)) && bytes.Count(b, []byte(`"launch"`)) < 2 && bytes.Count(b, []byte(`"hello"`)) < 2 &&
		!bytes.ContainsAny(b, "\u017f\u212a")
}
