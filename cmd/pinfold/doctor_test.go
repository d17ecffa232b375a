package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// A service that answers with an error is not told as one that does not answer; one
// that takes the connection and says nothing is told so.
func TestWithoutAService(t *testing.T) {
	for _, x := range []struct {
		why           error
		heads, detail string
	}{
		{api.Errorf(api.CodeUnavailable, "connect: no such socket"), "no service answers", "no such socket"},
		{fmt.Errorf("GET /v1/host: %w", context.DeadlineExceeded), "no service answers", "does not answer within 10s"},
		{api.Errorf(api.CodeInternal, "it broke"), "a service answers, and does not tell", "it broke"},
		{api.Errorf(api.CodeForbidden, "not you"), "a service answers, and does not tell", "not you"},
	} {
		h, without := localHost(&app{getenv: func(string) string { return "" }}, x.why)
		if got := renderHost(h, without, style{}); !strings.HasPrefix(got, x.heads+": this is what") || !strings.Contains(got, x.detail) {
			t.Errorf("%v:\n%s", x.why, got)
		}
	}
}
