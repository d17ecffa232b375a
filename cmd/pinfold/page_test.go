package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// block is a fenced block of a page, by its language.
type block struct {
	lang, text string
	line       int
}

func blocks(markdown string) []block {
	var all []block
	var open *block
	for i, line := range strings.SplitAfter(markdown, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			open = &block{lang: fence, line: i + 1}
		case isFence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line
		}
	}
	return all
}

// page runs the sh blocks of a page in one shell, in order, and holds what each
// prints against the json or text block after it.
func page(ts *testscript.TestScript, neg bool, args []string) {
	b, err := os.ReadFile(args[0])
	ts.Check(err)
	all := blocks(string(b))
	const mark = "--- end of block ---"
	var script strings.Builder
	for _, x := range all {
		if x.lang == "sh" {
			fmt.Fprintf(&script, "%s\nprintf '\\n%s\\n'\n", x.text, mark)
		}
	}
	cmd := exec.Command("bash", "-eu", "-o", "pipefail", "-c", script.String())
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "PINFOLD_SOCKET="+ts.Getenv("PINFOLD_SOCKET"))
	cmd.Stderr = ts.Stderr()
	stdout, err := cmd.Output()
	outs := strings.Split(string(stdout), "\n"+mark+"\n")
	n := 0
	for i, x := range all {
		if x.lang != "sh" {
			continue
		}
		if n >= len(outs)-1 {
			ts.Fatalf("%s:%d: this block failed: %v\n%s", args[0], x.line, err, outs[len(outs)-1])
		}
		if i+1 < len(all) && all[i+1].lang != "sh" {
			if bad := differs(all[i+1], outs[n]); bad != "" {
				ts.Fatalf("%s:%d: %s; the block printed:\n%s", args[0], x.line, bad, outs[n])
			}
		}
		n++
	}
	if n < 5 {
		ts.Fatalf("%s has %d sh blocks: is it the right page?", args[0], n)
	}
}

// differs says where output is not what a block shows.
func differs(want block, got string) string {
	if want.lang != "json" {
		q := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want.text)), "…", ".*")
		if !regexp.MustCompile("^" + q + "$").MatchString(strings.TrimSpace(strings.ReplaceAll(got, "\r", ""))) {
			return "the output is not as shown"
		}
		return ""
	}
	w, g := json.NewDecoder(strings.NewReader(want.text)), json.NewDecoder(strings.NewReader(got))
	for {
		var x, y any
		errW, errG := w.Decode(&x), g.Decode(&y)
		switch {
		case errors.Is(errW, io.EOF) && errors.Is(errG, io.EOF):
			return ""
		case errW != nil:
			return fmt.Sprintf("the block below: %v", errW)
		case errG != nil:
			return fmt.Sprintf("the output: %v", errG)
		}
		if bad := within(x, y, ""); bad != "" {
			return bad
		}
	}
}

// within tells where got lacks something of want. "…" is anything, and the end of a
// word that begins as before it; objects may have more fields.
func within(want, got any, path string) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return path + " is no object"
		}
		for k, v := range w {
			x, ok := g[k]
			if !ok {
				return path + "." + k + " is missing"
			}
			if bad := within(v, x, path+"."+k); bad != "" {
				return bad
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is no array of %d", path, len(w))
		}
		for i := range w {
			if bad := within(w[i], g[i], fmt.Sprintf("%s[%d]", path, i)); bad != "" {
				return bad
			}
		}
		return ""
	}
	w, isWord := want.(string)
	g, isToo := got.(string)
	if begin, open := strings.CutSuffix(w, "…"); isWord && open && (begin == "" || isToo && strings.HasPrefix(g, begin)) {
		return ""
	}
	if want != got {
		return fmt.Sprintf("%s is %v, not %v", path, got, want)
	}
	return ""
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{`{"a": 1}`, `{"a": 1, "b": 2}`, true},
		{`{"a": "…"}`, `{"a": {"x": 1}}`, true},
		{`{"a": "b…"}`, `{"a": "bc"}`, true},
		{`{"a": "b…"}`, `{"a": "c"}`, false},
		{`{"a": "b…"}`, `{"a": 1}`, false},
		{`{"a": 1}`, `{"a": 2}`, false},
		{`{"a": 1}`, `{}`, false},
		{`[{"a": 1}]`, `[{"a": 1}, {"a": 1}]`, false},
		{`{"a": []}`, `{"a": null}`, false},
		{`{"a": 1} {"b": 2}`, `{"a": 1}`, false},
		{`{"a": 1}`, `{"a": 1} {"b": 2}`, false},
	} {
		if bad := differs(block{lang: "json", text: c.want}, c.got); (bad == "") != c.ok {
			t.Errorf("differs(%s, %s) = %q", c.want, c.got, bad)
		}
	}
}

// TestExitCodesPage holds docs/exit-codes.md to what the program prints.
func TestExitCodesPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range blocks(string(b)) {
		if x.lang == "text" && x.text == exitCodesHelp {
			return
		}
	}
	t.Errorf("docs/exit-codes.md does not show what pinfold help exit-codes prints")
}
