package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFile = 500 // lines of a file
	maxFunc = 80  // lines of a function
)

// source is a parsed file, hand-written, of this module.
type source struct {
	path string // from the root
	file *ast.File
	fset *token.FileSet
}

func (s source) line(p token.Pos) int { return s.fset.Position(p).Line }

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(f) {
			rel, _ := filepath.Rel(top, path)
			all = append(all, source{rel, f, fset})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if n := s.line(s.file.FileEnd - 1); n > maxFile {
			t.Errorf("%s has %d lines, more than %d: is there a second idea in it?", s.path, n, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.line(f.End()) - s.line(f.Pos()) + 1; n > maxFunc {
				t.Errorf("%s:%d: %s has %d lines, more than %d", s.path, s.line(f.Pos()), f.Name.Name, n, maxFunc)
			}
		}
	}
}

func TestOnePackageComment(t *testing.T) {
	type key struct{ dir, name string }
	found := map[key][]string{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		k := key{filepath.Dir(s.path), s.file.Name.Name}
		found[k] = append(found[k], "")
		if s.file.Doc != nil && !strings.HasPrefix(s.file.Doc.Text(), "+build") {
			found[k] = append(found[k], s.path)
		}
	}
	for k, files := range found {
		var with []string
		for _, f := range files {
			if f != "" {
				with = append(with, f)
			}
		}
		if len(with) != 1 {
			t.Errorf("package %s in %s has %d package comments %v: it wants one", k.name, k.dir, len(with), with)
		}
	}
}

// allowedState are package variables that functions set, and why they must.
func allowedState() map[string]string {
	return map[string]string{"reaper.wakeFD": "a signal handler has no other way to be told"}
}

// TestNoPackageState refuses init functions, and package variables that are
// not plainly constant: sentinel errors, tables, compiled expressions and
// things done once are; what a function assigns to is not.
func TestNoPackageState(t *testing.T) {
	vars := map[string]map[string]token.Pos{} // directory → name → where
	var all []source
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		all = append(all, s)
		dir := filepath.Dir(s.path)
		if vars[dir] == nil {
			vars[dir] = map[string]token.Pos{}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s:%d: func init: nothing happens by being imported", s.path, s.line(d.Pos()))
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					packageVars(t, s, d, vars[dir])
				}
			}
		}
	}
	for _, s := range all {
		assignments(t, s, vars[filepath.Dir(s.path)])
	}
}

func packageVars(t *testing.T, s source, d *ast.GenDecl, names map[string]token.Pos) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for _, n := range v.Names {
			if n.Name == "_" || allowedState()[s.file.Name.Name+"."+n.Name] != "" {
				continue
			}
			names[n.Name] = n.Pos()
			if slices.ContainsFunc(v.Values, compiles) {
				t.Errorf("%s:%d: var %s is compiled at each start of a command: wrap it in sync.OnceValue", s.path, s.line(n.Pos()), n.Name)
			}
			if len(v.Values) == 0 && !embedded(d, v) {
				t.Errorf("%s:%d: var %s has no value: somebody will set it, so make it a field", s.path, s.line(n.Pos()), n.Name)
			}
		}
	}
}

// compiles tells a call of regexp.MustCompile.
func compiles(v ast.Expr) bool {
	call, ok := v.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "regexp" && f.Sel.Name == "MustCompile"
}

// embedded tells a variable that go:embed fills in.
func embedded(d *ast.GenDecl, v *ast.ValueSpec) bool {
	for _, g := range []*ast.CommentGroup{d.Doc, v.Doc} {
		if g != nil && strings.HasPrefix(g.List[len(g.List)-1].Text, "//go:embed ") {
			return true
		}
	}
	return false
}

// assignments finds functions that set a package variable by its plain name.
// One that is hidden by a local of that name is taken for it: rename the local.
func assignments(t *testing.T, s source, names map[string]token.Pos) {
	bad := func(e ast.Expr) {
		if i, ok := e.(*ast.IndexExpr); ok {
			e = i.X
		}
		if id, ok := e.(*ast.Ident); ok && names[id.Name] != token.NoPos {
			t.Errorf("%s:%d: sets package variable %s", s.path, s.line(id.Pos()), id.Name)
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					bad(e)
				}
			}
		case *ast.IncDecStmt:
			bad(n.X)
		}
		return true
	})
}

// TestSpeaksOfItself refuses what belongs to one machine or one workplace.
func TestSpeaksOfItself(t *testing.T) {
	forbidden := regexp.MustCompile(`/wor[k]/(main|shared|steering|\.library|\.mirror)\b|\.\./share[d]|bash_job[s]|prox[y]\.golang\.org|registr[y]\.npmjs|de[b]\.debian\.org|pyp[i]\.org`)
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the files of the tree with git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		path := filepath.Join(root(t), name)
		fi, err := os.Lstat(path)
		if err != nil || !fi.Mode().IsRegular() {
			continue // deleted, not yet committed
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(b), "\n") {
			if m := forbidden.FindString(line); m != "" {
				t.Errorf("%s:%d names %q, which is of no concern to whoever reads this", name, i+1, m)
			}
		}
	}
}
