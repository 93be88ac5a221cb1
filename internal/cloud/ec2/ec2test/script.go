package ec2test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// line is one line of a script.
type line struct {
	where, what string
	// words are what the line says after what, before when and to which.
	words []string
	at    map[string]string // key=value

	percent, times int // 0: always, without end
	from, span     time.Duration
	low, high      time.Duration // after=, or the line's first word where that is a time
	every, rem     int

	// Guarded by Server.mu.
	rand *rand.Rand
	hits int
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

// parseScript reads a script. Each line gets its own stream of chance, so that a line that is added
// changes nothing for the others.
func parseScript(text string, seed uint64) ([]*line, error) {
	var out []*line
	for i, raw := range strings.Split(text, "\n") {
		raw, _, _ = strings.Cut(raw, "#")
		if raw = strings.TrimSpace(raw); raw == "" {
			continue
		}
		l, err := parseLine(raw)
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, raw, err)
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(raw))
		l.rand = rand.New(rand.NewPCG(seed, h.Sum64()))
		out = append(out, l)
	}
	return out, nil
}

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
		l.low, l.high, err = spanOf(w)
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

// spanOf reads D or D..D.
func spanOf(s string) (low, high time.Duration, err error) {
	from, to, ranged := strings.Cut(s, "..")
	if low, err = time.ParseDuration(from); err == nil && ranged {
		high, err = time.ParseDuration(to)
	}
	return low, max(low, high), err
}

// word reads one word of when or to which.
func (l *line) word(f string) (err error) {
	if p, ok := strings.CutSuffix(f, "%"); ok {
		l.percent, err = strconv.Atoi(p)
		return err
	}
	if f == "once" {
		l.times = 1
		return nil
	}
	key, value, ok := strings.Cut(f, "=")
	if !ok {
		if n, ok := strings.CutSuffix(f, "x"); ok {
			l.times, err = strconv.Atoi(n)
			return err
		}
		if f == "made" || f == "silent" {
			l.at[f] = "yes"
			return nil
		}
		return fmt.Errorf("%q is not understood", f)
	}
	switch key {
	case "from":
		l.from, err = time.ParseDuration(value)
	case "for":
		l.span, err = time.ParseDuration(value)
	case "after":
		l.low, l.high, err = spanOf(value)
	case "in":
		_, err = time.ParseDuration(value)
		l.at[key] = value
	case "max", "status":
		_, err = strconv.Atoi(value)
		l.at[key] = value
	case "type", "zone", "market", "family", "id", "action":
		l.at[key] = value
	default:
		m, ok := strings.CutPrefix(key, "n%")
		if !ok {
			return fmt.Errorf("%q is not understood", f)
		}
		if l.every, err = strconv.Atoi(m); err == nil && l.every > 0 {
			l.rem, err = strconv.Atoi(value)
		} else if err == nil {
			err = errors.New("n%0 is no remainder")
		}
	}
	return err
}

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
	for key, own := range map[string]string{"action": s.action, "type": s.kind, "zone": s.zone, "market": s.market, "family": s.family, "id": s.id} {
		if want, ok := l.at[key]; ok && want != own {
			return false
		}
	}
	switch {
	case since < l.from, l.span > 0 && since >= l.from+l.span, l.times > 0 && l.hits >= l.times, l.every > 0 && s.n%l.every != l.rem:
		return false
	case l.percent > 0 && l.rand.IntN(100) >= l.percent:
		return false
	}
	l.hits++
	return true
}

// drawn is a time between the two that the line names.
func (l *line) drawn() time.Duration {
	if l.high <= l.low {
		return l.low
	}
	return l.low + time.Duration(l.rand.Int64N(int64(l.high-l.low)))
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
	var out []string
	for _, l := range s.script {
		if l.hits == 0 {
			out = append(out, l.where+": "+l.what)
		}
	}
	return out
}
