package ec2test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/script"
)

// line is one line of a script.
type line struct {
	where, what string
	// words are what the line says after what, before when and to which.
	words []string
	at    map[string]string // key=value

	script.Nth
	// When is guarded by Server.mu. Its times are those of after=, or of the line's first word where
	// that is a time.
	script.When
}

// takes says how many words of its own each kind of line has, by where and what.
var takes = map[string]map[string]int{
	"call": {"refuse": 1, "lost": 1, "truncated": 0, "proxy": 0, "slow": 1, "throttle": 0, "internal": 0},
	"create": {"refuse": 1, "lost": 1, "truncated": 0, "proxy": 0, "slow": 1, "throttle": 0, "internal": 0,
		"capacity": 0, "partial": 0},
	"list":     {"late": 1, "tagless": 1, "expire": 1, "move": 0, "page": 0},
	"token":    {"corpse": 0, "untagged": 0, "busy": 0},
	"instance": {"boots": 1, "turns": 1, "fails": 1, "taken": 0, "dies": 0, "leaves": 0},
	"account":  {"foreign": 1, "untagged": 1, "clock": 1, "rotate": 0, "rates": 1, "quota": 0},
	"subnet":   {"free": 1},
}

// parseScript reads a script.
func parseScript(text string, seed uint64) ([]*line, error) {
	var out []*line
	err := script.Lines(text, seed, func(_ int, raw string, chance *rand.Rand) error {
		l, err := parseLine(raw)
		if err != nil {
			return err
		}
		l.Chance = chance
		out = append(out, l)
		return nil
	})
	return out, err
}

// parseLine refuses what it does not understand whole. A fault that was misspelt would never happen.
func parseLine(raw string) (*line, error) {
	where, rest, ok := strings.Cut(raw, ":")
	known := takes[where]
	if !ok || known == nil {
		return nil, errors.New("it begins with none of call, create, list, token, instance, account and subnet, and a colon")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return nil, errors.New("it does not say what")
	}
	l := &line{where: where, what: fields[0], at: map[string]string{}}
	n, ok := known[l.what]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s knows no %q", where, l.what)
	case len(fields) <= n:
		return nil, fmt.Errorf("%s needs %d words more", l.what, n+1-len(fields))
	}
	l.words = fields[1 : 1+n]
	if err := l.check(); err != nil {
		return nil, err
	}
	for _, f := range fields[1+n:] {
		if err := l.word(f); err != nil {
			return nil, err
		}
	}
	// What is left out is said at once. A line that never strikes would make a test pass for nothing.
	if l.where == "account" && l.what == "quota" && (l.number("max") <= 0 || l.at["family"] == "") {
		return nil, errors.New("quota needs family= and max=")
	}
	if l.what == "taken" && l.at["silent"] == "" && l.at["in"] == "" {
		return nil, errors.New("taken needs in=, or silent")
	}
	if l.what == "partial" && l.number("max") <= 0 || l.what == "page" && l.number("max") <= 0 {
		return nil, fmt.Errorf("%s needs max=", l.what)
	}
	return l, nil
}

// check reads the words of the line's own.
func (l *line) check() error {
	if len(l.words) == 0 {
		return nil
	}
	var err error
	switch w := l.words[0]; l.what {
	case "slow", "late", "tagless", "expire", "boots", "turns", "clock":
		l.Low, l.High, err = script.Span(w)
	case "foreign", "free":
		_, err = strconv.Atoi(w)
	case "untagged":
		_, err = strconv.Atoi(w)
	case "rates":
		_, err = strconv.ParseFloat(w, 64)
	case "lost":
		if w != "before" && w != "middle" && w != "after" {
			err = errors.New("lost is before, middle or after")
		}
	}
	return err
}

// word reads one word of when or to which.
func (l *line) word(f string) error {
	if known, err := l.When.Word(f); known {
		return err
	}
	if known, err := l.Nth.Word(f); known {
		return err
	}
	if f == "made" || f == "silent" {
		l.at[f] = "yes"
		return nil
	}
	key, value, _ := strings.Cut(f, "=")
	var err error
	switch key {
	case "in":
		_, err = time.ParseDuration(value)
	case "max", "status":
		_, err = strconv.Atoi(value)
	case "type", "zone", "market", "family", "id", "action":
	default:
		return fmt.Errorf("%q is not understood", f)
	}
	l.at[key] = value
	return err
}

// number is a value that word has checked; 0 if the line does not have it.
func (l *line) number(key string) int {
	n, _ := strconv.Atoi(l.at[key])
	return n
}

// subject is what a line is asked about; an empty field is not known and fits no selection.
type subject struct {
	action, kind, zone, market, family, id string
	n                                      int
}

// strikes reports whether the line strikes now. Server.mu is held.
func (l *line) strikes(s subject, since time.Duration) bool {
	// A selection of a field that the call does not have does not fit: a line about a zone says nothing
	// about calls without one.
	for key, own := range map[string]string{"action": s.action, "type": s.kind, "zone": s.zone, "market": s.market, "family": s.family, "id": s.id} {
		if want, ok := l.at[key]; ok && want != own {
			return false
		}
	}
	return l.Nth.Has(s.n) && l.When.Strikes(since)
}

// striking is the first line of a kind that strikes now, or nil. Server.mu is held.
func (s *Server) striking(where, what string, about subject) *line {
	for _, l := range s.script {
		if l.where == where && (what == "" || l.what == what) && l.strikes(about, s.now().Sub(s.played)) {
			return l
		}
	}
	return nil
}

// Idle are the lines of the script that never struck, as where: what. A test whose faults did not
// happen has shown nothing.
func (s *Server) Idle() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return script.Idle(s.script, func(l *line) string { return l.where + ": " + l.what })
}
