package muster

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Constraint is a condition on a node's attributes that a member needs.
type Constraint struct {
	Attribute string   `json:"attribute" cbor:"1,keyasint"`
	Op        string   `json:"op,omitempty" cbor:"2,keyasint,omitempty"`
	Value     string   `json:"value,omitempty" cbor:"3,keyasint,omitempty"`
	Values    []string `json:"values,omitempty" cbor:"4,keyasint,omitempty"`

	read func(string) bool // of op and value, where reading them takes time; see Ready
	// from is what the condition comes from, for users who have not written it; empty: they have.
	from string
}

// Constraint operators. An attribute that is not set equals nothing and differs
// from every value.
const (
	OpEqual       = "="
	OpNotEqual    = "!="
	OpLess        = "<" // these four: as numbers if both are, else as text
	OpAtMost      = "<="
	OpMore        = ">"
	OpAtLeast     = ">="
	OpIn          = "in"
	OpNotIn       = "not-in"
	OpVersion     = "version"      // the value is conditions on a version, as ">= 1.2, < 2" or "~> 1.4"
	OpRegexp      = "regexp"       // the value is found in the attribute
	OpSetContains = "set-contains" // both are lists with commas; the attribute has each entry of the value
	OpIsSet       = "is-set"
	OpIsNotSet    = "is-not-set"
)

// Operators are all of them, in the order in which they are documented.
func Operators() []string {
	return []string{OpEqual, OpNotEqual, OpLess, OpAtMost, OpMore, OpAtLeast, OpIn, OpNotIn, OpVersion, OpRegexp, OpSetContains, OpIsSet, OpIsNotSet}
}

// MetaPrefix begins the names of attributes that only the configuration sets.
const MetaPrefix = "meta."

// String is the constraint as users write it.
func (c *Constraint) String() string {
	if c.from != "" {
		return c.text() + " (" + c.from + ")"
	}
	return c.text()
}

func (c *Constraint) text() string {
	switch c.Op {
	case OpIn, OpNotIn:
		return c.Attribute + " " + c.Op + " " + strings.Join(c.Values, ", ")
	case OpIsSet:
		return c.Attribute + " is set"
	case OpIsNotSet:
		return c.Attribute + " is not set"
	case "":
		return c.Attribute + " = " + c.Value
	}
	return c.Attribute + " " + c.Op + " " + c.Value
}

// Ready reads what takes time to read, once. Without it Met reads it each time.
func (c *Constraint) Ready() { c.read, _ = c.reader() }

// Check says what is wrong with the value of an operator that reads it.
func (c *Constraint) Check() error {
	_, err := c.reader()
	return err
}

func (c *Constraint) reader() (func(string) bool, error) {
	switch c.Op {
	case OpRegexp:
		re, err := regexp.Compile(c.Value)
		if err != nil {
			return nil, err
		}
		return re.MatchString, nil
	case OpVersion:
		return readVersions(c.Value)
	case OpSetContains:
		want := setOf(c.Value)
		return func(v string) bool {
			has := setOf(v)
			return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(has, w) })
		}, nil
	}
	return nil, nil
}

func setOf(list string) []string {
	var out []string
	for w := range strings.SplitSeq(list, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// Met reports whether an attribute's value satisfies the constraint; set is
// whether the node has it.
func (c *Constraint) Met(v string, set bool) bool {
	switch c.Op {
	case OpIsSet:
		return set
	case OpIsNotSet:
		return !set
	case OpNotEqual:
		return set && v != c.Value || !set && c.Value != ""
	case OpNotIn:
		return !set || !slices.Contains(c.Values, v)
	}
	if !set {
		return false
	}
	switch c.Op {
	case OpEqual, "":
		return v == c.Value
	case OpIn:
		return slices.Contains(c.Values, v)
	case OpLess:
		return compareValues(v, c.Value) < 0
	case OpAtMost:
		return compareValues(v, c.Value) <= 0
	case OpMore:
		return compareValues(v, c.Value) > 0
	case OpAtLeast:
		return compareValues(v, c.Value) >= 0
	}
	read := c.read
	if read == nil {
		read, _ = c.reader()
	}
	return read != nil && read(v)
}

// compareValues compares numbers as numbers, and all else as text.
func compareValues(a, b string) int {
	x, notX := strconv.ParseFloat(a, 64)
	y, notY := strconv.ParseFloat(b, 64)
	if notX == nil && notY == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// version is dotted numbers and what may follow a dash: a pre-release. What
// follows a plus is of no account.
type version struct {
	numbers []int64
	pre     string
}

func readVersion(s string) (version, error) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "v")
	s, _, _ = strings.Cut(s, "+")
	s, pre, _ := strings.Cut(s, "-")
	v := version{pre: pre}
	for w := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < 0 {
			return v, fmt.Errorf("%q is no version; write it as 1.2.3 or 1.2.3-beta1", s)
		}
		v.numbers = append(v.numbers, n)
	}
	return v, nil
}

func (v version) number(i int) int64 {
	if i < len(v.numbers) {
		return v.numbers[i]
	}
	return 0
}

func (v version) release(o version) int {
	for i := range max(len(v.numbers), len(o.numbers)) {
		if c := cmp.Compare(v.number(i), o.number(i)); c != 0 {
			return c
		}
	}
	return 0
}

func (v version) compare(o version) int {
	if c := v.release(o); c != 0 || v.pre == o.pre {
		return c
	}
	switch {
	case v.pre == "":
		return 1
	case o.pre == "":
		return -1
	}
	return comparePre(v.pre, o.pre)
}

// comparePre compares pre-releases part by part: numbers as numbers and before words.
func comparePre(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, notM := strconv.ParseInt(x[i], 10, 64)
		n, notN := strconv.ParseInt(y[i], 10, 64)
		var c int
		switch {
		case notM == nil && notN == nil:
			c = cmp.Compare(m, n)
		case notM == nil:
			c = -1
		case notN == nil:
			c = 1
		default:
			c = strings.Compare(x[i], y[i])
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// readVersions reads conditions with commas between. A pre-release meets one
// only if that names a pre-release of the same release: who asks for at least 1.2 does not mean 1.3.0-beta1.
func readVersions(s string) (func(string) bool, error) {
	var all []func(version) bool
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		op := part[:len(part)-len(strings.TrimLeft(part, "<>=!~"))]
		want, err := readVersion(part[len(op):])
		if err != nil {
			return nil, err
		}
		var met func(int) bool
		switch op {
		case "", "=", "==":
			met = func(c int) bool { return c == 0 }
		case "!=":
			all = append(all, func(v version) bool { return v.compare(want) != 0 })
			continue
		case "<":
			met = func(c int) bool { return c < 0 }
		case "<=":
			met = func(c int) bool { return c <= 0 }
		case ">":
			met = func(c int) bool { return c > 0 }
		case ">=":
			met = func(c int) bool { return c >= 0 }
		case "~>":
			below := version{numbers: slices.Clone(want.numbers[:max(len(want.numbers)-1, 1)])}
			below.numbers[len(below.numbers)-1]++
			all = append(all, func(v version) bool { return v.release(below) < 0 })
			met = func(c int) bool { return c >= 0 }
		default:
			return nil, fmt.Errorf("%q is no comparison; it is one of =, !=, <, <=, >, >=, ~>", op)
		}
		all = append(all, func(v version) bool {
			return (v.pre == "" || want.pre != "" && v.release(want) == 0) && met(v.compare(want))
		})
	}
	return func(s string) bool {
		v, err := readVersion(s)
		return err == nil && !slices.ContainsFunc(all, func(met func(version) bool) bool { return !met(v) })
	}, nil
}
