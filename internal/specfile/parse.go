package specfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// parse reads the file into nodes. The root is a mapping.
func parse(src *source) (*node, *Problem) {
	data := bytes.TrimPrefix(src.data, []byte("\ufeff"))
	src.data = data
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Problem{Message: "is empty"}
	}
	var root *node
	var problem *Problem
	// JSON is nearly a part of YAML, but not with tabs between its values; and its own errors say more.
	if isJSONName(src.name) || bytes.TrimSpace(data)[0] == '{' && json.Valid(data) {
		root, problem = parseJSON(src)
	} else {
		root, problem = parseYAML(src)
	}
	if problem != nil {
		return nil, problem
	}
	if root.kind != mapping {
		return nil, &Problem{Line: root.line, Column: root.column, Width: root.width, Message: fmt.Sprintf("the file is %s; it should be a mapping of fields, as name: value", root.kind)}
	}
	return root, nil
}

// parseJSON reads JSON with the places of its values.
func parseJSON(src *source) (*node, *Problem) {
	p := &jsonParser{src: src, dec: json.NewDecoder(bytes.NewReader(src.data)), line: 1, column: 1}
	p.dec.UseNumber()
	// The decoder checks tokens, not the whole: let it say first what is wrong.
	var whole json.RawMessage
	if err := json.Unmarshal(src.data, &whole); err != nil {
		return nil, src.jsonProblem(err)
	}
	root, problem := p.value(0)
	if problem != nil {
		return nil, problem
	}
	root.count = p.count
	return root, nil
}

func (s *source) jsonProblem(err error) *Problem {
	message, offset := err.Error(), len(s.data)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = int(syntax.Offset)
		if syntax.Offset > 0 && offset <= len(s.data) && message != "unexpected end of JSON input" {
			offset-- // it is the offset after the wrong byte
		}
	}
	line, column := s.position(offset)
	return &Problem{Line: line, Column: column, Message: "not JSON: " + message}
}

type jsonParser struct {
	src *source
	dec *json.Decoder
	// Where offset is, so that each place is found by going on from the last one.
	offset, line, column int
	count                int
}

func (p *jsonParser) value(depth int) (*node, *Problem) {
	n := p.next()
	p.count++
	token, err := p.dec.Token()
	if err != nil {
		return nil, p.src.jsonProblem(err)
	}
	if depth > maxDepth {
		return nil, tooDeep(n)
	}
	n.width = utf8.RuneCount(p.src.data[p.offset:p.dec.InputOffset()])
	switch t := token.(type) {
	case nil:
		n.kind = nothing
	case string:
		n.kind, n.value = text, t
	case json.Number:
		n.kind, n.value = number, t.String()
	case bool:
		n.kind, n.value = truth, fmt.Sprint(t)
	case json.Delim:
		if t == '[' {
			n.kind = list
			return n, p.list(n, depth)
		}
		n.kind = mapping
		return n, p.mapping(n, depth)
	}
	return n, nil
}

func (p *jsonParser) list(n *node, depth int) *Problem {
	for p.dec.More() {
		item, problem := p.value(depth + 1)
		if problem != nil {
			return problem
		}
		n.items = append(n.items, item)
	}
	return p.end()
}

func (p *jsonParser) mapping(n *node, depth int) *Problem {
	keys := map[string]*node{}
	for p.dec.More() {
		key, problem := p.value(depth + 1)
		if problem != nil {
			return problem
		}
		if first := keys[key.value]; first != nil {
			return twice(key, first)
		}
		keys[key.value] = key
		value, problem := p.value(depth + 1)
		if problem != nil {
			return problem
		}
		n.entries = append(n.entries, entry{key, value})
	}
	return p.end()
}

func (p *jsonParser) end() *Problem {
	if _, err := p.dec.Token(); err != nil {
		return p.src.jsonProblem(err)
	}
	return nil
}

// next is a node at the place of the next token: past what separates it from the last one.
func (p *jsonParser) next() *node {
	data, to := p.src.data, int(p.dec.InputOffset())
	for to < len(data) && strings.IndexByte(" \t\r\n,:", data[to]) >= 0 {
		to++
	}
	for ; p.offset < to; p.offset++ {
		switch c := data[p.offset]; {
		case c == '\n':
			p.line, p.column = p.line+1, 1
		case c&0xc0 != 0x80: // not inside a character
			p.column++
		}
	}
	return &node{line: p.line, column: p.column}
}

func tooDeep(n *node) *Problem {
	return &Problem{Line: n.line, Column: n.column, Message: fmt.Sprintf("a value that nests deeper than %d levels", maxDepth)}
}

func twice(key, first *node) *Problem {
	return &Problem{Line: key.line, Column: key.column, Width: key.width, Message: fmt.Sprintf("field %q is given twice; first on line %d", short(key.value), first.line)}
}

// short is a bounded part of a text, for messages.
func short(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}

// firstInk is the column of the first character of a line that is no space.
func firstInk(line string) int {
	column := 1
	for _, r := range line {
		if !unicode.IsSpace(r) {
			return column
		}
		column++
	}
	return 1
}
