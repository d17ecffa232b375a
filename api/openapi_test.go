package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// schema is the part of JSON schema that the description uses.
type schema struct {
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Ref        string             `json:"$ref"`
	Enum       []string           `json:"enum"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
	Items      *schema            `json:"items"`
	Additional json.RawMessage    `json:"additionalProperties"`
	Status     map[string]int     `json:"x-status"`
	Encoding   string             `json:"contentEncoding"`
}

type openAPIDoc struct {
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

func readDoc(t *testing.T) openAPIDoc {
	var doc openAPIDoc
	if err := json.Unmarshal([]byte(OpenAPI()), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// roots are the types of requests and answers; all others hang on them.
func roots() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[Error](), reflect.TypeFor[Host](), reflect.TypeFor[BeginRequest](), reflect.TypeFor[Turn](),
		reflect.TypeFor[TurnList](), reflect.TypeFor[ProcessList](), reflect.TypeFor[LaunchRequest](), reflect.TypeFor[Process](),
		reflect.TypeFor[SignalRequest](), reflect.TypeFor[SignalAnswer](), reflect.TypeFor[Tree](), reflect.TypeFor[FinishRequest](),
		reflect.TypeFor[AbandonRequest](), reflect.TypeFor[Receipt](), reflect.TypeFor[ReceiptList](),
		reflect.TypeFor[JoinRequest](), reflect.TypeFor[AdoptRequest](), reflect.TypeFor[OutputLine](), reflect.TypeFor[InputAnswer](),
		reflect.TypeFor[ResizeRequest](), reflect.TypeFor[ResizeAnswer](),
		reflect.TypeFor[Plan](), reflect.TypeFor[Why](), reflect.TypeFor[EndProcessRequest](), reflect.TypeFor[EndProcessAnswer](),
		reflect.TypeFor[AbandonManyRequest](), reflect.TypeFor[AbandonManyAnswer](), reflect.TypeFor[Quiet](), reflect.TypeFor[RecordList](), reflect.TypeFor[GCRequest](), reflect.TypeFor[GCAnswer](),
		reflect.TypeFor[JobRequest](), reflect.TypeFor[PromoteRequest](), reflect.TypeFor[TransferRequest](), reflect.TypeFor[StopJobRequest](), reflect.TypeFor[Job](), reflect.TypeFor[JobList](),
		reflect.TypeFor[TouchRequest](), reflect.TypeFor[TouchAnswer](), reflect.TypeFor[TakeRequest](), reflect.TypeFor[FreezeRequest](),
		reflect.TypeFor[HoldLine](), reflect.TypeFor[PolicyAnswer](),
		reflect.TypeFor[EventLine](), reflect.TypeFor[AckRequest](), reflect.TypeFor[AckAnswer](),
	}
}

// reach collects the package's named types below t.
func reach(t reflect.Type, seen map[string]reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		reach(t.Elem(), seen)
	case reflect.Map:
		reach(t.Key(), seen)
		reach(t.Elem(), seen)
	}
	if t.PkgPath() != reflect.TypeFor[Error]().PkgPath() || seen[t.Name()] != nil {
		return
	}
	seen[t.Name()] = t
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			reach(t.Field(i).Type, seen)
		}
	}
}

func TestOpenAPISchemasAreTheTypes(t *testing.T) {
	doc := readDoc(t)
	types := map[string]reflect.Type{}
	for _, r := range roots() {
		reach(r, types)
	}
	delete(doc.Components.Schemas, "ID") // a pattern of path parameters, no type
	for name := range doc.Components.Schemas {
		if types[name] == nil {
			t.Errorf("schema %s has no type that crosses the socket", name)
		}
	}
	consts := constants(t)
	for name, typ := range types {
		s := doc.Components.Schemas[name]
		switch {
		case s == nil:
			t.Errorf("type %s has no schema", name)
		case typ.Kind() == reflect.Struct:
			checkStruct(t, name, typ, s)
		default:
			if !slices.Equal(slices.Sorted(slices.Values(s.Enum)), slices.Sorted(slices.Values(consts[name]))) {
				t.Errorf("%s: enum %q, constants %q", name, s.Enum, consts[name])
			}
		}
	}
}

func checkStruct(t *testing.T, name string, typ reflect.Type, s *schema) {
	fields := map[string]bool{}
	var always []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		js, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if js == "" || js == "-" {
			t.Errorf("%s.%s has no JSON name", name, f.Name)
			continue
		}
		fields[js] = true
		if opts == "" {
			always = append(always, js)
		}
		if p := s.Properties[js]; p == nil {
			t.Errorf("%s.%s is not in the schema", name, js)
		} else if why := differs(f.Type, p); why != "" {
			t.Errorf("%s.%s: %s", name, js, why)
		}
	}
	for p := range s.Properties {
		if !fields[p] {
			t.Errorf("schema property %s.%s is no field", name, p)
		}
	}
	slices.Sort(always)
	slices.Sort(s.Required)
	if request := string(s.Additional) == "false"; !request && !slices.Equal(always, s.Required) {
		t.Errorf("%s: required are %q, always written are %q", name, s.Required, always)
	}
	for _, r := range s.Required {
		if !fields[r] {
			t.Errorf("%s requires %s, which is no field", name, r)
		}
	}
}

// differs says how a schema is not that of a Go type.
func differs(t reflect.Type, s *schema) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	want := ""
	switch {
	case t == reflect.TypeFor[time.Time]():
		if s.Format != "date-time" {
			return "is a time, not a " + s.Format
		}
		want = "string"
	case t.PkgPath() != "":
		if s.Ref != "#/components/schemas/"+t.Name() {
			return "is a " + t.Name() + ", the schema says " + s.Ref
		}
		return ""
	case t == reflect.TypeFor[[]byte]():
		if s.Encoding != "base64" {
			return "is bytes, which are base64"
		}
		want = "string"
	case t.Kind() == reflect.Slice:
		if s.Items == nil {
			return "is a list of nothing"
		}
		if why := differs(t.Elem(), s.Items); why != "" {
			return "items: " + why
		}
		want = "array"
	case t.Kind() == reflect.Map:
		want = "object"
	case t.Kind() == reflect.String:
		want = "string"
	case t.Kind() == reflect.Bool:
		want = "boolean"
	case slices.Contains([]reflect.Kind{reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64}, t.Kind()):
		want = "integer"
	}
	if s.Type != want {
		return "is " + want + ", the schema says " + s.Type
	}
	return ""
}

// constants are the package's string constants by type, read from its source.
func constants(t *testing.T) map[string][]string {
	all := map[string][]string{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, sp := range g.Specs {
				v := sp.(*ast.ValueSpec)
				typ, ok := v.Type.(*ast.Ident)
				if !ok {
					continue
				}
				s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all[typ.Name] = append(all[typ.Name], s)
			}
		}
	}
	return all
}

func TestCodesAreTheConstants(t *testing.T) {
	var codes []string
	for _, c := range Codes() {
		codes = append(codes, string(c))
	}
	if want := constants(t)["Code"]; !slices.Equal(slices.Sorted(slices.Values(codes)), slices.Sorted(slices.Values(want))) {
		t.Errorf("Codes() %q, constants %q", codes, want)
	}
	listed := slices.Sorted(maps.Keys(readDoc(t).Components.Schemas["Code"].Status))
	if !slices.Equal(listed, slices.Sorted(slices.Values(codes))) {
		t.Errorf("x-status lists %q", listed)
	}
}

func TestEveryAnswerHasAGrade(t *testing.T) {
	for _, r := range roots() {
		f, ok := r.FieldByName("Grade")
		if !strings.HasSuffix(r.Name(), "Request") && (!ok || f.Type != reflect.TypeFor[Grade]()) {
			t.Errorf("%s has no grade", r.Name())
		}
	}
}
