package muster_test

import (
	"fmt"
	"go/ast"
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
// Lock and Unlock in one function, and all of a function whose name ends in Locked; what is called
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
			held := map[string]bool{}
			if strings.HasSuffix(f.Name.Name, "Locked") {
				held["the caller's lock"] = true
			}
			found := heldAcross(s.fset, f.Body.List, held)
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

// heldAcross walks statements in order, with the mutexes that are held when they begin.
func heldAcross(fset *token.FileSet, list []ast.Stmt, held map[string]bool) (found []string) {
	// deferred says that a mutex is unlocked by a deferred call.
	deferred := false
	for _, st := range list {
		if what, mutex := lockCall(st); what != "" {
			if _, is := st.(*ast.DeferStmt); is {
				deferred = true
			} else {
				held[mutex] = what == "Lock"
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
			inner(st.Body)
			continue
		case *ast.RangeStmt:
			inner(st.Body)
			continue
		case *ast.SwitchStmt:
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.TypeSwitchStmt:
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.SelectStmt:
			found = append(found, inCases(fset, st.Body, held)...)
			continue
		case *ast.LabeledStmt:
			found = append(found, heldAcross(fset, []ast.Stmt{st.Stmt}, maps.Clone(held))...)
			continue
		case *ast.DeferStmt:
			// It runs before what was deferred earlier: an Unlock, if the mutex is still held here.
			if lit, ok := st.Call.Fun.(*ast.FuncLit); ok && deferred {
				found = append(found, heldAcross(fset, lit.Body.List, maps.Clone(held))...)
			}
			continue
		case *ast.GoStmt:
			continue
		}
		found = append(found, blocking(fset, held, st)...)
	}
	return found
}

// inCases walks the cases of a switch or a select.
func inCases(fset *token.FileSet, body *ast.BlockStmt, held map[string]bool) (found []string) {
	for _, c := range body.List {
		switch c := c.(type) {
		case *ast.CaseClause:
			found = append(found, heldAcross(fset, c.Body, maps.Clone(held))...)
		case *ast.CommClause:
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
		if is {
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
	case "log", "logger", "slog":
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
