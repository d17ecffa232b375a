package server

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// noNulls refuses null as an element of a list or a value of a map, as which
// encoding/json takes the empty value: a word that a client did not have would be
// an empty word, a limit that it did not know a limit of 0. Of a field, null is
// the same as leaving it out.
func noNulls(body []byte, req any) error {
	var v any
	if !bytes.Contains(body, []byte("null")) || json.Unmarshal(body, &v) != nil {
		return nil
	}
	if field := nullIn(v, reflect.TypeOf(req), ""); field != "" {
		return api.Errorf(api.CodeBadRequest, "field %q has a null in it", field).WithRemedy("leave out what there is not")
	}
	return nil
}

// nullIn names the field that has one; blank for none.
func nullIn(v any, t reflect.Type, field string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	inner := func(v any) string {
		if v == nil {
			return field
		}
		return nullIn(v, t.Elem(), field)
	}
	switch v := v.(type) {
	case []any:
		for i := 0; i < len(v) && t.Kind() == reflect.Slice; i++ {
			if bad := inner(v[i]); bad != "" {
				return bad
			}
		}
	case map[string]any:
		for name, of := range v {
			bad := ""
			switch t.Kind() {
			case reflect.Map:
				bad = inner(of)
			case reflect.Struct:
				if f, ok := fieldNamed(t, name); ok {
					bad = nullIn(of, f.Type, name)
				}
			}
			if bad != "" {
				return bad
			}
		}
	}
	return ""
}

// fieldNamed is the field that encoding/json takes a name for.
func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	return t.FieldByNameFunc(func(field string) bool {
		f, _ := t.FieldByName(field)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return tag != "" && strings.EqualFold(tag, name)
	})
}

// noSoftless refuses a resource limit that does not say soft: it would be 0, which is
// a limit, and one that few mean.
func noSoftless(body []byte, req any) error {
	launch, _ := req.(*api.LaunchRequest)
	if job, ok := req.(*api.JobRequest); ok {
		launch = &job.Launch
	}
	if launch == nil || len(launch.Rlimits) == 0 {
		return nil
	}
	type limits map[string]struct {
		Soft *int64 `json:"soft"`
	}
	var said struct {
		Rlimits limits `json:"rlimits"`
		Launch  struct {
			Rlimits limits `json:"rlimits"`
		} `json:"launch"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return badJSON(err)
	}
	for _, all := range []limits{said.Rlimits, said.Launch.Rlimits} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if all[name].Soft == nil {
				return api.Errorf(api.CodeBadRequest, "rlimits.%s does not say soft", clip(name)).
					WithRemedy(`say both, as in {"soft": 1024, "hard": 4096}; -1 is no limit`)
			}
		}
	}
	return nil
}
