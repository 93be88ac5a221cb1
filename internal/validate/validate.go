// Package validate gathers what is wrong with values that users write: with jobs and environments
// (package api) and with the server's configuration (package config). Both use the same messages
// and list the same number of problems at most.
package validate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/musterhq/muster"
)

const (
	// MaxProblems bounds an answer: a spec of a million wrong arguments has one cause.
	MaxProblems = 50
	// MaxListLen bounds lists: of inputs, outputs, constraints, values, restart.on, devices.
	MaxListLen = 1000
)

// Problem is one field that is wrong. Its fields are those of api.ProblemField, so that one can be converted into the other.
type Problem struct {
	Location string
	Message  string
	Value    any
}

// Checks gathers problems, in the order in which they are found.
type Checks struct {
	Problems []Problem
	more     int
}

// Add notes a problem with what is at a location, as "pools[0].provider".
func (c *Checks) Add(location, format string, args ...any) {
	if len(c.Problems) >= MaxProblems {
		// The last place tells how many there are from it on.
		c.more++
		c.Problems[MaxProblems-1].Message = fmt.Sprintf("is the first of %d further problems that are not listed", c.more+1)
		return
	}
	c.Problems = append(c.Problems, Problem{Location: location, Message: fmt.Sprintf(format, args...)})
}

// Name checks the name of a job, a pool and the like.
func (c *Checks) Name(location, name string) {
	if err := muster.CheckName(name); err != nil {
		c.Add(location, "%v", err)
	}
}

// Text refuses what no command line, environment or path can hold, and what
// would not come back the same out of JSON.
func (c *Checks) Text(location, s string, most int) bool {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		c.Add(location, "has a NUL byte, which nothing on Linux can be given")
	case !utf8.ValidString(s):
		c.Add(location, "is not UTF-8 text; give other bytes in a file, as an input")
	case len(s) > most:
		c.Add(location, "has %d bytes; at most %d can be passed", len(s), most)
	default:
		return true
	}
	return false
}

// Count checks the length of a list.
func (c *Checks) Count(location string, n int) bool {
	if n > MaxListLen {
		c.Add(location, "has %d entries; at most %d", n, MaxListLen)
		return false
	}
	return true
}

// Amount is a number that prints itself with its unit, as a duration.
type Amount interface {
	~int64
	String() string
}

// AtMost checks that an amount is neither negative nor larger than most.
func AtMost[A Amount](c *Checks, location string, a, most A) {
	switch {
	case a < 0:
		c.Add(location, "is %s; it cannot be negative", a)
	case a > most:
		c.Add(location, "is %s; at most %s", a, most)
	}
}

// Index is the location of an item of a list.
func Index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// Quote shows a text of unknown origin inside a message: escaped, and bounded.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToGraphic(strings.ToValidUTF8(s[:most], "�")) + "…"
	}
	return strconv.QuoteToGraphic(s)
}

// Number shows a number inside a message.
func Number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "not a number"
	}
	return fmt.Sprintf("%g", v)
}

// PlainWord reports whether a text needs no quotes anywhere.
func PlainWord(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-/", r)
	})
}
