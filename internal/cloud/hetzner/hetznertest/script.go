package hetznertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/cloud/script"
	"github.com/musterhq/muster/internal/cloud/standin"
)

// line is one line of a script.
type line struct {
	where, what string
	words       []string
	// call, kind and location select where; empty: everywhere.
	call, kind, location string
	script.Nth
	// When is guarded by Cloud.mu. Its times are those of the line's first word where that is a time.
	script.When
}

// subject is what a line is asked about. An empty field is not known and fits no selection.
type subject struct {
	call, kind, location string
	// n is the number of the server, from 1.
	n int
}

// takes says how many words of its own each kind of line has.
var takes = map[string]int{"call: refuse": 2, "call: proxy": 0, "call: lost": 1, "call: truncated": 0, "create: capacity": 0,
	"list: late": 1, "action: takes": 1, "server: fails": 1, "server: leaves": 0}

// calls are the words for calls in scripts.
var calls = map[string]string{"create": CreateServer, "list": "GET /v1/servers", "get": "GET /v1/servers/{id}", "delete": "DELETE /v1/servers/{id}",
	"labels": "PUT /v1/servers/{id}", "actions": "GET /v1/actions", "ips": "GET /v1/primary_ips"}

// Play starts a script, in place of the one before. The language is that of EC2's stand-in, with what
// goes wrong at Hetzner:
//
//	call: refuse STATUS CODE [call=C]    the call is refused and does nothing
//	call: proxy [call=C]                 something before the API answers 503 in HTML
//	call: lost before|after [call=C]     the connection ends before or after the call is done
//	call: truncated [call=C]             the call is done, and half of its answer comes
//	create: capacity [type=] [location=] there is no host for it
//	list: late D..D                      lists lack a new server for so long
//	action: takes D..D                   an action takes so long
//	server: fails CODE [type=] [location=] it is accepted, and its start fails
//	server: leaves                       its addresses stay when it goes, with its labels
//
// C is create, list, get, delete, labels, actions or ips. When is as in package script, and n%7=1
// selects servers by their number.
func (c *Cloud) Play(text string) error {
	var lines []*line
	err := script.Lines(text, c.options.Seed, func(_ int, raw string, chance *rand.Rand) error {
		l, err := parseLine(raw)
		if err != nil {
			return err
		}
		l.Chance = chance
		lines = append(lines, l)
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script, c.played = lines, c.now()
	return err
}

// parseLine refuses what it does not understand whole: a fault that was misspelt would never happen.
func parseLine(raw string) (*line, error) {
	f := strings.Fields(raw)
	if len(f) < 2 {
		return nil, errors.New("a line is where, a colon, and what")
	}
	n, ok := takes[f[0]+" "+f[1]]
	if !ok || len(f) < 2+n {
		return nil, fmt.Errorf("%s %s is not known, or lacks a word", f[0], f[1])
	}
	l := &line{where: strings.TrimSuffix(f[0], ":"), what: f[1], words: f[2 : 2+n]}
	if err := l.check(); err != nil {
		return nil, err
	}
	for _, word := range f[2+n:] {
		known, err := l.When.Word(word)
		if !known {
			known, err = l.Nth.Word(word)
		}
		if !known {
			err = l.which(word)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// check reads the words of the line's own.
func (l *line) check() error {
	var err error
	switch l.what {
	case "refuse":
		_, err = strconv.Atoi(l.words[0])
	case "late", "takes":
		l.Low, l.High, err = script.Span(l.words[0])
	case "lost":
		if l.words[0] != "before" && l.words[0] != "after" {
			err = errors.New("lost is before or after")
		}
	}
	return err
}

// which reads a word that says to which.
func (l *line) which(word string) error {
	switch key, value, _ := strings.Cut(word, "="); key {
	case "call":
		if l.call = calls[value]; l.call == "" || l.where != "call" {
			return fmt.Errorf("%s: %q is no call", l.where, value)
		}
	case "type":
		l.kind = value
	case "location":
		l.location = value
	default:
		return fmt.Errorf("%q is not understood", word)
	}
	return nil
}

// strikingLocked is the first line of a kind that strikes now, or nil.
func (c *Cloud) strikingLocked(where, what string, s subject) *line {
	for _, l := range c.script {
		if l.where != where || what != "" && l.what != what || l.call != "" && l.call != s.call || l.kind != "" && l.kind != s.kind ||
			l.location != "" && l.location != s.location || !l.Nth.Has(s.n) {
			continue
		}
		if l.Strikes(c.now().Sub(c.played)) {
			return l
		}
	}
	return nil
}

// play does what a line says instead of a call, or around it.
func (l *line) play(do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	switch l.what {
	case "refuse":
		status, _ := strconv.Atoi(l.words[0])
		refused(w, status, l.words[1], "played by the script")
	case "proxy":
		standin.Proxy(w, r)
	case "truncated":
		standin.Truncated(do, w, r)
	case "lost":
		if l.words[0] == "after" {
			do(httptest.NewRecorder(), r)
		}
		standin.Lost(w, r)
	}
}

// Idle are the lines of the script that never struck. A test whose faults did not happen has shown
// nothing.
func (c *Cloud) Idle() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return script.Idle(c.script, func(l *line) string { return l.where + ": " + l.what })
}
