package client

import (
	"reflect"
	"strconv"
	"unicode/utf8"

	"pinfold.dev/api"
)

// asBytes has words travel as bytes when one of them is not UTF-8.
func asBytes(text *[]string, raw *[][]byte) {
	for _, w := range *text {
		if utf8.ValidString(w) || len(*raw) > 0 {
			continue
		}
		for _, w := range *text {
			*raw = append(*raw, []byte(w))
		}
		*text = nil
		return
	}
}

// launchable makes a request that JSON can carry.
func launchable(req api.LaunchRequest) api.LaunchRequest {
	asBytes(&req.Argv, &req.ArgvB64)
	asBytes(&req.Env, &req.EnvB64)
	return req
}

// notUTF8 finds a string in v that is not UTF-8, and says where.
func notUTF8(v any) (where string, bad bool) { return badText(reflect.ValueOf(v), "") }

func badText(v reflect.Value, at string) (string, bool) {
	switch v.Kind() {
	case reflect.String:
		return at, !utf8.ValidString(v.String())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "", false // bytes travel as base64
		}
		for i := range v.Len() {
			if w, bad := badText(v.Index(i), at+"["+strconv.Itoa(i)+"]"); bad {
				return w, true
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if _, bad := badText(k, ""); bad {
				return "a key of " + at, true
			}
			if w, bad := badText(v.MapIndex(k), at+"["+strconv.Quote(k.String())+"]"); bad {
				return w, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if at != "" {
				name = at + "." + name
			}
			if w, bad := badText(v.Field(i), name); bad {
				return w, true
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return badText(v.Elem(), at)
		}
	}
	return "", false
}
