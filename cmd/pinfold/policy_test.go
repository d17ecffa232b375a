package main

import (
	"os"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// The table in the documentation is the one that the command prints.
func TestPolicyIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/turns.md")
	if err != nil {
		t.Fatal(err)
	}
	want := renderPolicy(api.DefaultPolicy(), style{})
	if !strings.Contains(string(b), want) {
		t.Errorf("docs/turns.md has not:\n%s", want)
	}
}

func TestTableOfATurn(t *testing.T) {
	p := ofTurn(api.DefaultPolicy(), api.Turn{Leftovers: api.LeftoversReap, Policy: api.EndPolicy{api.ReasonStop: {Jobs: api.FateEnd}}})
	if got := p[api.ReasonFinished]; got.Processes != api.FateEnd || got.Jobs != api.FateKeep {
		t.Errorf("finished: %+v", got)
	}
	if got := p[api.ReasonStop]; got.Processes != api.FateEnd || got.Jobs != api.FateEnd {
		t.Errorf("stop: %+v", got)
	}
}
