package muster_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// blockingUnderLocks are functions that hold a mutex across a file or the log on purpose, and why.
var blockingUnderLocks = map[string]string{
	"cmd/muster-node.Write":      "it is the log: lines stay whole, and no line goes to a file that is being rotated",
	"cmd/muster-node.openLocked": "it opens the log's file for Write",
}

// A mutex that is held while a file is read, a line is logged or a server is asked stops everybody who
// wants it for as long as the disk, or the reader of the log, takes. This test sees what stands between
// Lock and Unlock in one function, and all of a function whose name ends in Locked; what else is called
// from there it does not see.
func TestNoLockIsHeldAcrossFilesOrLogs(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || strings.Contains(s.dir, "test") || s.ast == nil {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			name := s.dir + "." + f.Name.Name
			// A function with this ending is called with a mutex held.
			locked := strings.HasSuffix(f.Name.Name, "Locked")
			found := heldAcross(s.fset, f.Body.List, map[string]bool{"its caller's mutex": locked})
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if lit, ok := n.(*ast.FuncLit); ok {
					found = append(found, heldAcross(s.fset, lit.Body.List, map[string]bool{})...)
				}
				return true
			})
			for _, why := range found {
				seen[name] = true
				if blockingUnderLocks[name] == "" {
					t.Errorf("%s: %s", name, why)
				}
			}
		}
	}
	for name := range blockingUnderLocks {
		if !seen[name] {
			t.Errorf("%s holds no lock across anything: take it off the list", name)
		}
	}
}

// heldAcross walks statements in order, with the mutexes that are held when they begin. A deferred
// call runs while a mutex is held if the Unlock of that mutex was deferred before it.
func heldAcross(fset *token.FileSet, list []ast.Stmt, held map[string]bool) (found []string) {
	for _, st := range list {
		if what, mutex := lockCall(st); what != "" {
			if _, deferred := st.(*ast.DeferStmt); !deferred {
				held[mutex] = what == "Lock"
			} else if what == "Unlock" {
				held[untilReturn+mutex] = held[mutex]
			}
			continue
		}
		inner := func(b ast.Stmt) {
			if b, ok := b.(*ast.BlockStmt); ok && b != nil {
				found = append(found, heldAcross(fset, b.List, maps.Clone(held))...)
			}
		}
		switch st := st.(type) {
		case *ast.BlockStmt:
			inner(st)
			continue
		case *ast.IfStmt:
			found = append(found, blocking(fset, held, st.Init, st.Cond)...)
			inner(st.Body)
			if st.Else != nil {
				found = append(found, heldAcross(fset, []ast.Stmt{st.Else}, maps.Clone(held))...)
			}
			continue
		case *ast.ForStmt:
			found = append(found, blocking(fset, held, st.Init, st.Cond, st.Post)...)
			inner(st.Body)
			continue
		case *ast.RangeStmt:
			found = append(found, blocking(fset, held, st.X)...)
			inner(st.Body)
			continue
		case *ast.SwitchStmt:
			found = append(found, blocking(fset, held, st.Init, st.Tag)...)
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.TypeSwitchStmt:
			found = append(found, blocking(fset, held, st.Init, st.Assign)...)
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.SelectStmt:
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.LabeledStmt:
			found = append(found, heldAcross(fset, []ast.Stmt{st.Stmt}, held)...)
			continue
		case *ast.DeferStmt:
			late := map[string]bool{}
			for m, is := range held {
				if mutex, ok := strings.CutPrefix(m, untilReturn); ok {
					late[mutex] = is
				}
			}
			if lit, ok := st.Call.Fun.(*ast.FuncLit); ok {
				for mutex := range unlocks(lit.Body) {
					if held[mutex] {
						late[mutex], held[untilReturn+mutex] = true, true
					}
				}
				found = append(found, heldAcross(fset, lit.Body.List, late)...)
			} else {
				found = append(found, blocking(fset, late, st.Call)...)
			}
			continue
		case *ast.GoStmt:
			continue
		}
		found = append(found, blocking(fset, held, st)...)
	}
	return found
}

// untilReturn marks, before the name of a mutex, that a deferred Unlock releases it.
const untilReturn = "until return: "

// unlocks are the mutexes that a body unlocks.
func unlocks(body *ast.BlockStmt) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if st, ok := n.(ast.Stmt); ok {
			if what, mutex := lockCall(st); what == "Unlock" {
				out[mutex] = true
			}
		}
		return true
	})
	return out
}

// inCases walks the cases of a switch, a type switch or a select.
func inCases(fset *token.FileSet, body *ast.BlockStmt, held map[string]bool) (found []string) {
	for _, c := range body.List {
		switch c := c.(type) {
		case *ast.CaseClause:
			for _, e := range c.List {
				found = append(found, blocking(fset, held, e)...)
			}
			found = append(found, heldAcross(fset, c.Body, maps.Clone(held))...)
		case *ast.CommClause:
			if c.Comm != nil {
				found = append(found, blocking(fset, held, c.Comm)...)
			}
			found = append(found, heldAcross(fset, c.Body, maps.Clone(held))...)
		}
	}
	return found
}

// lockCall is "Lock" or "Unlock" and the mutex, of a statement that is such a call.
func lockCall(st ast.Stmt) (what, mutex string) {
	var call *ast.CallExpr
	switch st := st.(type) {
	case *ast.ExprStmt:
		call, _ = st.X.(*ast.CallExpr)
	case *ast.DeferStmt:
		call = st.Call
	}
	if call == nil {
		return "", ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	switch sel.Sel.Name {
	case "Lock", "RLock":
		return "Lock", dotted(sel.X)
	case "Unlock", "RUnlock":
		return "Unlock", dotted(sel.X)
	}
	return "", ""
}

func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	}
	return "?"
}

// blocking are the calls in nodes that touch files, logs or the network, if a mutex is held.
func blocking(fset *token.FileSet, held map[string]bool, nodes ...ast.Node) (found []string) {
	var mutex string
	for m, is := range held {
		if is && !strings.HasPrefix(m, untilReturn) {
			mutex = m
		}
	}
	if mutex == "" {
		return nil
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		ast.Inspect(n, func(n ast.Node) bool {
			if _, later := n.(*ast.FuncLit); later {
				return false // runs when it is called
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := dotted(call.Fun); touches(name) {
				found = append(found, fmt.Sprintf("line %d: %s is called while %s is held", fset.Position(call.Pos()).Line, name, mutex))
			}
			return true
		})
	}
	return found
}

func touches(call string) bool {
	parts := strings.Split(call, ".")
	if len(parts) < 2 {
		return false
	}
	of, fn := parts[len(parts)-2], parts[len(parts)-1]
	switch of {
	case "log", "logger", "slog", "Logger":
		return slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, fn)
	case "os":
		return !slices.Contains([]string{"IsNotExist", "IsExist", "Getpid", "SameFile", "FileMode", "NewSyscallError", "Getenv", "Geteuid", "Getuid", "NewFile", "Exit"}, fn)
	case "atomicfile":
		return true
	case "http":
		return fn == "Do" || fn == "Get"
	}
	return false
}

// TestHeldAcrossSeesDeferredCallsAndCases checks the walk on small functions.
func TestHeldAcrossSeesDeferredCallsAndCases(t *testing.T) {
	for body, want := range map[string]int{
		`mu.Lock(); defer mu.Unlock(); defer log.Info("")`:                           1,
		`mu.Lock(); defer mu.Unlock(); defer func() { log.Info("") }()`:              1,
		`mu.Lock(); defer func() { log.Info("") }(); defer mu.Unlock()`:              0,
		`mu.Lock(); defer mu.Unlock(); defer func() { mu.Unlock(); log.Info("") }()`: 0,
		`mu.Lock(); defer func() { log.Info(""); mu.Unlock() }()`:                    1,
		`mu.Lock(); defer func() { mu.Unlock() }(); defer log.Info("")`:              1,
		`mu.Lock(); select { case <-c: log.Info(""); default: }; mu.Unlock()`:        1,
		`mu.Lock(); select { case <-c: mu.Unlock(); log.Info("") }`:                  0,
		`mu.Lock(); switch v.(type) { case int: log.Info("") }; mu.Unlock()`:         1,
		`mu.Lock(); switch { case true: log.Info("") }; mu.Unlock()`:                 1,
		`mu.Lock(); a: for { log.Info(""); break a }; mu.Unlock()`:                   1,
		`mu.Lock(); for _, f := range os.ReadDir(".") { f() }; mu.Unlock()`:          1,
		`mu.Lock(); mu.Unlock(); select { case <-c: log.Info("") }`:                  0,
		`if true { mu.Lock(); defer mu.Unlock() }; for os.Remove("") == nil { f() }`: 0,
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "f.go", "package p\nfunc f() { "+body+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := heldAcross(fset, f.Decls[0].(*ast.FuncDecl).Body.List, map[string]bool{}); len(got) != want {
			t.Errorf("%s: found %q, want %d", body, got, want)
		}
	}
}
