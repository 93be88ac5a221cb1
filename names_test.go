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
	if steps < 70 {
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

// caseCode is the code of a case, as P7 or N14b, where a word of a name begins.
var caseCode = regexp.MustCompile(`^[A-Z]{1,2}[0-9]+[a-z]?([A-Z_]|$)`)

// notCodes are names of things that look like the code of a case.
var notCodes = []string{"E2B", "S3", "H2", "K8s", "V1", "V2", "MD5", "X509"}

// A code says nothing to a reader who does not have the list of cases, and two lists give one code
// to different cases. So tests, benchmarks and fuzz targets are named by what they show.
func TestTestsAreNamedByWhatTheyShow(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				continue
			}
			for _, kind := range []string{"Test", "Benchmark", "Fuzz"} {
				if shows, ok := strings.CutPrefix(f.Name.Name, kind); ok && hasCaseCode(shows) {
					t.Errorf("%s: %s has the code of a case in its name", s.file, f.Name.Name)
				}
			}
		}
	}
	for name, want := range map[string]bool{
		"P7Stopped": true, "N14bServerKilled": true, "S3B3OldestFirst": true, "F1": true, "PlaceL14Racks": true,
		"S3Buckets": false, "E2BClients": false, "CgroupV2": false, "IPv6IsDropped": false, "UTF8": false, "K8sNames": false,
	} {
		if hasCaseCode(name) != want {
			t.Errorf("%s has a code: %v, want %v", name, !want, want)
		}
	}
}

// hasCaseCode reports whether a word of a name is the code of a case.
func hasCaseCode(name string) bool {
	for _, known := range notCodes {
		name = strings.ReplaceAll(name, known, "_")
	}
	for i := range name {
		if (i == 0 || !isCapital(name[i-1])) && caseCode.MatchString(name[i:]) {
			return true
		}
	}
	return false
}

func isCapital(c byte) bool { return 'A' <= c && c <= 'Z' }
