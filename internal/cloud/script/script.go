// Package script is what the scripts of clouds that play in tests have in common: lines of text that
// say what goes wrong, when, and to which. The fake cloud and the stand-in of EC2 read them.
//
// It must never decide what a line does: that is its reader's.
package script

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Lines calls parse for each line of a script that is more than a comment, with its number from 1 and
// a stream of chance of its own, so that a line that is added changes nothing for the others. An error
// names the line.
func Lines(text string, seed uint64, parse func(number int, line string, chance *rand.Rand) error) error {
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := parse(i+1, line, Chance(seed, line)); err != nil {
			return fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
	}
	return nil
}

// Chance is a stream of chance that follows from a seed and what it is about.
func Chance(seed uint64, about ...any) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, about...)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// When is when a line strikes. Its reader guards it.
type When struct {
	// Chance is what the line draws from. Strikes and Moment need it.
	Chance *rand.Rand
	// Low and High are the two times of after=; High is 0 if there is one.
	Low, High time.Duration
	// Hits is how often the line has struck.
	Hits int

	percent  int // 0: always
	times    int // 0: without end
	from, to time.Duration
}

// Struck is how often the line has struck.
func (w *When) Struck() int { return w.Hits }

// Idle are the lines of a script that never struck, by what name says of them. A test whose faults did not
// happen has shown nothing.
func Idle[L interface{ Struck() int }](lines []L, name func(L) string) (out []string) {
	for _, l := range lines {
		if l.Struck() == 0 {
			out = append(out, name(l))
		}
	}
	return out
}

// Word reads one word: "10%", "once", "3x", "from=D", "for=D", "after=D" or "after=D..D". It reports
// false if the word is none of these.
func (w *When) Word(f string) (known bool, err error) {
	if p, ok := strings.CutSuffix(f, "%"); ok {
		return true, Number(p, 1, 100, &w.percent)
	}
	if f == "once" {
		w.times = 1
		return true, nil
	}
	switch key, value, ok := strings.Cut(f, "="); {
	case !ok:
		k, known := strings.CutSuffix(f, "x")
		if !known {
			return false, nil
		}
		return true, Number(k, 1, 1e9, &w.times)
	case key == "from":
		w.from, err = time.ParseDuration(value)
	case key == "for":
		w.to, err = time.ParseDuration(value)
	case key == "after":
		w.Low, w.High, err = Span(value)
	default:
		return false, nil
	}
	return true, err
}

// Strikes reports whether the line strikes now, so long after its script was played, and counts it.
// Whether the line is about what is asked is the reader's to see before.
func (w *When) Strikes(since time.Duration) bool {
	switch {
	case since < w.from, w.to > 0 && since >= w.from+w.to, w.times > 0 && w.Hits >= w.times:
		return false
	case w.percent > 0 && w.Chance.IntN(100) >= w.percent:
		return false
	}
	w.Hits++
	return true
}

// Moment is a time between Low and High.
func (w *When) Moment() time.Duration {
	if w.High <= w.Low {
		return w.Low
	}
	return w.Low + time.Duration(w.Chance.Int64N(int64(w.High-w.Low)))
}

// Nth selects things by their number, as n%7=1. The zero value selects all.
type Nth struct{ Every, Rem int }

// Word reads one word. It reports false if the word is not of this kind.
func (n *Nth) Word(f string) (known bool, err error) {
	key, value, _ := strings.Cut(f, "=")
	m, ok := strings.CutPrefix(key, "n%")
	if !ok {
		return false, nil
	}
	if err = Number(m, 1, 1e9, &n.Every); err == nil {
		err = Number(value, 0, n.Every-1, &n.Rem)
	}
	return true, err
}

// Has reports whether the thing with this number is selected.
func (n Nth) Has(number int) bool { return n.Every == 0 || number%n.Every == n.Rem }

// Span reads D or D..D; high is 0 if there is one time.
func Span(s string) (low, high time.Duration, err error) {
	from, to, ranged := strings.Cut(s, "..")
	if low, err = time.ParseDuration(from); err == nil && ranged {
		high, err = time.ParseDuration(to)
	}
	return low, high, err
}

// Number reads a whole number between two.
func Number(s string, least, most int, into *int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a number from %d to %d", s, least, most)
	}
	*into = n
	return nil
}
