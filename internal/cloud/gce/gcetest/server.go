package gcetest

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Token is the access token that the stand-in takes, Project its one project. Images of ProjectImages
// are open to all.
const (
	Token         = "gce-test-token"
	Project       = "acme-nodes"
	ProjectImages = "ubuntu-os-cloud"
)

// Cloud is one project.
type Cloud struct {
	// URL is the endpoint, with its version.
	URL string

	t      testing.TB
	now    func() time.Time
	behind standin.Machines

	mu         sync.Mutex
	began      time.Time
	lines      []*line
	last       int
	instances  map[string]*machine // by zone/name
	operations map[string]*operation
	// requests are the operations of requests with an id.
	requests map[string]*operation
	disks    map[string]object // by zone/name
	ips      map[string]object // by region/name
	calls    map[string]int
	// ever are all instances that were made, in order.
	ever []Made
	// starts are the instances whose machines are yet to be started, stops those to be stopped.
	starts, stops []string
	// spent are the calls of the clock's minute.
	minute time.Time
	spent  int
}

// Made is an instance that was made once. ID is its zone and name.
type Made struct{ ID, Token string }

type object = map[string]any

// Options say how the stand-in differs from a cloud that does everything at once.
type Options struct {
	// Script says what goes wrong; see the lines of package gcetest.
	Script string
	// Seed is for the script's chance.
	Seed uint64
	// Machines is what stands behind instances; nil: nothing. What is suspended runs on there.
	Machines standin.Machines
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

// New starts a project, which ends with the test.
func New(t testing.TB, options Options) *Cloud {
	t.Helper()
	lines, err := parse(options.Script, options.Seed)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cloud{t: t, now: options.Now, lines: lines, behind: options.Machines, instances: map[string]*machine{}, operations: map[string]*operation{},
		requests: map[string]*operation{}, disks: map[string]object{}, ips: map[string]object{}, calls: map[string]int{}}
	if c.now == nil {
		c.now = time.Now
	}
	c.began = c.now()
	mux := http.NewServeMux()
	mux.Handle("/compute/v1/", http.StripPrefix("/compute/v1", http.HandlerFunc(c.serve)))
	mux.HandleFunc("POST "+tokenPath, c.signIn)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c.URL = s.URL + "/compute/v1"
	return c
}

// refusal is an error of the API.
type refusal struct {
	status          int
	reason, message string
}

func refuse(status int, reason, message string) *refusal { return &refusal{status, reason, message} }

// request is a call that the document knows.
type request struct {
	method string
	in     map[string]string
	query  map[string][]string
	body   object
}

func (q *request) get(key string) string {
	if v := q.query[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// serve takes a request apart by the document, plays the script, and answers.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		answer(w, http.StatusUnauthorized, body(refuse(http.StatusUnauthorized, "required", "Login Required.")))
		return
	}
	d := read()
	name, in := d.find(r.Method, r.URL.Path)
	if name == "" {
		http.Error(w, "<html>The requested URL was not found on this server.", http.StatusNotFound)
		return
	}
	q := &request{method: name, in: in, query: r.URL.Query()}
	if err := d.checkQuery(d.Methods[name], r.URL.Query()); err != nil {
		answer(w, http.StatusBadRequest, body(refuse(http.StatusBadRequest, "badRequest", err.Error())))
		return
	}
	if request := d.Methods[name].Request; request != "" {
		err := json.NewDecoder(r.Body).Decode(&q.body)
		if err == nil {
			err = d.check("resource", &schema{Ref: request}, q.body)
		}
		if err != nil {
			answer(w, http.StatusBadRequest, body(refuse(http.StatusBadRequest, "invalid", err.Error())))
			return
		}
	}
	status, v, fault := c.play(q)
	buf := bytes.NewBuffer(v)
	switch {
	case fault == nil:
	case fault.what == "lost":
		panic(http.ErrAbortHandler)
	case fault.what == "proxy":
		http.Error(w, "<html>Service Unavailable", http.StatusServiceUnavailable)
		return
	case fault.what == "truncated":
		buf.Truncate(buf.Len() / 2)
	}
	if status == http.StatusOK && fault == nil {
		var back any
		if err := json.Unmarshal(buf.Bytes(), &back); err != nil {
			c.t.Errorf("%s: %v", name, err)
		} else if err := d.check("answer", &schema{Ref: d.Methods[name].Response}, back); err != nil {
			c.t.Errorf("the stand-in's answer to %s is not Google's: %v", name, err)
		}
	}
	answer(w, status, json.RawMessage(buf.Bytes()))
}

// play does what a request asks for, and encodes the answer while nothing changes it.
func (c *Cloud) play(q *request) (int, []byte, *line) {
	defer c.attend()
	c.mu.Lock()
	defer c.mu.Unlock()
	status, v, fault := c.playLocked(q)
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Error(err)
	}
	return status, b, fault
}

// playLocked does what a request asks for, unless the script says otherwise.
func (c *Cloud) playLocked(q *request) (int, any, *line) {
	c.calls[q.method]++
	c.settleLocked()
	fault := c.strikingLocked("call", "", about{method: q.method, zone: q.in["zone"]})
	switch {
	case c.slowedLocked():
		return http.StatusForbidden, body(refuse(http.StatusForbidden, "rateLimitExceeded", "Quota exceeded for quota group 'default' and limit 'Queries per minute'.")), nil
	case fault == nil:
	case fault.what == "refuse":
		return fault.number(), body(refuse(fault.number(), fault.words[1], "said so")), nil
	case fault.what == "proxy", fault.what == "lost" && fault.words[0] == "before":
		return 0, nil, fault
	}
	v, refused := c.doLocked(q)
	if refused != nil {
		return refused.status, body(refused), fault
	}
	return http.StatusOK, v, fault
}

// slowedLocked counts a call, and reports whether the project has none left in this minute.
func (c *Cloud) slowedLocked() bool {
	for _, l := range c.lines {
		if l.what == "rates" {
			if m := c.now().Truncate(time.Minute); !m.Equal(c.minute) {
				c.minute, c.spent = m, 0
			}
			c.spent++
			if c.spent > l.number() {
				l.Hits++
				return true
			}
		}
	}
	return false
}

func body(r *refusal) object {
	return object{"error": object{"code": r.status, "message": r.message,
		"errors": []any{object{"domain": "global", "reason": r.reason, "message": r.message}}}}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Calls is how many calls of a method there were, as instances.insert.
func (c *Cloud) Calls(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[method]
}

// Books are the ids of all instances, disks and addresses, and how many instances were ever made.
func (c *Cloud) Books() (instances, disks, addresses []string, made int) {
	defer c.attend()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	return sorted(c.instances), sorted(c.disks), sorted(c.ips), len(c.ever)
}

// Ever are all instances that were ever made, in order: two of one token are a fault that Books do not
// show once one of them is gone.
func (c *Cloud) Ever() []Made {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ever)
}

// Instance is what the cloud has of an instance, by zone/name; nil: there is none.
func (c *Cloud) Instance(id string) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.instances[id]; m != nil {
		return maps.Clone(m.v)
	}
	return nil
}

// Relabel gives an instance other labels, as somebody with the console would.
func (c *Cloud) Relabel(id string, labels map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[id].relabel(labels)
}

// AddAddress makes an address of a region that nothing uses, AddDisk a disk of a zone.
func (c *Cloud) AddAddress(region, name string, labels map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ips[region+"/"+name] = object{"name": name, "labels": labels, "status": "RESERVED", "creationTimestamp": stamp(c.now())}
}

// AddDisk is described at AddAddress.
func (c *Cloud) AddDisk(zone, name string, labels map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disks[zone+"/"+name] = object{"name": name, "labels": labels, "status": "READY", "creationTimestamp": stamp(c.now())}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000-07:00") }

func lastOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
