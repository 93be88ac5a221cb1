package specfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// parseYAML reads YAML with the places of its values.
func parseYAML(src *source) (*node, *Problem) {
	src.yaml = true
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(src.data))
	if err := decode(dec, &doc); errors.Is(err, io.EOF) {
		return nil, &Problem{Message: "is empty: it has comments only"}
	} else if err != nil {
		return nil, src.yamlProblem(err)
	}
	var second yaml.Node
	if err := decode(dec, &second); err == nil {
		line, column := second.Line, second.Column
		return nil, &Problem{Line: line, Column: column, Message: "a second document; put each into a file of its own"}
	} else if !errors.Is(err, io.EOF) {
		return nil, src.yamlProblem(err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, &Problem{Message: "is empty"}
	}
	c := &converter{done: map[*yaml.Node]*node{}}
	root, problem := c.node(doc.Content[0], 0)
	if problem != nil {
		return nil, problem
	}
	root.count = c.count
	return root, nil
}

// decode is dec.Decode, without its panics: the library turns its own into
// errors and lets others through.
func decode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", r)
		}
	}()
	return dec.Decode(n)
}

// converter turns the library's nodes into ours. Each is converted once; an
// alias becomes the node that it names.
type converter struct {
	done  map[*yaml.Node]*node // nil while it is under way
	count int
}

func (c *converter) node(y *yaml.Node, depth int) (*node, *Problem) {
	here := Problem{Line: y.Line, Column: y.Column}
	if y.Kind == yaml.AliasNode {
		if n := c.done[y.Alias]; n != nil {
			return n, nil
		}
		here.Message = fmt.Sprintf("the alias *%s stands inside what it names", short(y.Value))
		return nil, &here
	}
	c.count++
	if depth > maxDepth {
		here.Message = fmt.Sprintf("a value that nests deeper than %d levels", maxDepth)
		return nil, &here
	}
	if y.Style&yaml.TaggedStyle != 0 && (y.Kind != yaml.ScalarNode || y.ShortTag() != "!!str") {
		here.Message = fmt.Sprintf("the tag %s; tags are not read, leave it out", short(y.ShortTag()))
		return nil, &here
	}
	n := &node{line: y.Line, column: y.Column, width: 1}
	var problem *Problem
	switch y.Kind {
	case yaml.SequenceNode:
		n.kind = list
		problem = c.list(n, y, depth)
	case yaml.MappingNode:
		n.kind = mapping
		problem = c.mapping(n, y, depth)
	default:
		n.scalar(y)
	}
	if y.Anchor != "" {
		c.done[y] = n
	}
	return n, problem
}

func (c *converter) list(n *node, y *yaml.Node, depth int) *Problem {
	n.items = make([]*node, 0, len(y.Content))
	for _, item := range y.Content {
		i, problem := c.node(item, depth+1)
		if problem != nil {
			return problem
		}
		n.items = append(n.items, i)
	}
	return nil
}

func (c *converter) mapping(n *node, y *yaml.Node, depth int) *Problem {
	n.entries = make([]entry, 0, len(y.Content)/2)
	keys := map[string]*node{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		if k := y.Content[i]; k.ShortTag() == "!!merge" {
			return &Problem{Line: k.Line, Column: k.Column, Width: 2, Message: "the merge key << is not read; write the fields out"}
		}
		key, problem := c.node(y.Content[i], depth+1)
		if problem != nil {
			return problem
		}
		if key.kind == list || key.kind == mapping {
			return &Problem{Line: key.line, Column: key.column, Message: fmt.Sprintf("%s stands where the name of a field should", key.kind)}
		}
		if first := keys[key.value]; first != nil {
			return twice(key, first)
		}
		keys[key.value] = key
		value, problem := c.node(y.Content[i+1], depth+1)
		if problem != nil {
			return problem
		}
		n.entries = append(n.entries, entry{key, value})
	}
	return nil
}

func (n *node) scalar(y *yaml.Node) {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle
	n.kind, n.value = text, y.Value
	n.width = utf8.RuneCountInString(y.Value)
	switch {
	case y.Style&quoted != 0:
		n.width += 2
	case y.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		n.width = 1
	case y.Style&yaml.TaggedStyle != 0: // !!str
		n.width = 1
	default:
		switch y.ShortTag() {
		case "!!null":
			n.kind = nothing
		case "!!bool":
			n.kind = truth
		case "!!int", "!!float":
			n.kind = number
		}
	}
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s:.*))$`)

// yamlMessage splits what the library says into line and message.
func yamlMessage(err error) (line int, message string) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(m[1])
	return line, m[2]
}

// yamlProblem says what is wrong with the YAML and where. The library names the
// line at which the outermost open value began, if any, and no column; the place is where the file
// first goes wrong in the same way when it is read up to there.
func (s *source) yamlProblem(err error) *Problem {
	line, message := yamlMessage(err)
	p := &Problem{Line: max(line, 1), Column: 1, Message: "not YAML: " + message}
	if len(s.data) <= 256<<10 {
		s.findYAMLProblem(p, message)
	}
	if hint := yamlHint(message, string(s.line(s.starts(), p.Line)), p.Column); hint != "" {
		p.Message = hint
	}
	return p
}

func (s *source) findYAMLProblem(p *Problem, message string) {
	fails := func(data []byte) bool {
		var n yaml.Node
		err := decode(yaml.NewDecoder(bytes.NewReader(data)), &n)
		if err == nil || errors.Is(err, io.EOF) {
			return false
		}
		_, m := yamlMessage(err)
		return m == message
	}
	starts := s.starts()
	ends := append(starts[1:len(starts):len(starts)], len(s.data))
	at := sort.Search(len(ends), func(i int) bool { return fails(s.data[:ends[i]]) })
	if at == len(ends) {
		return
	}
	p.Line = at + 1
	line := string(s.line(starts, p.Line))
	p.Column = firstInk(line)
	// A key on the wrong level is wrong from its first letter on, but is noticed at its end.
	if len(line) > 4096 || strings.Contains(message, "expected key") {
		return
	}
	if n := sort.Search(len(line), func(n int) bool { return fails(s.data[:starts[at]+n+1]) }); n < len(line) {
		p.Column = utf8.RuneCountInString(line[:n+1])
	}
}

// yamlHint says the library's commoner messages in words that tell what to do.
func yamlHint(message, line string, column int) string {
	switch {
	case strings.Contains(message, "cannot start any token"):
		before := []rune(line)
		if strings.Contains(string(before[:min(column, len(before))]), "\t") {
			return "a tab; YAML is indented with spaces only"
		}
		return "a character that begins nothing in YAML; put the text into quotes"
	case strings.Contains(message, "mapping values are not allowed"):
		return "a value where none can be: indent the line like those of the same level, and put text with \": \" in it into quotes"
	case strings.Contains(message, "did not find expected key"):
		return "a line indented unlike those of its level, or a field without a name"
	case strings.Contains(message, "could not find expected ':'"):
		return "a name without a colon after it; write name: value"
	case strings.Contains(message, "expected '-' indicator"):
		return "a line that should go on with the list above, with - in the same column"
	case strings.Contains(message, "found unexpected end of stream"):
		return "a quotation that is never closed"
	case strings.Contains(message, "expected ',' or ']'"):
		return "a list with [ that goes wrong here or is never closed"
	case strings.Contains(message, "expected ',' or '}'"):
		return "a mapping with { that goes wrong here or is never closed"
	case strings.Contains(message, "exceeded max depth"):
		return fmt.Sprintf("a value that nests deeper than %d levels", maxDepth)
	}
	return ""
}
