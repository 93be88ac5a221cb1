package muster_test

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// code is what stands between two backticks on one line.
var code = regexp.MustCompile("`([^`\n]+)`")

// A path in ARCHITECTURE.md or CONTRIBUTING.md is one of this repository, from its root; a step of a walk,
// written `path/file.go: Func` or `path/file.go: Type.Method`, names a declaration of that file.
func TestDocumentsNameWhatExists(t *testing.T) {
	declared := map[string]map[string]bool{} // by file
	for _, s := range sources(t) {
		names := map[string]bool{}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[declaredName(d)] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						names[spec.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
		declared[path.Join(s.dir, path.Base(filepath.ToSlash(s.file)))] = names
	}
	steps := 0
	for _, document := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				file, name, step := strings.Cut(m[1], ": ")
				if !isPath(file) {
					continue
				}
				if found, _ := filepath.Glob(file); len(found) == 0 {
					t.Errorf("%s:%d: there is no %s", document, n+1, file)
				} else if step && strings.HasSuffix(file, ".go") {
					steps++
					if !declared[file][name] {
						t.Errorf("%s:%d: %s declares no %s", document, n+1, file, name)
					}
				}
			}
		}
	}
	if steps < 30 {
		t.Errorf("the walks of ARCHITECTURE.md have %d steps that name a function; three walks have more", steps)
	}
}

// isPath reports whether a word in backticks is meant as a path of this repository.
func isPath(word string) bool {
	top, _, below := strings.Cut(word, "/")
	switch top {
	case "internal", "cmd", "api", "client", "docs", "demo", "packaging":
		return below && !strings.ContainsAny(word, " {}<>…")
	}
	return false
}

// declaredName is Func, or Type.Method.
func declaredName(d *ast.FuncDecl) string {
	if of := receiver(d); of != "" {
		return of + "." + d.Name.Name
	}
	return d.Name.Name
}

// receiver is the name of the type that a function is a method of; "" if it is none.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	name, _ := typ.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
