package crash

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// point is one fault point of the source.
type point struct {
	name string
	at   string // file:line
	in   victim // whose code it is in
}

// victim is who dies.
type victim string

const (
	service victim = "service"
	keeper  victim = "keeper"
	caller  victim = "client"
)

// points lists every fault.Point of the module, and fails for one whose name is
// not a literal or not unique.
func points(t *testing.T) []point {
	t.Helper()
	var all []point
	seen := map[string]string{}
	top := "../.."
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, path)
		for _, p := range pointsIn(t, fset, f, rel) {
			if was := seen[p.name]; was != "" {
				t.Errorf("%s: the point %q is at %s already", p.at, p.name, was)
			}
			seen[p.name] = p.at
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func pointsIn(t *testing.T, fset *token.FileSet, f *ast.File, path string) (all []point) {
	in := service
	switch first, _, _ := strings.Cut(path, "/"); first {
	case "reaper":
		in = keeper
	case "client":
		in = caller
	}
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := c.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Point" {
			return true
		}
		if pkg, ok := s.X.(*ast.Ident); !ok || pkg.Name != "fault" {
			return true
		}
		at := path + ":" + strconv.Itoa(fset.Position(c.Pos()).Line)
		lit, ok := c.Args[0].(*ast.BasicLit)
		if !ok {
			t.Errorf("%s: the name of a fault point is to be a literal", at)
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Errorf("%s: %v", at, err)
		}
		all = append(all, point{name, at, in})
		return true
	})
	return all
}
