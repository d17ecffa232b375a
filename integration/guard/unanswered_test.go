package guard

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestUnanswered(t *testing.T) {
	const log = `time=x level=WARN msg="a keeper does not answer yet" turn=00aa error="greet the keeper: i/o timeout"
time=x level=WARN msg="a keeper does not answer yet" turn=00bb error=x
time=x level=WARN msg="a keeper does not answer yet" turn=00cc error=x
pinfold: ready
time=x level=INFO msg="the keeper answers" turn=00bb
time=x level=INFO msg="turn ended" turn=00cc state=abandoned
`
	if got := Unanswered(log); !slices.Equal(got, []string{"00aa"}) {
		t.Errorf("%q", got)
	}
	if got := Unanswered(log + "time=x level=WARN msg=\"keeper lost\" turn=00aa why=\"it has died\"\n"); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// The words are the service's own.
func TestWordsOfTheService(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{"internal/hold", "containment"} {
		files, _ := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(b)
		}
	}
	for _, msg := range []string{`("a keeper does not answer yet", "turn",`, `("the keeper answers", "turn",`, `("keeper lost", "turn",`, `("turn ended", "turn",`} {
		if !strings.Contains(source.String(), msg) {
			t.Errorf("the service does not say %s any more: who waits for its keepers waits for nothing", msg)
		}
	}
}
