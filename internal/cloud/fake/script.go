package fake

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// rule is one line of a script.
type rule struct {
	line        int
	where, what string
	kind        muster.FaultKind
	slow        time.Duration // of slow and stale
	max         int
	gap         time.Duration
	tell        bool
	low, high   time.Duration // after=
	in          time.Duration

	percent  int // 0: always
	times    int // 0: without end
	from, to time.Duration
	which    selection

	// Guarded by Cloud.mu.
	rand *rand.Rand
	hits int
	last time.Time // of rate: the create before
}

// selection is which offerings or instances a rule is for.
type selection struct {
	offering   muster.OfferingName
	zone       string
	market     muster.Market
	family     string
	pool       muster.PoolName
	owner      string
	every, rem int // n%every=rem
}

// subject is what a selection is asked about.
type subject struct {
	offering muster.OfferingName
	zone     string
	market   muster.Market
	family   string
	pool     muster.PoolName
	owner    string
	n        int
}

func (w *selection) has(s *subject) bool {
	return (w.offering == "" || w.offering == s.offering) && (w.zone == "" || w.zone == s.zone) &&
		(w.market == "" || w.market == s.market) && (w.family == "" || w.family == s.family) &&
		(w.pool == "" || w.pool == s.pool) && (w.owner == "" || w.owner == s.owner) &&
		(w.every == 0 || s.n%w.every == w.rem)
}

func (w *selection) scope() muster.Scope {
	return muster.Scope{Zone: w.zone, Offering: w.offering, Market: w.market, Family: w.family}
}

// words are what may be done where, and whether it needs a duration or may have a kind.
func words(where string) map[string]string {
	const kind, length = "kind", "duration"
	return map[string]map[string]string{
		"create":   {"fail": kind, "capacity": "", "quota": "", "rate": "", "lost": "", "double": "", "late": "", "early": length, "slow": length},
		"destroy":  {"fail": kind, "lost": "", "late": "", "slow": length},
		"list":     {"fail": kind, "cut": "", "short": "", "empty": "", "twice": "", "stale": length, "slow": length},
		"offers":   {"fail": kind, "empty": "", "lack": "", "slow": length},
		"tags":     {"fail": kind, "slow": length},
		"instance": {"boots": "", "noboot": "", "wrong-key": "", "stuck": "", "broken": "", "agent-dies": "", "dies": "", "notice": "", "refused": kind, "leaves": ""},
	}[where]
}

func kindNamed(s string) (muster.FaultKind, bool) {
	switch k := muster.FaultKind(s); k {
	case muster.FaultCapacity, muster.FaultQuota, muster.FaultRateLimited, muster.FaultAuth, muster.FaultInvalid, muster.FaultNotFound,
		muster.FaultTransient, muster.FaultAmbiguous, muster.FaultUnavailable, muster.FaultInternal:
		return k, true
	}
	return "", false
}

// parse reads a script. Every rule gets its own stream of chance, so that a
// line that is added changes nothing for the others.
func parse(text string, seed uint64) ([]*rule, error) {
	var out []*rule
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		r, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
		r.line = i + 1
		h := fnv.New64a()
		_, _ = h.Write([]byte(line))
		r.rand = rand.New(rand.NewPCG(seed, h.Sum64()))
		out = append(out, r)
	}
	return out, nil
}

func parseRule(line string) (*rule, error) {
	where, rest, ok := strings.Cut(line, ":")
	known := words(where)
	if !ok || known == nil {
		return nil, errors.New("it begins with none of create, destroy, list, offers, tags and instance, and a colon")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return nil, errors.New("it does not say what")
	}
	r := &rule{where: where, what: fields[0]}
	takes, ok := known[r.what]
	if !ok {
		return nil, fmt.Errorf("%s knows no %q", where, r.what)
	}
	fields = fields[1:]
	switch {
	case takes == "duration":
		if len(fields) == 0 {
			return nil, fmt.Errorf("%s needs a duration", r.what)
		}
		var err error
		if r.slow, err = time.ParseDuration(fields[0]); err != nil {
			return nil, err
		}
		fields = fields[1:]
	case takes == "kind" && len(fields) > 0:
		if k, ok := kindNamed(fields[0]); ok {
			r.kind, fields = k, fields[1:]
		}
	}
	for _, f := range fields {
		if err := r.word(f); err != nil {
			return nil, err
		}
	}
	switch {
	case r.what == "quota" && r.max <= 0:
		return nil, errors.New("quota needs max=")
	case r.what == "rate" && r.gap <= 0:
		return nil, errors.New("rate needs gap=")
	case r.what == "notice" && r.in <= 0:
		return nil, errors.New("notice needs in=")
	}
	return r, nil
}

// word reads one word of when or which.
func (r *rule) word(f string) error {
	if p, ok := strings.CutSuffix(f, "%"); ok {
		return number(p, 1, 100, &r.percent)
	}
	if f == "once" {
		r.times = 1
		return nil
	}
	if f == "tell" {
		r.tell = true
		return nil
	}
	key, value, ok := strings.Cut(f, "=")
	if !ok {
		if k, ok := strings.CutSuffix(f, "x"); ok {
			return number(k, 1, 1e9, &r.times)
		}
		return fmt.Errorf("%q is not understood", f)
	}
	var err error
	switch key {
	case "type":
		r.which.offering = muster.OfferingName(value)
	case "zone":
		r.which.zone = value
	case "market":
		r.which.market = muster.Market(value)
	case "family":
		r.which.family = value
	case "pool":
		r.which.pool = muster.PoolName(value)
	case "owner":
		r.which.owner = value
	case "max":
		err = number(value, 1, 1e9, &r.max)
	case "gap":
		r.gap, err = time.ParseDuration(value)
	case "in":
		r.in, err = time.ParseDuration(value)
	case "from":
		r.from, err = time.ParseDuration(value)
	case "for":
		r.to, err = time.ParseDuration(value)
	case "after":
		low, high, span := strings.Cut(value, "..")
		if r.low, err = time.ParseDuration(low); err == nil && span {
			r.high, err = time.ParseDuration(high)
		}
	default:
		m, ok := strings.CutPrefix(key, "n%")
		if !ok {
			return fmt.Errorf("%q is not understood", f)
		}
		if err = number(m, 1, 1e9, &r.which.every); err == nil {
			err = number(value, 0, r.which.every-1, &r.which.rem)
		}
	}
	return err
}

func number(s string, least, most int, into *int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a number from %d to %d", s, least, most)
	}
	*into = n
	return nil
}

// about is the rule with its chance drawn by what a call is about: callers that leave at one moment come in any order.
func (r *rule) about(about string, seed uint64) *rule {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, r.line, about)
	own := *r
	own.rand = rand.New(rand.NewPCG(seed, h.Sum64()))
	return &own
}

// strikes reports whether the rule strikes now. Cloud.mu is held.
func (r *rule) strikes(s *subject, since time.Duration) bool {
	switch {
	case since < r.from, r.to > 0 && since >= r.from+r.to, r.times > 0 && r.hits >= r.times, s != nil && !r.which.has(s):
		return false
	case r.percent > 0 && r.rand.IntN(100) >= r.percent:
		return false
	}
	r.hits++
	return true
}

// moment is when in the life of an instance it happens.
func (r *rule) moment() time.Duration {
	if r.high <= r.low {
		return r.low
	}
	return r.low + time.Duration(r.rand.Int64N(int64(r.high-r.low)))
}

// fault is what a refusal says.
func (r *rule) fault(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if r.what == "fail" && r.kind == "" {
		return errors.New(text)
	}
	f := &muster.Fault{Kind: r.kind, Message: text}
	switch r.what {
	case "capacity":
		f.Kind, f.Scope = muster.FaultCapacity, r.which.scope()
	case "refused":
		f.Kind, f.Scope = cmp.Or(r.kind, muster.FaultCapacity), r.which.scope()
	case "quota":
		f.Kind, f.Scope = muster.FaultQuota, r.which.scope()
	case "rate":
		f.Kind = muster.FaultRateLimited
	case "lost":
		f.Kind = muster.FaultAmbiguous
	}
	return f
}
