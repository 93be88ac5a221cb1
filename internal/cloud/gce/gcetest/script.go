package gcetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/script"
)

// line is one line of a script. Lines are:
//
//	call: refuse STATUS REASON [when] [which]   the call is refused and does nothing
//	call: proxy [when] [which]                  something before the API answers 503 in HTML
//	call: lost before|after [when] [which]      the connection ends before or after the call is done
//	call: truncated [when] [which]              the call is done, and half of its answer comes
//	operation: fails CODE [when] [which]        an insert is accepted, and its operation fails
//	operation: takes D [when] [which]           an operation takes so long
//	list: late D                                lists lack what was made less than D ago
//	list: page N                                pages have N things at most
//	list: unreachable zone=Z [when]             a list does not look at a zone
//	list: repeat [when]                         a page begins with the last thing of the one before
//	account: rates N                            the project has N calls in each minute of the clock
//
// When is as in package script. Which is method=instances.insert and the like, type=, zone=, market=
// and metric= of an operation that fails for a quota.
type line struct {
	where, what string
	words       []string
	at          map[string]string
	// When is guarded by Cloud.mu.
	script.When
}

// takes says how many words of its own each kind of line has.
var takes = map[string]int{"call: refuse": 2, "call: proxy": 0, "call: lost": 1, "call: truncated": 0, "operation: fails": 1,
	"operation: takes": 1, "list: late": 1, "list: page": 1, "list: unreachable": 0, "list: repeat": 0, "account: rates": 1}

func parse(text string, seed uint64) ([]*line, error) {
	var out []*line
	err := script.Lines(text, seed, func(_ int, raw string, chance *rand.Rand) error {
		f := strings.Fields(raw)
		if len(f) < 2 {
			return fmt.Errorf("it has no word after the first")
		}
		n, ok := takes[f[0]+" "+f[1]]
		if !ok || len(f) < 2+n {
			return fmt.Errorf("%s %s is not known, or lacks a word", f[0], f[1])
		}
		l := &line{where: strings.TrimSuffix(f[0], ":"), what: f[1], words: f[2 : 2+n], at: map[string]string{}}
		l.Chance = chance
		if err := l.check(); err != nil {
			return err
		}
		for _, w := range f[2+n:] {
			if known, err := l.Word(w); known {
				if err != nil {
					return err
				}
				continue
			}
			key, value, ok := strings.Cut(w, "=")
			if !ok || !slices.Contains([]string{"method", "type", "zone", "market", "metric"}, key) {
				return fmt.Errorf("%q is not understood", w)
			}
			l.at[key] = value
		}
		out = append(out, l)
		return nil
	})
	return out, err
}

// check reads the words of the line's own.
func (l *line) check() error {
	var err error
	switch l.what {
	case "refuse", "page", "rates":
		_, err = strconv.Atoi(l.words[0])
	case "takes", "late":
		_, err = time.ParseDuration(l.words[0])
	case "lost":
		if l.words[0] != "before" && l.words[0] != "after" {
			err = fmt.Errorf("lost is before or after")
		}
	}
	return err
}

func (l *line) number() int { n, _ := strconv.Atoi(l.words[0]); return n }

func (l *line) span() time.Duration { d, _ := time.ParseDuration(l.words[0]); return d }

// about is what a line is asked about.
type about struct{ method, kind, zone, market string }

// strikingLocked is the first line of a kind that strikes now, or nil.
func (c *Cloud) strikingLocked(where, what string, a about) *line {
	own := map[string]string{"method": a.method, "type": a.kind, "zone": a.zone, "market": a.market}
	for _, l := range c.lines {
		if l.where != where || what != "" && l.what != what {
			continue
		}
		fits := true
		for k, v := range own {
			if want, ok := l.at[k]; ok && v != want && where+what != "listunreachable" {
				fits = false
			}
		}
		if fits && l.Strikes(c.now().Sub(c.began)) {
			return l
		}
	}
	return nil
}

// Idle are the lines of the script that never struck. A test whose faults did not happen has shown
// nothing.
func (c *Cloud) Idle() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return script.Idle(c.lines, func(l *line) string { return l.where + ": " + l.what })
}
