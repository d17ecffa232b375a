package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// senders are the functions that may signal, and why what they signal is who they
// think it is. A number that was stored may be anybody's: only killNumber, which
// is for hosts without pidfds and comes right after a verification, sends to one.
func senders() map[string]string {
	const pinned = "a child of its own that it has not reaped: nobody else can have the number"
	return map[string]string{
		"fallback/refs_linux.go killNumber": "the one place for a stored number",
		"fallback/refs_linux.go signal":     "through an open directory of /proc",
		"pidfd/handle.go Signal":            "through a pidfd",
		"pidfd/group_linux.go SignalGroup":  "through the leader's pidfd",
		"pidfd/task.go Signal":              "through a thread's pidfd",

		"fallback/token/table_unix.go killNumber": "macOS and FreeBSD have nothing but numbers: the place for them there",

		"reaper/ops_linux.go signal":                     "through a pidfd of a child",
		"reaper/spawn/spawn_linux.go Kill":               pinned,
		"internal/sys/children_linux.go SignalChild":     pinned,
		"internal/sys/children_linux.go SignalNamespace": "init, to its own PID namespace",
		"internal/sys/stop_linux.go StopSelf":            "ourselves",
		"internal/sys/pidfd_linux.go PidfdSendSignal":    "the call itself",
		"internal/fault/points.go act":                   "ourselves",
		"cmd/pinfold/terminal.go fall":                   "ourselves",

		"reaper/pid1/sys_linux.go kill":        "init, to " + pinned,
		"reaper/pid1/signals_linux.go sendOne": "init, to " + pinned,

		"integration/bench/peers.go treeKill": "what others do, measured against",
	}
}

// TestOnePlaceSignalsNumbers looks through all that is no test for ways to signal.
func TestOnePlaceSignalsNumbers(t *testing.T) {
	calls := map[string][]string{
		"syscall": {"Kill", "Tgkill", "SYS_KILL", "SYS_TKILL", "SYS_TGKILL", "SYS_RT_SIGQUEUEINFO", "SYS_RT_TGSIGQUEUEINFO"},
		"unix":    {"Kill", "Tgkill", "PidfdSendSignal", "SYS_KILL", "SYS_TKILL", "SYS_TGKILL", "SYS_RT_SIGQUEUEINFO", "SYS_RT_TGSIGQUEUEINFO", "SYS_PIDFD_SEND_SIGNAL"},
		"sys":     {"PidfdSendSignal"},
		"os":      {"FindProcess"},
	}
	may, used := senders(), map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			asks := probes(f)
			ast.Inspect(f, func(n ast.Node) bool {
				e, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				x, ok := e.X.(*ast.Ident)
				if !ok || !slices.Contains(calls[x.Name], e.Sel.Name) || asks[e] {
					return true
				}
				who := s.path + " " + f.Name.Name
				if used[who] = true; may[who] == "" {
					t.Errorf("%s:%d: %s uses %s.%s: signal through pidfd or fallback, which verify first", s.path, s.line(e.Pos()), f.Name.Name, x.Name, e.Sel.Name)
				}
				return true
			})
		}
	}
	for who := range may {
		if !used[who] {
			t.Errorf("%s signals nobody any more: take it off the list", who)
		}
	}
}

// probes are the calls of sys.PidfdSendSignal that send signal 0, which is to ask.
func probes(f *ast.FuncDecl) map[ast.Expr]bool {
	out := map[ast.Expr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok || len(c.Args) != 3 {
			return true
		}
		if lit, ok := c.Args[1].(*ast.BasicLit); ok && lit.Value == "0" {
			out[c.Fun] = true
		}
		return true
	})
	return out
}

// TestSendersRefuse: whoever signals others than a child asks pidfd/guard.go first.
func TestSendersRefuse(t *testing.T) {
	guarded := []string{"fallback/refs_linux.go killNumber", "fallback/refs_linux.go signal", "pidfd/handle.go Signal", "pidfd/group_linux.go SignalGroup", "pidfd/task.go Signal"}
	seen := 0
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !slices.Contains(guarded, s.path+" "+f.Name.Name) || !signals(f) {
				continue
			}
			seen++
			asks := false
			ast.Inspect(f, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					switch e := c.Fun.(type) {
					case *ast.SelectorExpr:
						asks = asks || slices.Contains([]string{"guard", "refuse", "RefusePID"}, e.Sel.Name)
					case *ast.Ident:
						asks = asks || e.Name == "RefusePID"
					}
				}
				return true
			})
			if !asks {
				t.Errorf("%s: %s asks nobody whether it may", s.path, f.Name.Name)
			}
		}
	}
	if seen != len(guarded) {
		t.Errorf("%d of %d senders found", seen, len(guarded))
	}
}

// signals tells whether a function has a call that sends.
func signals(f *ast.FuncDecl) (yes bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if e, ok := n.(*ast.SelectorExpr); ok {
			yes = yes || e.Sel.Name == "PidfdSendSignal" || e.Sel.Name == "Kill"
		}
		return true
	})
	return yes
}
