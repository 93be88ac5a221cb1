package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/wait"
)

// DefaultRetryFor is how long an unreachable server is tried again by default:
// enough for a restart, short enough for a person to wait.
const DefaultRetryFor = 2 * time.Second

// Config says which server to speak to, and how patiently.
type Config struct {
	// Address of the server: host:port, or a URL. Several servers of one cluster are separated by commas:
	// the client uses one, and the next when it does not answer.
	Address string
	// Token that lets the client in; none for a server without authentication.
	Token muster.Secret
	// RetryFor is how long a request is repeated while the server cannot be
	// reached or says that it is not ready. 0 is DefaultRetryFor; negative, not at all.
	RetryFor time.Duration
	// Find, if set, is asked again where the server is when it cannot be reached:
	// it may have come back elsewhere. It is called by one goroutine at a time.
	Find func() (address string, token muster.Secret, err error)
	// HTTPClient, if set, is used instead of one of the client's own. It should have no time-out.
	HTTPClient *http.Client
	// UserAgent names the program.
	UserAgent string
}

// Client speaks to one server. It may be used by many goroutines at once. Its methods are those of
// its parts: each is a group of the API's paths.
type Client struct {
	*caller
	JobAPI
	SandboxAPI
	ClusterAPI
}

// JobAPI is what there is to do with jobs: submit, watch, read output, stop, explain.
type JobAPI struct{ *caller }

// SandboxAPI is what there is to do with environments, runners and claims, and inside sandboxes:
// executions, files, ports, figures.
type SandboxAPI struct{ *caller }

// ClusterAPI is what operators do: nodes, pools, providers, namespaces, images, costs and the server itself.
type ClusterAPI struct{ *caller }

// caller makes the requests of a Client.
type caller struct {
	http *http.Client
	// fresh makes a connection for each request: on one that was used before, package http may send a request again by
	// itself, and one that starts a command must not be. Nil if HTTPClient brings a transport of another kind.
	fresh     *http.Transport
	find      func() (string, muster.Secret, error)
	userAgent string
	retryFor  time.Duration
	where     *where
}

// where is the server's place; copies of a client share it.
type where struct {
	mu    sync.Mutex
	base  *url.URL
	token muster.Secret
	// others are further servers of the cluster, the next to try first.
	others []*url.URL

	finding sync.Mutex // held while Find is asked
}

// New makes a client. It does not speak to the server yet.
func New(cfg Config) (*Client, error) {
	at := &where{token: cfg.Token}
	for i, address := range strings.Split(cfg.Address, ",") {
		base, err := baseURL(strings.TrimSpace(address))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			at.base = base
		} else {
			at.others = append(at.others, base)
		}
	}
	c := &caller{http: cfg.HTTPClient, find: cfg.Find, userAgent: cfg.UserAgent, retryFor: cfg.RetryFor, where: at}
	c.retryFor = cmp.Or(c.retryFor, DefaultRetryFor)
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 64
		t.DisableCompression = true // offsets of output are those of its own bytes
		c.http = &http.Client{Transport: t}
	} else {
		own := *c.http
		c.http = &own
	}
	if t, ok := c.http.Transport.(*http.Transport); ok {
		c.fresh = t.Clone()
		c.fresh.DisableKeepAlives = true
	}
	// The API redirects nowhere; following one would carry the token to who knows where.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return newClient(c), nil
}

func newClient(c *caller) *Client { return &Client{c, JobAPI{c}, SandboxAPI{c}, ClusterAPI{c}} }

// Patient is the same client with another RetryFor.
func (c *Client) Patient(retryFor time.Duration) *Client {
	return newClient(c.patient(retryFor))
}

func (c *caller) patient(retryFor time.Duration) *caller {
	p := *c
	p.retryFor = retryFor
	return &p
}

// Address is where the server is, as far as known.
func (c *caller) Address() string {
	base, _ := c.place()
	return base.Host
}

func baseURL(address string) (*url.URL, error) {
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("server address %q: write host:port, or http://host:port", address)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

func (c *caller) place() (*url.URL, muster.Secret) {
	c.where.mu.Lock()
	defer c.where.mu.Unlock()
	return c.where.base, c.where.token
}

// next goes on with the next server of the cluster, unless somebody has done so since from was used.
func (w *where) next(from *url.URL) (other bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.others) == 0 {
		return false
	}
	if w.base == from {
		w.base, w.others = w.others[0], append(w.others[1:len(w.others):len(w.others)], w.base)
	}
	return true
}

// findAgain asks where the server is now, after from did not answer. What cannot be found stays as it was.
func (c *caller) findAgain(from *url.URL) {
	if c.where.next(from) {
		return
	}
	if c.find == nil {
		return
	}
	c.where.finding.Lock()
	defer c.where.finding.Unlock()
	address, token, err := c.find()
	if err != nil {
		return
	}
	base, err := baseURL(address)
	if err != nil {
		return
	}
	c.where.mu.Lock()
	defer c.where.mu.Unlock()
	c.where.base, c.where.token = base, token
}

// Unreachable says that the server could not be reached, or went away in the middle.
type Unreachable struct {
	Address string
	Err     error
}

func (u *Unreachable) Error() string {
	// The reason alone: what is around it repeats the method, the URL and the address.
	err := u.Err
	var ue *url.Error
	var errno syscall.Errno
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.As(err, &errno) {
		err = errno
	}
	return fmt.Sprintf("no server answers at %s: %v", u.Address, err)
}

func (u *Unreachable) Unwrap() error { return u.Err }

// request is one call of the API, which may be made several times.
type request struct {
	method string
	path   string // escaped, below the server's address
	query  url.Values
	header http.Header
	// body makes the body anew for each attempt; nil for none.
	body func() (io.ReadCloser, error)
	size int64 // of body; -1 if not known
	// once: not to be repeated.
	once bool
	// slow: an attempt may take as long as it takes, as one with a large body does.
	slow bool
	// until is for how long a request is repeated that the server had begun to serve: one that waits
	// there is to outlive a change of the server's leader. Zero: no longer than others.
	until time.Time
}

// unaryTimeout bounds one attempt of a request that answers at once.
const unaryTimeout = time.Minute

// maxAnswer bounds an answer that is read whole.
const maxAnswer = 256 << 20

// path makes an escaped path of its segments.
func path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// call makes a request and reads its whole answer into out, which may be nil.
func (c *caller) call(ctx context.Context, r request, out any) error {
	return c.retry(ctx, r, func() error {
		ctx := ctx
		if !r.slow {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, unaryTimeout)
			defer cancel()
		}
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		if err != nil {
			return &Unreachable{c.Address(), err}
		}
		if len(b) > maxAnswer {
			return fmt.Errorf("%s %s: the answer is larger than %s", r.method, r.path, muster.Bytes(maxAnswer))
		}
		if out == nil || len(b) == 0 && resp.StatusCode == http.StatusNoContent {
			return nil
		}
		if err := json.Unmarshal(b, out); err != nil {
			return fmt.Errorf("%s %s: the answer is not of the API: %w", r.method, r.path, err)
		}
		return nil
	})
}

// fetch makes a request and reads its whole answer as a T, which is not complete after an error.
func fetch[T any](ctx context.Context, c *caller, r request) (*T, error) {
	out := new(T)
	return out, c.call(ctx, r, out)
}

// follow posts a body and hands each line of the answer to take, until take is done or fails. An
// answer that ends before is one of a server that went away. Doing begins the error of a wrong line.
func follow[T any](ctx context.Context, c *caller, r request, body any, doing string, take func(T) (done bool, err error)) error {
	r, err := jsonBody(r, body)
	if err != nil {
		return err
	}
	resp, err := c.stream(ctx, r)
	if err != nil {
		return err
	}
	answer := &broken{resp.Body, c.Address()}
	defer func() { _ = answer.Close() }()
	lines := bufio.NewScanner(answer)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line T
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%s: the answer is not of the API: %w", doing, err)
		}
		if done, err := take(line); done || err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return &Unreachable{c.Address(), io.ErrUnexpectedEOF}
}

// stream makes a request whose answer the caller reads and closes.
func (c *caller) stream(ctx context.Context, r request) (*http.Response, error) {
	var resp *http.Response
	err := c.retry(ctx, r, func() (err error) {
		resp, err = c.send(ctx, r)
		return err
	})
	return resp, err
}

// send makes one attempt. An answer other than 2xx is an error.
func (c *caller) send(ctx context.Context, r request) (*http.Response, error) {
	base, token := c.place()
	target := *base
	target.Path, target.RawPath = "", ""
	full := target.String() + base.EscapedPath() + r.path
	if len(r.query) > 0 {
		full += "?" + r.query.Encode()
	}
	var body io.ReadCloser
	if r.body != nil {
		var err error
		if body, err = r.body(); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, full, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.ContentLength = r.size
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if !token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	if c.userAgent != "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, ctx.Err()
		}
		return nil, &Unreachable{base.Host, err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, problem(resp)
}

// problem reads what a refusal says; not every one comes from the API itself.
func problem(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	p := &api.Problem{}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" && media != "application/json" || json.Unmarshal(b, p) != nil || p.Status == 0 {
		p = &api.Problem{Title: http.StatusText(resp.StatusCode), Detail: strings.TrimSpace(strings.ToValidUTF8(string(b[:min(len(b), 500)]), "�"))}
	}
	p.Status = resp.StatusCode
	if p.Title == "" {
		p.Title = "status " + strconv.Itoa(resp.StatusCode)
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		return &later{p, time.Duration(s) * time.Second}
	}
	return p
}

// later is a problem that says when to come again.
type later struct {
	*api.Problem
	after time.Duration
}

func (l *later) Unwrap() error { return l.Problem }

// retry does what attempt does until it succeeds, cannot succeed, or patience is over.
func (c *caller) retry(ctx context.Context, r request, attempt func() error) error {
	deadline := time.Now().Add(c.retryFor)
	for delay := firstWait; ; delay = min(2*delay, longestWait) {
		at, _ := c.place()
		began := time.Now()
		err := attempt()
		if err == nil {
			return nil
		}
		again, after := retriable(err)
		if !again || r.once || c.retryFor < 0 || ctx.Err() != nil {
			return plainProblem(err)
		}
		// Another server leads soon, or this one again, and the wait goes on there.
		if time.Since(began) >= servedFor && r.until.After(deadline) {
			deadline = r.until
		}
		pause := max(jitter(delay), after)
		if time.Now().Add(pause).After(deadline) {
			return plainProblem(err)
		}
		if !wait.For(ctx, pause) {
			return ctx.Err()
		}
		c.findAgain(at)
	}
}

// servedFor is how long an attempt that fails must have taken to have been served: a server that is
// not there, or starts, says so sooner.
const servedFor = 500 * time.Millisecond

const (
	firstWait   = 25 * time.Millisecond
	longestWait = time.Second
)

// retriable reports whether an attempt that failed so may succeed later, and when at the soonest.
func retriable(err error) (bool, time.Duration) {
	var u *Unreachable
	if errors.As(err, &u) {
		return true, 0
	}
	var after time.Duration
	var l *later
	if errors.As(err, &l) {
		after = l.after
	}
	var p *api.Problem
	if errors.As(err, &p) {
		switch p.Code {
		case api.CodeNoneWarm: // the caller said how long to wait
			return false, 0
		case string(muster.FaultQuota): // until work ends or somebody lifts the limit: theirs to know
			return false, 0
		}
		switch p.Status {
		case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
			return true, after
		}
	}
	return false, 0
}

// plainProblem takes off what only retry needs.
func plainProblem(err error) error {
	var l *later
	if errors.As(err, &l) {
		return l.Problem
	}
	return err
}

// jitter spreads the clients of a server that comes back.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// jsonBody makes the body of a request of a value.
func jsonBody(r request, v any) (request, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return r, err
	}
	r.body = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	r.size = int64(len(b))
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set("Content-Type", "application/json")
	return r, nil
}
