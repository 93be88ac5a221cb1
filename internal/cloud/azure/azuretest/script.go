package azuretest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/script"
	"github.com/musterhq/muster/internal/cloud/standin"
)

// line is one line of a script.
type line struct {
	call, what, code string
	when             script.When
	nth              script.Nth
	seen             int
}

// What a line does. The first word of a line is a call, the second one of these.
const (
	// refuse CODE: the call is refused with this code.
	doRefuse = "refuse"
	// lose: the call is done, and its answer does not come. cut: neither.
	doLose = "lose"
	doCut  = "cut"
	// throttle: 429. html: 503 of a proxy.
	doThrottle = "throttle"
	doHTML     = "html"
	// fail CODE, of create and start: the call is accepted, and its operation fails.
	doFail = "fail"
	// orphan CODE, of create: refused, and the network interface stays.
	doOrphan = "orphan"
	// leave, of delete: the machine goes and its parts stay.
	doLeave = "leave"
	// hide after=D..D, of list: new machines are missing for that long.
	doHide = "hide"
)

// Play begins a script, in the language of package script. A line is a call, what happens to it, and
// when:
//
//	create refuse ZonalAllocationFailed 20%
//	create fail AllocationFailed n%5=0
//	create orphan QuotaExceeded once
//	create lose once
//	list hide after=1s..4s
//	delete leave 2x
//	get throttle 10% for=1m
func (c *Cloud) Play(text string) error {
	var lines []*line
	err := script.Lines(text, c.options.Seed, func(_ int, text string, chance *rand.Rand) error {
		l := &line{when: script.When{Chance: chance}}
		words := strings.Fields(text)
		if len(words) < 2 {
			return errors.New("a line is a call and what happens to it")
		}
		l.call, l.what = words[0], words[1]
		words = words[2:]
		switch l.what {
		case doRefuse, doFail, doOrphan:
			if len(words) == 0 {
				return errors.New("a code is missing")
			}
			l.code, words = words[0], words[1:]
		case doLose, doCut, doThrottle, doHTML, doLeave, doHide:
		default:
			return fmt.Errorf("%q is not known", l.what)
		}
		for _, f := range words {
			known, err := l.when.Word(f)
			if !known && err == nil {
				known, err = l.nth.Word(f)
			}
			if err != nil {
				return err
			}
			if !known {
				return fmt.Errorf("%q is not known", f)
			}
		}
		if err := l.place(); err != nil {
			return err
		}
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines, c.began = lines, c.now()
	return nil
}

// place sees that what happens can happen to the call. What is not about the call itself has a name
// of its own for strikesLocked.
func (l *line) place() error {
	calls := []string{Create, Get, List, Delete, Tags, Start, Stop, Poll, NICs, Disks, IPs, SKUs, Usages, Images, Prices, Net}
	wrong := fmt.Errorf("%s does not %s", l.call, l.what)
	switch l.what {
	case doFail:
		switch l.call {
		case Create:
			l.call = "operation"
		case Start, Stop:
			l.call += "-operation"
		default:
			return wrong
		}
	case doOrphan:
		if l.call != Create {
			return wrong
		}
	case doLeave:
		if l.call != Delete {
			return wrong
		}
		l.call = "leave"
	case doHide:
		if l.call != List {
			return wrong
		}
		l.call = "hide"
	default:
		if !slices.Contains(calls, l.call) {
			return fmt.Errorf("%q is no call", l.call)
		}
	}
	return nil
}

// strikesLocked is the first line that strikes this call.
func (c *Cloud) strikesLocked(call string) *line {
	for _, l := range c.lines {
		if l.call != call {
			continue
		}
		l.seen++
		if l.nth.Has(l.seen) && l.when.Strikes(c.now().Sub(c.began)) {
			return l
		}
	}
	return nil
}

// hiddenLocked is until when lists lack a machine that is made now.
func (c *Cloud) hiddenLocked() time.Time {
	if l := c.strikesLocked("hide"); l != nil {
		return c.now().Add(l.when.Moment())
	}
	return time.Time{}
}

// play does what a line says instead of the call, or around it.
func (l *line) play(c *Cloud, do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	switch l.what {
	case doLose:
		do(httptest.NewRecorder(), r)
		standin.Lost(w, r)
	case doCut:
		standin.Lost(w, r)
	case doThrottle:
		w.Header().Set("Retry-After", "7")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests", "The request is being throttled.")
	case doHTML:
		standin.Proxy(w, r)
	case doOrphan:
		do(httptest.NewRecorder(), r)
		c.orphan(r.PathValue("name"))
		refuse(w, statusOf(l.code), l.code, "played by the script")
	default:
		refuse(w, statusOf(l.code), l.code, "played by the script")
	}
}

// orphan undoes a create but for its network interface.
func (c *Cloud) orphan(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.vms[name]
	if m == nil {
		return
	}
	delete(c.vms, name)
	c.stopLocked(name)
	c.ever = slices.DeleteFunc(c.ever, func(m Made) bool { return m.ID == name })
	for kind, all := range c.parts {
		for part, p := range all {
			if p.vm == name {
				if p.vm = ""; kind != kindNIC {
					delete(all, part)
				}
			}
		}
	}
}

// statusOf is the HTTP status that Azure sends with a code.
func statusOf(code string) int {
	switch code {
	case "AllocationFailed", "ZonalAllocationFailed", "SkuNotAvailable", "OperationNotAllowed", "QuotaExceeded", "Conflict", "PropertyChangeNotAllowed",
		"AnotherOperationInProgress", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest":
		return http.StatusConflict
	case "TooManyRequests":
		return http.StatusTooManyRequests
	case "AuthorizationFailed", "LinkedAuthorizationFailed", "RequestDisallowedByPolicy":
		return http.StatusForbidden
	case "AuthenticationFailed":
		return http.StatusUnauthorized
	case "ResourceNotFound", "NotFound":
		return http.StatusNotFound
	case "InternalServerError", "InternalExecutionError":
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}
