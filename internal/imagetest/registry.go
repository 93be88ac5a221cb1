package imagetest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Login is how a registry asks who somebody is.
type Login string

// The kinds of login.
const (
	// Anonymous: nobody is asked.
	Anonymous Login = ""
	// Basic: user and password with each request.
	Basic Login = "basic"
	// Token: user and password at a place of their own, which gives a token for one repository, as the public registries do.
	Token Login = "token"
)

// User and Password of a registry that asks.
const (
	User     = "alice"
	Password = "correct horse"
)

// Registry is one on loopback, in this process.
type Registry struct {
	// Host is its address and port, the first part of references.
	Host string

	login Login

	mu sync.Mutex
	// tokens are those given, with the repository that each is for.
	tokens map[string]string
	faults []*Fault
	served []string
}

// Fault is what goes wrong with requests.
type Fault struct {
	// Path is a part of the paths that are struck; empty: all but pushes.
	Path string
	// Times is how often; less than 0: always.
	Times int
	// Status is answered instead; 0: the request is served, slowly or cut.
	Status int
	// RetryAfter is sent with Status, in seconds; 0: not.
	RetryAfter int
	// Cut closes the connection after so many bytes of the body; less than 0: not.
	Cut int64
	// Wait is before each piece of the body.
	Wait time.Duration
	// Corrupt changes one byte in the middle of the body.
	Corrupt bool
}

// NewRegistry starts one, which ends with the test.
func NewRegistry(t testing.TB, login Login) *Registry {
	t.Helper()
	r := &Registry{login: login, tokens: map[string]string{}}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.serve(store, w, q) }))
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// Push stores an image or an index and returns its whole reference, by tag. what is "repository:tag".
func (r *Registry) Push(t testing.TB, what string, image remote.Taggable) (ref string) {
	t.Helper()
	tag, err := name.NewTag(r.Host+"/"+what, name.Insecure)
	if err != nil {
		t.Fatalf("push: %v", err)
	}
	options := []remote.Option{}
	if r.login != Anonymous {
		options = append(options, remote.WithAuth(&authn.Basic{Username: User, Password: Password}))
	}
	switch image := image.(type) {
	case v1.Image:
		err = remote.Write(tag, image, options...)
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, image, options...)
	default:
		err = remote.Put(tag, image, options...)
	}
	if err != nil {
		t.Fatalf("push %s: %v", what, err)
	}
	return tag.String()
}

// Strike adds a fault; the first that matches a request counts.
func (r *Registry) Strike(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &f)
}

// Heal takes all faults away.
func (r *Registry) Heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

// Served are the requests so far that were not pushes, as "METHOD path status".
func (r *Registry) Served() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.served...)
}

// Blobs is how many of them fetched a layer or a configuration.
func (r *Registry) Blobs() int {
	n := 0
	for _, line := range r.Served() {
		if strings.HasPrefix(line, "GET ") && strings.Contains(line, "/blobs/") && strings.HasSuffix(line, " 200") {
			n++
		}
	}
	return n
}

func (r *Registry) serve(store http.Handler, w http.ResponseWriter, q *http.Request) {
	c := &courier{ResponseWriter: w, fault: Fault{Cut: -1}, status: http.StatusOK}
	pulls := q.Method == http.MethodGet || q.Method == http.MethodHead
	defer func() {
		if pulls {
			r.mu.Lock()
			r.served = append(r.served, fmt.Sprintf("%s %s %d", q.Method, q.URL.Path, c.status))
			r.mu.Unlock()
		}
	}()
	if pulls {
		if f := r.strike(q.URL.Path); f != nil {
			c.fault = *f
		}
	}
	switch {
	case c.fault.Status != 0:
		if c.fault.RetryAfter > 0 {
			c.Header().Set("Retry-After", fmt.Sprint(c.fault.RetryAfter))
		}
		http.Error(c, `{"errors":[{"code":"UNKNOWN","message":"struck"}]}`, c.fault.Status)
	case q.URL.Path == "/token":
		r.token(c, q)
	case r.admits(q):
		store.ServeHTTP(c, q)
	default:
		r.challenge(c, q)
	}
}

func (r *Registry) strike(path string) *Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		if f.Times != 0 && strings.Contains(path, f.Path) {
			if f.Times > 0 {
				f.Times--
			}
			copied := *f
			return &copied
		}
	}
	return nil
}

func (r *Registry) admits(q *http.Request) bool {
	switch r.login {
	case Basic:
		user, password, ok := q.BasicAuth()
		return ok && user == User && password == Password
	case Token:
		if q.URL.Path == "/v2/" || q.URL.Path == "/v2" {
			return strings.HasPrefix(q.Header.Get("Authorization"), "Bearer ")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		repository := r.tokens[strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")]
		return repository != "" && strings.HasPrefix(q.URL.Path, "/v2/"+repository+"/")
	}
	return true
}

func (r *Registry) challenge(w http.ResponseWriter, q *http.Request) {
	if r.login == Basic {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
	} else {
		scope := ""
		if rest, ok := strings.CutPrefix(q.URL.Path, "/v2/"); ok && rest != "" {
			scope = fmt.Sprintf(`,scope="repository:%s:pull"`, repositoryOf(rest))
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"%s`, r.Host, scope))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
}

// repositoryOf is the part of a path before what is asked of it.
func repositoryOf(path string) string {
	for _, part := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if at := strings.LastIndex(path, part); at >= 0 {
			return path[:at]
		}
	}
	return path
}

// token gives one to who knows the password.
func (r *Registry) token(w http.ResponseWriter, q *http.Request) {
	user, password, ok := q.BasicAuth()
	if !ok && q.Method == http.MethodPost {
		user, password = q.FormValue("username"), q.FormValue("password")
	}
	kind, rest, _ := strings.Cut(q.FormValue("scope"), ":")
	repository, _, _ := strings.Cut(rest, ":")
	if user != User || password != Password || kind != "repository" {
		http.Error(w, `{"details":"incorrect user or password"}`, http.StatusUnauthorized)
		return
	}
	secret := make([]byte, 24)
	_, _ = rand.Read(secret)
	token := base64.RawURLEncoding.EncodeToString(secret)
	r.mu.Lock()
	r.tokens[token] = repository
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300})
}

// courier carries an answer, and does to it what a fault says.
type courier struct {
	http.ResponseWriter
	fault  Fault
	status int
	sent   int64
}

func (c *courier) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *courier) Write(p []byte) (int, error) {
	if c.fault.Corrupt && len(p) > 0 {
		p = append([]byte(nil), p...)
		p[len(p)/2] ^= 0x20
		c.fault.Corrupt = false
	}
	if c.fault.Wait > 0 {
		if f, ok := c.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		time.Sleep(c.fault.Wait)
	}
	if c.fault.Cut >= 0 && c.fault.Status == 0 && c.sent+int64(len(p)) > c.fault.Cut {
		_, _ = c.ResponseWriter.Write(p[:c.fault.Cut-c.sent])
		// Something must have arrived, or the client's transport just asks again.
		if f, ok := c.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		// The server closes the connection in the middle of the body, and logs nothing.
		panic(http.ErrAbortHandler)
	}
	n, err := c.ResponseWriter.Write(p)
	c.sent += int64(n)
	return n, err
}
