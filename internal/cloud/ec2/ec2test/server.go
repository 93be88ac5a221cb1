package ec2test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// PowerOffer are Machines whose machines can be switched off and keep their disk. Others lose it when their
// instance is stopped.
type PowerOffer interface {
	// PowerOff ends the machine of an instance; StartInLaunch begins it again with what is on its disk.
	PowerOff(id string)
}

// Machines are what stands behind instances. The zero choice, nil, is state only.
type Machines interface {
	// StartInLaunch makes the machine of an instance and returns its address. Index is the instance's
	// place in its launch, from 0: all of a launch have the same user data.
	StartInLaunch(id string, index int, userData []byte) (address string, err error)
	// Stop ends it for good. Safe to repeat.
	Stop(id string)
	// State reports whether it runs; one that does not has shut itself down.
	State(id string) (running bool)
}

// Type is an instance type.
type Type struct {
	// Name is as m7i.large.
	Name string
	// Family is what the quota counts by, as "standard".
	Family    string
	CPUs, MiB int
	// Arch is x86_64 or arm64.
	Arch string
	// OnDemand and Spot are dollars an hour; 0: not sold so.
	OnDemand, Spot float64
	// Zones are those that have the type; nil: all.
	Zones []string
	// GPUs are those of one instance, all alike; the zero value is none.
	GPUs GPUs
}

// GPUs are the equal GPUs of an instance type. MiB is the memory of one.
type GPUs struct {
	Name, Maker string
	Count, MiB  int
}

// Subnet is a subnet and how many addresses it has.
type Subnet struct {
	ID, Zone string
	Free     int
}

// Image is an AMI.
type Image struct{ ID, Name, Arch, Root string }

// Config is what a Server has. Every field has a default, which Default gives.
type Config struct {
	// Region is part of each signature's scope; VPC is that of all subnets.
	Region string
	VPC    string
	Keys   []Key
	// Types are in the order in which lists have them.
	Types   []Type
	Subnets []Subnet
	// Groups are the security groups that exist. What they allow is not played.
	Groups []string
	// Images are those that a launch may name; each has the architecture of the types that boot it.
	Images []Image
	// Parameters are those of the parameter store, by name.
	Parameters map[string]string
	// Machines nil: instances are rows in the books, and run as long as they say so.
	Machines Machines
	Script   string
	// Seed is where chance begins: one seed and one order of calls, one outcome.
	Seed uint64
}

// Default is a region with two zones, three subnets, a few types, and Debian.
func Default() Config {
	return Config{
		Region: "eu-central-1", VPC: "vpc-0a", Keys: []Key{{ID: "AKIDTEST", Secret: "secret"}, {ID: "AKIDNEXT", Secret: "next"}},
		Types: []Type{
			{Name: "m7i.large", Family: "standard", CPUs: 2, MiB: 8192, Arch: "x86_64", OnDemand: 0.1, Spot: 0.04},
			{Name: "m7i.xlarge", Family: "standard", CPUs: 4, MiB: 16384, Arch: "x86_64", OnDemand: 0.2, Spot: 0.08},
			{Name: "c7i.large", Family: "standard", CPUs: 2, MiB: 4096, Arch: "x86_64", OnDemand: 0.09, Spot: 0.03},
			{Name: "m7g.large", Family: "standard", CPUs: 2, MiB: 8192, Arch: "arm64", OnDemand: 0.08, Spot: 0.03},
			{Name: "g6.xlarge", Family: "g", CPUs: 4, MiB: 16384, Arch: "x86_64", OnDemand: 0.8, Spot: 0.3, Zones: []string{"eu-central-1a"},
				GPUs: GPUs{"L4", "NVIDIA", 1, 22888}},
		},
		Subnets: []Subnet{{"subnet-0a", "eu-central-1a", 4000}, {"subnet-0a2", "eu-central-1a", 4000}, {"subnet-0b", "eu-central-1b", 4000}},
		Groups:  []string{"sg-0c"},
		Images: []Image{{"ami-0123456789abcdef0", "debian-12-amd64", "x86_64", "/dev/xvda"},
			{"ami-0123456789abcdef1", "debian-12-arm64", "arm64", "/dev/xvda"}},
		Parameters: map[string]string{"/aws/service/debian/release/12/latest/amd64": "ami-0123456789abcdef0",
			"/aws/service/debian/release/12/latest/arm64": "ami-0123456789abcdef1"},
	}
}

// Server is one account in one region.
type Server struct {
	cfg Config

	// mu guards all that follows. It is never held while a machine is started or stopped, nor while an
	// answer is sent.
	mu     sync.Mutex
	script []*line
	played time.Time
	rand   *rand.Rand
	requests
	books
	buckets map[string]*bucket
}

// requests number the answers and note the calls.
type requests struct {
	served int
	calls  map[string]int
}

// New makes a server. Fields of the configuration that are zero get their default.
func New(cfg Config) (*Server, error) {
	d := Default()
	// A configuration of one field is a whole one, so that tests say only what they are about.
	cfg.Region, cfg.VPC = cmp.Or(cfg.Region, d.Region), cmp.Or(cfg.VPC, d.VPC)
	fillIn(&cfg.Keys, d.Keys)
	fillIn(&cfg.Types, d.Types)
	fillIn(&cfg.Subnets, d.Subnets)
	fillIn(&cfg.Groups, d.Groups)
	fillIn(&cfg.Images, d.Images)
	if cfg.Parameters == nil {
		cfg.Parameters = d.Parameters
	}
	s := &Server{cfg: cfg, rand: rand.New(rand.NewPCG(cfg.Seed, 2)), buckets: map[string]*bucket{}}
	s.calls = map[string]int{}
	s.books = newBooks()
	return s, s.Play(cfg.Script)
}

// fillIn gives a list its default. An empty list cannot be wanted: an account without keys or types
// answers nothing.
func fillIn[T any](field *[]T, with []T) {
	if len(*field) == 0 {
		*field = with
	}
}

// Play replaces the script. What has happened stays.
func (s *Server) Play(script string) error {
	lines, err := parseScript(script, s.cfg.Seed)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.played = lines, time.Now()
	s.strangers()
	return nil
}

// Calls is how many calls there were of an action, refused ones included.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

// now is the server's own time, without the error of its clock.
func (s *Server) now() time.Time { return time.Now() }

// keyOf finds a valid key.
func (s *Server) keyOf(id string) (Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.cfg.Keys
	// The first key until the script rotates, and then the second: never both, as after a rotation that
	// deletes the old one.
	if len(keys) > 1 {
		if s.striking("account", "rotate", subject{}) != nil {
			keys = keys[1:]
		} else {
			keys = keys[:1]
		}
	}
	i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
	if i < 0 {
		return Key{}, false
	}
	return keys[i], true
}

// skew is the error of the clock.
func (s *Server) skew() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.striking("account", "clock", subject{}); l != nil {
		return l.Low
	}
	return 0
}

// maxRequest bounds a request, which has 16 KB of user data at most.
const maxRequest = 1 << 20

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		return
	}
	// The parameter store and the price list speak JSON and name what they do in a header; EC2 has a form.
	c := &call{s: s, ctx: r.Context(), target: r.Header.Get("X-Amz-Target")}
	if c.target == "" {
		form, err := url.ParseQuery(string(body))
		// EC2 would take GET as well. The driver posts, since a URL with user data ends up in logs.
		if err != nil || r.Method != http.MethodPost {
			form = url.Values{}
		}
		c.form, c.action = form, form.Get("Action")
	} else {
		c.action = c.target[1+bytes.LastIndexByte([]byte(c.target), '.'):]
		c.body = body
	}
	c.request = s.number(c.action)
	// The order is EC2's: who calls, then whether the form is one, then limits, and then what it asks.
	// A driver that sends a wrong form learns of a wrong key first.
	refused := s.authorize(r, body, s.now().Add(s.skew()))
	if refused == nil && c.target == "" {
		refused = c.checkForm()
	}
	s.answer(w, c, refused)
}

// call is one call that is being answered.
type call struct {
	s              *Server
	ctx            context.Context
	target, action string
	form           url.Values
	body           []byte
	request        string
	// finished is called once the answer was given, whole or not.
	finished func()
}

// number counts a call, refused or not, and gives it the id by which AWS's support would find it.
func (s *Server) number(action string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served++
	s.calls[action]++
	return "req-" + itoa(s.served)
}

// answer does what the call asks for, and what the script makes of it.
func (s *Server) answer(w http.ResponseWriter, c *call, refused *failure) {
	c.finished = func() {}
	defer func() { c.finished() }()
	var way *line
	if refused == nil {
		if way = c.disturbance(); way != nil {
			refused = way.refusal()
		}
	}
	// A call that the script refuses takes nothing out of the buckets.
	if refused == nil {
		refused = s.spend(c)
	}
	if way != nil && way.what == "proxy" && way.at["made"] == "" {
		page(w)
		return
	}
	var inner string
	if refused == nil {
		inner, refused = c.do()
	}
	// Done, and answered as if it were not: what a driver must not take for a refusal.
	if way != nil && way.what == "internal" && refused == nil {
		refused = fail(500, "InternalError", "An internal error has occurred")
	}
	text, status, kind := inner, http.StatusOK, "text/xml;charset=UTF-8"
	switch {
	case c.target != "" && refused != nil:
		text, status = refused.json(), refused.status
	case refused != nil:
		text, status = refused.xml(c.request), refused.status
	case c.target == "":
		text = response(c.action, c.request, inner)
	}
	if c.target != "" {
		kind = "application/x-amz-json-1.1"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Amzn-Requestid", c.request)
	if way != nil && c.disturb(w, way, text) {
		return
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// disturbance is the line of the script that is about this call.
func (c *call) disturbance() *line {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	about := subject{action: c.action}
	if c.action == "RunInstances" {
		about = c.s.wanted(c.form)
		for _, l := range c.s.script {
			if l.where == "create" && l.what != "capacity" && l.what != "partial" && l.strikes(about, c.s.now().Sub(c.s.played)) {
				return l
			}
		}
	}
	return c.s.striking("call", "", about)
}

// refusal is what the line answers in place of doing the call; nil: it is done.
func (l *line) refusal() *failure {
	switch {
	case l.what == "refuse":
		return fail(cmp.Or(l.number("status"), 400), l.words[0], "The script refuses this call.")
	case l.what == "throttle":
		return fail(503, "RequestLimitExceeded", "Request limit exceeded.")
	case l.what == "internal" && l.at["made"] == "":
		return fail(500, "InternalError", "An internal error has occurred")
	}
	return nil
}

// disturb spoils the answer of a call that was done, and reports whether it has answered.
func (c *call) disturb(w http.ResponseWriter, way *line, text string) bool {
	switch {
	case way.what == "slow":
		c.s.mu.Lock()
		d := way.Moment()
		c.s.mu.Unlock()
		c.wait(d)
		return false
	case way.what == "proxy":
		page(w)
		return true
	case way.what == "truncated":
		_, _ = io.WriteString(w, text[:len(text)/2])
		return true
	case way.what == "lost":
		switch way.words[0] {
		case "before":
			abort(w, "", 0)
		case "middle":
			abort(w, text[:len(text)/2], len(text))
		// Whether a client believes a whole body under a broken length is its own affair; the cloud has
		// done the call in each of the three cases.
		default:
			// The body is whole, and the header promised more.
			abort(w, text, len(text)+1)
		}
	}
	return false
}

// wait returns when the time is over or the caller has left.
func (c *call) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// page is what stands between a client and EC2 when that does not answer: HTML, whatever was asked.
func page(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, "<html><body><h1>503 Service Unavailable</h1>No server is available to handle this request.</body></html>")
}

// Transport calls the server without a network, in the caller's goroutine.
func (s *Server) Transport() http.RoundTripper { return memory{s} }

// memory is a transport without sockets, since nothing in a bubble may wait for the network.
type memory struct{ h http.Handler }

// errClosed is what a client gets of a connection that ended before the answer.
var errClosed = errors.New("ec2test: the connection was closed")

// RoundTrip is http.RoundTripper's. An answer that was cut is one whose body ends in an error.
func (m memory) RoundTrip(r *http.Request) (*http.Response, error) {
	// A real transport would change neither the caller's request nor its body.
	own := r.Clone(r.Context())
	if own.Body == nil {
		own.Body = http.NoBody
	}
	own.Host = cmp.Or(r.Host, r.URL.Host)
	w := &memoryAnswer{header: http.Header{}}
	aborted := w.serve(m.h, own)
	_ = own.Body.Close()
	switch {
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	// Nothing was sent yet, so the client sees a connection that was closed, and no answer.
	case aborted && w.status == 0:
		return nil, errClosed
	}
	var body io.Reader = &w.body
	if aborted {
		body = io.MultiReader(body, cut{})
	}
	status := cmp.Or(w.status, http.StatusOK)
	return &http.Response{Status: itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(body), ContentLength: -1, Request: r}, nil
}

// cut is where a body ends before its time.
type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// memoryAnswer keeps an answer until it is whole: nobody reads along.
type memoryAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *memoryAnswer) Header() http.Header { return w.header }

func (w *memoryAnswer) WriteHeader(status int) { w.status = cmp.Or(w.status, status) }

func (w *memoryAnswer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// serve has the handler answer, and reports whether it closed the connection.
func (w *memoryAnswer) serve(h http.Handler, r *http.Request) (aborted bool) {
	defer func() {
		switch got := recover(); got {
		case nil:
		// What net/http does with this panic in a server: it closes the connection and says nothing.
		case http.ErrAbortHandler:
			aborted = true
		default:
			panic(got)
		}
	}()
	h.ServeHTTP(w, r)
	return false
}
