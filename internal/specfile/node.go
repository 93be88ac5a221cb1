package specfile

import (
	"fmt"
	"strings"

	"github.com/musterhq/muster/api"
)

// kind is what a file says at one place.
type kind int

const (
	nothing kind = iota // null, or an empty value in YAML
	text                // in quotes, or plain and nothing else
	number              // plain, reads as a number
	truth               // plain true or false
	list
	mapping
)

func (k kind) String() string {
	return [...]string{"nothing", "text", "a number", "true or false", "a list", "a mapping"}[k]
}

// node is one value of a file, in the form that YAML and JSON share. Nodes that
// a YAML alias names are shared, not copied.
type node struct {
	kind         kind
	value        string // of text, number, truth: as it was written, without quotes
	line, column int
	width        int // characters to underline
	items        []*node
	entries      []entry
	count        int // of the root: how many nodes were written in the file
}

// entry is one key of a mapping with its value.
type entry struct {
	key   *node
	value *node
}

// maxDepth bounds how deep values nest; our files need six.
const maxDepth = 50

// aliasBudget bounds how many values YAML aliases may add to those that are written.
const aliasBudget = 20_000

// aliasBytes bounds how much text they may add.
const aliasBytes = MaxBytes

// textBytes is the length of the node's own text: of a scalar, or of a mapping's keys.
func (n *node) textBytes() int {
	size := len(n.value)
	for i := range n.entries {
		size += len(n.entries[i].key.value)
	}
	return size
}

func (n *node) get(key string) *entry {
	for i := range n.entries {
		if n.entries[i].key.value == key {
			return &n.entries[i]
		}
	}
	return nil
}

// locate puts a problem of package api at its place in the file: at the value
// that its location names or, where that is not written, at what it should stand in. Left is the
// part of the location that is not written. A problem whose value is the name of the field is one
// with the name.
func (n *node) locate(p api.ProblemField) (out Problem, left string) {
	out = Problem{Path: p.Location, Message: p.Message}
	at, rest := n, p.Location
	for rest != "" && at != nil {
		rest = strings.TrimPrefix(rest, ".")
		next, place, left := at.step(rest)
		if next == nil {
			break
		}
		if name, ok := p.Value.(string); ok && left == "" && name == rest && at.get(name) != nil {
			place = at.get(name).key
		}
		out.Line, out.Column, out.Width = place.line, place.column, place.width
		at, rest = next, left
	}
	return out, rest
}

// step goes one step along a location: to the value, the node to point at, and what is left of the location.
func (n *node) step(location string) (next, place *node, rest string) {
	if strings.HasPrefix(location, "[") {
		end := strings.IndexByte(location, ']')
		var i int
		if _, err := fmt.Sscanf(location, "[%d]", &i); err != nil || end < 0 || i < 0 || i >= len(n.items) {
			return nil, nil, ""
		}
		return n.items[i], n.items[i].start(), location[end+1:]
	}
	// Names of environment variables may have dots and brackets in them: the longest key wins.
	for _, e := range n.entries {
		if e.key.value == location {
			return e.value, e.place(), ""
		}
	}
	end := strings.IndexAny(location, ".[")
	if end < 0 {
		return nil, nil, ""
	}
	if e := n.get(location[:end]); e != nil {
		return e.value, e.place(), location[end:]
	}
	return nil, nil, ""
}

// place is where to point for an entry: its value if that is short, else its key.
func (e *entry) place() *node {
	switch e.value.kind {
	case text, number, truth:
		return e.value
	}
	return e.key
}

// start is where to point for an item of a list: its first key if it has one.
func (n *node) start() *node {
	if n.kind == mapping && len(n.entries) > 0 {
		return n.entries[0].key
	}
	return n
}
