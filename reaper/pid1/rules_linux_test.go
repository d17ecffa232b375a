package pid1

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// harmless are the runtime's functions that need nothing to be set up, or that are
// called only when something is wrong already, or a collector runs.
var harmless = []string{
	"panicBounds", "panicshift", "panicdivide", "panicwrap", "panicunsafestringlen", "morestack_noctxt", "morestack",
	"memequal", "memmove", "memclrNoHeapPointers", "duffzero", "duffcopy", "cmpstring",
	"gcWriteBarrier1", "gcWriteBarrier2", "gcWriteBarrier3", "gcWriteBarrier4", "gcWriteBarrier5", "gcWriteBarrier6",
	"gcWriteBarrier7", "gcWriteBarrier8", "wbZero", "wbMove",
}

// afterTheRuntime are the functions that run when it is there.
var afterTheRuntime = regexp.MustCompile(`pid1\.(Run|Describe|describe\w+|Early|Usage|init)(\.|$)`)

// TestNeedsNoRuntime holds the rules of doc.go: what runs before the runtime calls
// nothing of it that could want it.
func TestNeedsNoRuntime(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			cmd := exec.Command("go", "build", "-gcflags=-S", ".")
			cmd.Env = append(cmd.Environ(), "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("go build: %v\n%s", err, out)
			}
			checkCalls(t, string(out))
		})
	}
}

func checkCalls(t *testing.T, listing string) {
	head := regexp.MustCompile(`^(pinfold\.dev/\S+) STEXT`)
	call := regexp.MustCompile(`\(([^()]+\.(?:go|s):\d+)\)\s+(?:CALL|JMP)\s+(runtime|internal/[\w/]+|sync|os|fmt|errors|strconv|unicode/utf8)\.([\w.*()\[\]]+)\(SB\)`)
	where, seen := "", 0
	for line := range strings.Lines(listing) {
		if m := head.FindStringSubmatch(line); m != nil {
			where = m[1]
			seen++
			continue
		}
		m := call.FindStringSubmatch(line)
		if m == nil || where == "" || afterTheRuntime.MatchString(where) {
			continue
		}
		if m[2] != "runtime" || !slices.Contains(harmless, m[3]) {
			t.Errorf("%s: %s calls %s.%s, which before the runtime has started is not there", m[1], where, m[2], m[3])
		}
	}
	if seen < 50 || !strings.Contains(listing, "pid1.boot STEXT") {
		t.Errorf("the listing has %d functions: did the compiler change its format?", seen)
	}
}

// TestRulesAreSeen shows that the check can fail.
func TestRulesAreSeen(t *testing.T) {
	if afterTheRuntime.MatchString("pinfold.dev/reaper/pid1.(*init_).step") || !afterTheRuntime.MatchString("pinfold.dev/reaper/pid1.Run") {
		t.Error("the wrong functions are checked")
	}
	if slices.Contains(harmless, "newobject") || slices.Contains(harmless, "concatstring2") {
		t.Error("an allocation is taken for harmless")
	}
}
