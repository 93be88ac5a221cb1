package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

// TestDocsOfEvents: docs/events.md is the list of verbs in internal/state/verb.go with what their
// comments say. With -update it is written, else compared.
func TestDocsOfEvents(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/state/verb.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Events\n\nGenerated from `internal/state/verb.go` (`go test ./cmd/muster -run TestDocs -update`).\n" +
		"`muster events` prints events, and `GET /v1/events` streams them. The type of an event is one of\n" +
		"these. It also has the object, a sentence and the person who caused the change, if any.\n\n| type | when |\n|---|---|\n")
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		v, ok := node.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		lit, ok := v.Values[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(v.Comment.Text()) == "" {
			t.Errorf("%s has no comment", name)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.TrimSpace(v.Comment.Text()))
		n++
		return true
	})
	for _, row := range madeVerbs() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", row[0], row[1])
	}
	if n < 50 {
		t.Errorf("only %d verbs", n)
	}
	isPage(t, "docs/events.md", "the verbs", b.String())
}

// madeVerbs are those that functions of internal/state/verb.go make of a value.
func madeVerbs() (rows [][2]string) {
	for _, h := range []muster.NodeHealth{muster.NodeGood, muster.NodeLost, muster.NodeBroken} {
		rows = append(rows, [2]string{"node." + string(h), "its health is " + string(h)})
	}
	for _, i := range []muster.NodeIntent{muster.NodeRun, muster.NodeHold, muster.NodeDrain} {
		rows = append(rows, [2]string{"node.intent-" + string(i), "its intent was set to " + string(i)})
	}
	for _, s := range []muster.ClaimState{muster.ClaimReleased, muster.ClaimExpired, muster.ClaimLost} {
		rows = append(rows, [2]string{"claim." + string(s), "the claim has ended: " + string(s)})
	}
	for _, s := range []muster.RolloutStage{muster.RolloutRolling, muster.RolloutDone, muster.RolloutFailed} {
		rows = append(rows, [2]string{"job.rollout-" + string(s), "the rollout of its version is " + string(s)})
	}
	return rows
}
