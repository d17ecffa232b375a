package server

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
)

type ref struct {
	Ref string `json:"$ref"`
}

type content struct {
	Content map[string]struct {
		Schema ref `json:"schema"`
	} `json:"content"`
}

func (c content) typ() string {
	return strings.TrimPrefix(c.Content["application/json"].Schema.Ref, "#/components/schemas/")
}

type operation struct {
	Parameters []struct {
		ref
		Name, In string
	} `json:"parameters"`
	RequestBody *content           `json:"requestBody"`
	Responses   map[string]content `json:"responses"`
}

// TestOpenAPIRoutesAreTheTable holds the description against the routes, both
// ways: paths, methods, parameters, and the types of requests and answers.
func TestOpenAPIRoutesAreTheTable(t *testing.T) {
	var doc struct {
		Paths      map[string]map[string]operation `json:"paths"`
		Components struct {
			Schemas struct {
				Code struct {
					Status map[api.Code]int `json:"x-status"`
				}
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(api.OpenAPI()), &doc); err != nil {
		t.Fatal(err)
	}
	for _, r := range routes() {
		op, ok := doc.Paths[r.path][strings.ToLower(r.method)]
		if !ok {
			t.Errorf("%s %s is not described", r.method, r.path)
			continue
		}
		delete(doc.Paths[r.path], strings.ToLower(r.method))
		checkOperation(t, r, op)
	}
	for path, ops := range doc.Paths {
		for method := range ops {
			t.Errorf("%s %s is described, and no route", method, path)
		}
	}
	for c, s := range doc.Components.Schemas.Code.Status {
		if status(c) != s {
			t.Errorf("%s: described with %d, travels with %d", c, s, status(c))
		}
	}
}

func checkOperation(t *testing.T, r route, op operation) {
	at := r.method + " " + r.path
	var query []string
	for _, p := range op.Parameters {
		name := p.Name
		if p.Ref != "" {
			name = strings.TrimPrefix(p.Ref, "#/components/parameters/")
		}
		if !strings.Contains(r.path, "{"+name+"}") {
			query = append(query, name)
		}
	}
	if slices.Sort(query); !slices.Equal(query, slices.Sorted(slices.Values(r.query))) {
		t.Errorf("%s: parameters %q are described, %q are taken", at, query, r.query)
	}
	if strings.Count(r.path, "{")+len(r.query) != len(op.Parameters) {
		t.Errorf("%s: %d parameters are described", at, len(op.Parameters))
	}
	want := ""
	if r.answer.req != nil {
		want = r.answer.req.Name()
	}
	if r.answer.raw {
		if _, ok := op.RequestBody.Content["application/octet-stream"]; !ok {
			t.Errorf("%s: takes raw bytes", at)
		}
		op.RequestBody = nil
	}
	if got := op.RequestBody; (got == nil) != (want == "") || got != nil && got.typ() != want {
		t.Errorf("%s: request %v, want %q", at, got, want)
	}
	delete(op.Responses, "default")
	got := slices.Sorted(maps.Keys(op.Responses))
	switch resp := r.answer.resp; {
	case resp == reflect.TypeFor[document]():
	case resp == reflect.TypeFor[*outputAnswer]():
		lines := op.Responses["200"].Content[api.NDJSON].Schema.Ref
		if _, raw := op.Responses["200"].Content["application/octet-stream"]; !raw || len(got) != 1 ||
			lines != "#/components/schemas/"+reflect.TypeFor[api.OutputLine]().Name() {
			t.Errorf("%s: answers %q, want raw bytes or lines", at, got)
		}
	case resp == reflect.TypeFor[*eventsAnswer]():
		if len(got) != 1 || op.Responses["200"].Content[api.NDJSON].Schema.Ref != "#/components/schemas/EventLine" {
			t.Errorf("%s: answers %q, want lines", at, got)
		}
	case resp == reflect.TypeFor[*holdAnswer]():
		if len(got) != 1 || op.Responses["200"].Content[api.NDJSON].Schema.Ref != "#/components/schemas/HoldLine" {
			t.Errorf("%s: answers %q, want lines", at, got)
		}
	case r.answer.req == reflect.TypeFor[api.LaunchRequest]() || r.answer.req == reflect.TypeFor[api.BeginRequest](),
		r.answer.req == reflect.TypeFor[api.JobRequest](), r.answer.req == reflect.TypeFor[api.AdoptRequest](): // an earlier one, or a new one
		if name := resp.Name(); !slices.Equal(got, []string{"200", "201"}) || op.Responses["200"].typ() != name || op.Responses["201"].typ() != name {
			t.Errorf("%s: answers %q", at, got)
		}
	case resp.Kind() == reflect.Interface: // abandon: by its parameter
		if op.Responses["200"].typ() != "Receipt" || op.Responses["202"].typ() != "Turn" || len(got) != 2 {
			t.Errorf("%s: answers %q", at, got)
		}
	case len(got) != 1 || op.Responses[got[0]].typ() != resp.Name():
		t.Errorf("%s: answers %q, want %s", at, got, resp.Name())
	}
}
