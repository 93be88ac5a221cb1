package openstacktest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/musterhq/muster/internal/cloud/script"
	"github.com/musterhq/muster/internal/cloud/standin"
)

// line is a line of a script.
type line struct {
	script.When
	// what goes wrong; call, flavor and zone select where, empty: everywhere.
	what, call, flavor, zone string
}

// subject is what a line is asked about.
type subject struct{ call, flavor, zone string }

// calls are the words for calls in scripts.
var calls = map[string]string{
	"create": CreateServer, "list": "GET /servers/detail", "get": "GET /servers/{id}", "delete": "DELETE /servers/{id}",
	"tags": "POST /servers/{id}/metadata", "lock": "POST /os-keypairs",
}

// Play starts a script, in place of the one before. Each line is one fault, and when, in the words of package script:
//
//	novalidhost [flavor=F] [zone=Z]  an accepted server goes to ERROR
//	quota                            a create is refused for quota
//	limited [call=C]                 429, with Retry-After of 1 s
//	fault [call=C]                   500, and nothing has happened
//	lost [call=C]                    the connection ends after all was done
//	expire [call=C]                  the tokens have ended
//	down                             a cell is down: a list shows half of its servers as UNKNOWN
//
// C is create, list, get, delete, tags or lock.
func (p *Project) Play(text string) error {
	var lines []*line
	err := script.Lines(text, 1, func(_ int, text string, chance *rand.Rand) error {
		f := strings.Fields(text)
		l := &line{When: script.When{Chance: chance}, what: f[0]}
		switch l.what {
		case "novalidhost", "quota", "limited", "fault", "lost", "expire", "down":
		default:
			return fmt.Errorf("%q is not understood", l.what)
		}
		for _, word := range f[1:] {
			if known, err := l.When.Word(word); known {
				if err != nil {
					return err
				}
				continue
			}
			switch key, value, _ := strings.Cut(word, "="); key {
			case "call":
				if l.call = calls[value]; l.call == "" {
					return fmt.Errorf("%q is no call", value)
				}
			case "flavor":
				l.flavor = value
			case "zone":
				l.zone = value
			default:
				return fmt.Errorf("%q is not understood", word)
			}
		}
		lines = append(lines, l)
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script, p.started = lines, p.now()
	return err
}

// strikesLocked reports whether a line of this kind strikes now.
func (p *Project) strikesLocked(what string, s subject) bool {
	for _, l := range p.script {
		if l.what == what && (l.call == "" || l.call == s.call) && (l.flavor == "" || l.flavor == s.flavor) && (l.zone == "" || l.zone == s.zone) &&
			l.Strikes(p.now().Sub(p.started)) {
			return true
		}
	}
	return false
}

// scriptedLocked is what the script says of a call before it is looked at; nil: nothing.
func (p *Project) scriptedLocked(call string) func(do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	s := subject{call: call}
	switch {
	case p.strikesLocked("limited", s):
		return func(_ http.HandlerFunc, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			refused(w, http.StatusTooManyRequests, "overLimit", "This request was rate-limited.")
		}
	case p.strikesLocked("fault", s):
		return func(_ http.HandlerFunc, w http.ResponseWriter, _ *http.Request) {
			refused(w, http.StatusInternalServerError, "computeFault", "Unexpected API Error.")
		}
	case p.strikesLocked("lost", s):
		return func(do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
			do(httptest.NewRecorder(), r)
			standin.Lost(w, r)
		}
	}
	return nil
}

// Idle are the lines of the script that never struck. A test whose faults did not happen has shown
// nothing.
func (p *Project) Idle() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return script.Idle(p.script, func(l *line) string { return l.what })
}
