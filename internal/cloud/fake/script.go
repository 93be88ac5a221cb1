package fake

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/script"
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
	in          time.Duration
	which       selection

	// Guarded by Cloud.mu.
	script.When
	last time.Time // of rate: the create before
}

// selection is which offerings or instances a rule is for.
type selection struct {
	offering muster.OfferingName
	zone     string
	market   muster.Market
	family   string
	pool     muster.PoolName
	owner    string
	script.Nth
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
		w.Nth.Has(s.n)
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

// parse reads a script.
func parse(text string, seed uint64) ([]*rule, error) {
	var out []*rule
	err := script.Lines(text, seed, func(number int, line string, chance *rand.Rand) error {
		r, err := parseRule(line)
		if err != nil {
			return err
		}
		r.line, r.Chance = number, chance
		out = append(out, r)
		return nil
	})
	return out, err
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
	if known, err := r.When.Word(f); known {
		return err
	}
	if known, err := r.which.Nth.Word(f); known {
		return err
	}
	if f == "tell" {
		r.tell = true
		return nil
	}
	key, value, _ := strings.Cut(f, "=")
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
		err = script.Number(value, 1, 1e9, &r.max)
	case "gap":
		r.gap, err = time.ParseDuration(value)
	case "in":
		r.in, err = time.ParseDuration(value)
	default:
		return fmt.Errorf("%q is not understood", f)
	}
	return err
}

// about is the rule with its chance drawn by what a call is about: callers that leave at one moment come in any order.
func (r *rule) about(about string, seed uint64) *rule {
	own := *r
	own.Chance = script.Chance(seed, r.line, about)
	return &own
}

// strikes reports whether the rule strikes now. Cloud.mu is held.
func (r *rule) strikes(s *subject, since time.Duration) bool {
	return (s == nil || r.which.has(s)) && r.When.Strikes(since)
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
