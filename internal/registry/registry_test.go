package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const user, password = "robot", "hunter2-of-the-test"

// stand is a registry with a door.
type stand struct {
	*httptest.Server
	host string
	// asks are what the token server was asked, pings how often the registry was.
	mu   sync.Mutex
	asks []string
	// status answers everything at the door instead, if set; token instead of a token.
	status atomic.Int64
	token  atomic.Value
	pings  atomic.Int64
	slow   chan struct{} // not nil: the door opens when it is closed
}

// newStand makes one: kind is bearer, basic, odd or open.
func newStand(t *testing.T, kind string) *stand {
	t.Helper()
	s := &stand{}
	inner := gcr.New(gcr.Logger(log.New(io.Discard, "", 0)))
	allowed := func(r *http.Request) bool {
		switch u, p, ok := r.BasicAuth(); {
		case kind == "open":
			return true
		case ok:
			return kind == "basic" && u == user && p == password
		}
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return ok && strings.HasPrefix(got, "token-for-")
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.slow != nil {
			<-s.slow
		}
		if n := s.status.Load(); n != 0 {
			w.WriteHeader(int(n))
			return
		}
		switch {
		case r.URL.Path == "/token":
			s.giveToken(w, r)
		case r.URL.Path == "/v2/" && !allowed(r):
			s.pings.Add(1)
			switch kind {
			case "bearer":
				w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="stand"`, s.URL))
			case "basic":
				w.Header().Set("Www-Authenticate", `Basic realm="stand"`)
			default:
				w.Header().Set("Www-Authenticate", "Negotiate")
			}
			w.WriteHeader(http.StatusUnauthorized)
		case !allowed(r):
			w.WriteHeader(http.StatusUnauthorized)
		default:
			if r.URL.Path == "/v2/" {
				s.pings.Add(1)
			}
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	s.host = strings.TrimPrefix(s.URL, "http://")
	return s
}

func (s *stand) giveToken(w http.ResponseWriter, r *http.Request) {
	if refresh(w, r) {
		return
	}
	u, p, _ := r.BasicAuth()
	s.mu.Lock()
	s.asks = append(s.asks, r.URL.Query().Get("scope")+" by "+u)
	s.mu.Unlock()
	if u != user || p != password {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"%s is wrong"}]}`, p)
		return
	}
	if t, ok := s.token.Load().(string); ok {
		_, _ = w.Write([]byte(t))
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": "token-for-" + r.URL.Query().Get("scope"), "refresh_token": "must-stay", "expires_in": 300})
}

func (s *stand) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asks...)
}

// push puts a random image there.
func (s *stand) push(t *testing.T, repo string) {
	t.Helper()
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(s.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
}

type rig struct {
	*Registries
	logged bytes.Buffer
}

func newRig(t *testing.T, specs ...api.RegistrySpec) *rig {
	t.Helper()
	r := &rig{}
	transport := newTransport()
	t.Cleanup(transport.CloseIdleConnections)
	var err error
	r.Registries, err = New(Config{Registries: specs, Transport: transport, Logger: slog.New(slog.NewTextHandler(&r.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if strings.Contains(r.logged.String(), password) || strings.Contains(r.logged.String(), "token-for") {
			t.Errorf("logged: %s", r.logged.String())
		}
	})
	return r
}

func (s *stand) spec() api.RegistrySpec {
	return api.RegistrySpec{Host: s.host, Username: user, Password: muster.NewSecret(password)}
}

// none says that a grant is empty.
func none(g wire.PullGrant, ref string) bool { return g == wire.PullGrant{Ref: ref} }

func TestBearer(t *testing.T) {
	s := newStand(t, "bearer")
	r := newRig(t, s.spec())
	ref := s.host + "/team/app:v1"
	began := time.Now()
	g := r.Grant(t.Context(), ref, "")
	if g.Failure != nil || g.Ref != ref || g.Authorization != "Bearer token-for-repository:team/app:pull" || g.Pull != "" || g.Insecure {
		t.Fatalf("%+v %v", g, g.Failure)
	}
	if left := g.Until.Std().Sub(began); left < 299*time.Second || left > 330*time.Second {
		t.Errorf("lasts %s", left)
	}
	if asks := s.asked(); len(asks) != 1 || asks[0] != "repository:team/app:pull by "+user {
		t.Errorf("%q", asks)
	}
	// Given again while it lasts; another repository's is another one.
	if again := r.Grant(t.Context(), ref, ""); again != g || len(s.asked()) != 1 {
		t.Errorf("%+v, %q", again, s.asked())
	}
	if g := r.Grant(t.Context(), s.host+"/other@sha256:"+strings.Repeat("0", 64), ""); g.Authorization != "Bearer token-for-repository:other:pull" {
		t.Errorf("%+v", g)
	}
	for token, lasts := range map[string]time.Duration{
		`{"access_token":"a"}`: tokenUsual, `{"token":"a","expires_in":-5}`: tokenUsual, `{"token":"a","expires_in":99999999}`: tokenUsual, `{"token":"a","expires_in":30}`: 30 * time.Second,
	} {
		s.token.Store(token)
		for range 2 {
			// It ends soon, so there is a new one each time.
			g := r.Grant(t.Context(), s.host+"/short", "")
			if left := time.Until(g.Until.Std()); g.Authorization != "Bearer a" || left > lasts || left < lasts-20*time.Second {
				t.Errorf("%s: %+v %s", token, g, left)
			}
		}
	}
}

// TestRefused: what a registry does not take any more is made anew, unless that was just done.
func TestRefused(t *testing.T) {
	s := newStand(t, "bearer")
	r := newRig(t, s.spec())
	ref := s.host + "/a"
	g := r.Grant(t.Context(), ref, "")
	r.Refused(ref, "", g.Authorization)
	if again := r.Grant(t.Context(), ref, ""); again != g || len(s.asked()) != 1 {
		t.Errorf("as it was made just now: %+v, %q", again, s.asked())
	}
	r.mu.Lock()
	old := r.recent[grantKey{ref: ref}]
	old.made = old.made.Add(-youngest)
	r.recent[grantKey{ref: ref}] = old
	r.mu.Unlock()
	s.token.Store(`{"token":"another","expires_in":300}`)
	r.Refused(ref, "", "Bearer of-before")
	r.Refused(s.host+"/b", "", g.Authorization)
	if again := r.Grant(t.Context(), ref, ""); again != g || len(s.asked()) != 1 {
		t.Errorf("as another one was refused: %+v, %q", again, s.asked())
	}
	r.Refused(ref, "", g.Authorization)
	if again := r.Grant(t.Context(), ref, ""); again.Authorization != "Bearer another" || len(s.asked()) != 2 {
		t.Errorf("%+v, %q", again, s.asked())
	}
}

func TestFullName(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	r := newRig(t)
	for _, same := range [][]string{
		{"busybox", "busybox:latest", "library/busybox", "docker.io/library/busybox:latest", "index.docker.io/library/busybox"},
		{"team/app:v1", "docker.io/team/app:v1"},
		{"team/app:v2"},
		{"ghcr.io/x/y" + digest, "ghcr.io/x/y:v1" + digest},
		{"ghcr.io/x/y"},
		{"oci:/dir:a"}, {"Not A Name"},
	} {
		for _, ref := range same {
			if got := r.FullName(ref); got != r.FullName(same[0]) {
				t.Errorf("%s: %s", ref, got)
			}
		}
		for _, ref := range []string{"busybox:1", "quay.io/library/busybox", "ghcr.io/x/z", ""} {
			if r.FullName(ref) == r.FullName(same[0]) {
				t.Errorf("%q is %s", ref, same[0])
			}
		}
	}
}

func TestPasswordFile(t *testing.T) {
	s := newStand(t, "bearer")
	spec := s.spec()
	spec.Password, spec.PasswordFile = muster.Secret{}, filepath.Join(t.TempDir(), "password")
	r := newRig(t, spec)
	if g := r.Grant(t.Context(), s.host+"/a", ""); g.Failure == nil || g.Failure.Class != muster.FailureOutside || !strings.Contains(g.Failure.Message, spec.PasswordFile) {
		t.Errorf("%+v", g.Failure)
	}
	if err := os.WriteFile(spec.PasswordFile, []byte(password+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if g := r.Grant(t.Context(), s.host+"/a", ""); g.Failure != nil || g.Authorization == "" {
		t.Errorf("%+v %v", g, g.Failure)
	}
}

func TestBasic(t *testing.T) {
	s := newStand(t, "basic")
	g := newRig(t, s.spec()).Grant(t.Context(), s.host+"/a", "")
	if g.Failure == nil || g.Failure.Class != muster.FailureUser || g.Failure.Reason != muster.ReasonImageNotFound ||
		!strings.Contains(g.Failure.Message, "send_credentials: true") || !strings.Contains(g.Failure.Message, s.host) || g.Authorization != "" {
		t.Fatalf("%+v %v", g, g.Failure)
	}
	spec := s.spec()
	spec.SendCredentials = true
	g = newRig(t, spec).Grant(t.Context(), s.host+"/a", "")
	if want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)); g.Failure != nil || g.Authorization != want || g.Until == 0 {
		t.Errorf("%+v %v", g, g.Failure)
	}
	if forServer := newRig(t, s.spec()).ForServer().Grant(t.Context(), s.host+"/a", ""); forServer.Authorization != g.Authorization {
		t.Errorf("for the server: %+v %v", forServer, forServer.Failure)
	}
	if left := time.Until(g.Until.Std()); left > 5*time.Minute {
		t.Errorf("a password is used for %s without being asked for", left)
	}
}

func TestNothingToGrant(t *testing.T) {
	open, bearer := newStand(t, "open"), newStand(t, "bearer")
	r := newRig(t, open.spec(), api.RegistrySpec{Host: bearer.host, Insecure: true})
	if g := r.Grant(t.Context(), open.host+"/a", ""); !none(g, open.host+"/a") {
		t.Errorf("%+v", g)
	}
	// Without credentials the node asks by itself, for registries of the configuration and for all others; for
	// those the server asks nobody, whatever address a user writes.
	if g := r.Grant(t.Context(), bearer.host+"/a", ""); g != (wire.PullGrant{Ref: bearer.host + "/a", Insecure: true}) || bearer.pings.Load() != 0 {
		t.Errorf("%+v", g)
	}
	stranger := newStand(t, "bearer")
	for _, ref := range []string{stranger.host + "/a", "busybox", "oci:/dir", "docker-archive:/f.tar", "Not A Name", "", "a@sha256:0", strings.Repeat("x", 2000)} {
		if g := r.Grant(t.Context(), ref, ""); !none(g, ref) {
			t.Errorf("%q: %+v %v", ref, g, g.Failure)
		}
	}
	if stranger.pings.Load() != 0 {
		t.Error("a registry that is not in the configuration was asked")
	}
}

func TestFailures(t *testing.T) {
	s := newStand(t, "bearer")
	check := func(g wire.PullGrant, class muster.FailureClass, reason muster.Reason, says string) {
		t.Helper()
		if g.Failure == nil || g.Failure.Class != class || g.Failure.Reason != reason || !strings.Contains(g.Failure.Message, says) ||
			strings.Contains(g.Failure.Message, password) || g.Authorization != "" || !strings.Contains(g.Failure.Message, s.host) {
			t.Errorf("%+v %v", g, g.Failure)
		}
	}
	wrong := s.spec()
	wrong.Password = muster.NewSecret("wrong-" + password)
	check(newRig(t, wrong).Grant(t.Context(), s.host+"/a", ""), muster.FailureUser, muster.ReasonImageNotFound, "credentials under registries")
	r := newRig(t, s.spec())
	for status, class := range map[int64]muster.FailureClass{
		403: muster.FailureUser, 404: muster.FailureUser, 500: muster.FailureOutside, 503: muster.FailureOutside, 429: muster.FailureOutside,
	} {
		s.status.Store(status)
		reason := muster.ReasonImage
		if class == muster.FailureUser {
			reason = muster.ReasonImageNotFound
		}
		check(r.Grant(t.Context(), s.host+"/a", ""), class, reason, "")
	}
	s.status.Store(0)
	for _, token := range []string{`{}`, `nonsense`, `{"token":"a\r\nX: y"}`} {
		s.token.Store(token)
		check(r.Grant(t.Context(), s.host+"/a", ""), muster.FailureOutside, muster.ReasonImage, "")
	}
	// A failure is not kept.
	s.token = atomic.Value{}
	if g := r.Grant(t.Context(), s.host+"/a", ""); g.Failure != nil {
		t.Error(g.Failure)
	}
	odd := newStand(t, "odd")
	if g := newRig(t, odd.spec()).Grant(t.Context(), odd.host+"/a", ""); g.Failure == nil || !strings.Contains(g.Failure.Message, "(negotiate)") {
		t.Errorf("%+v", g)
	}
	s.Close()
	check(r.Grant(t.Context(), s.host+"/b", ""), muster.FailureOutside, muster.ReasonImage, "cannot be reached")
}

// TestPlainHTTP: credentials go through plain HTTP only where the configuration says so.
func TestPlainHTTP(t *testing.T) {
	var asked atomic.Int64
	r, err := New(Config{
		Registries: []api.RegistrySpec{{Host: "10.1.2.3:5000", Username: user, Password: muster.NewSecret(password)}},
		Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Scheme == "http" {
				asked.Add(1)
			}
			return nil, fmt.Errorf("no route")
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if g := r.Grant(t.Context(), "10.1.2.3:5000/a", ""); g.Failure == nil || g.Failure.Class != muster.FailureOutside || asked.Load() != 0 {
		t.Errorf("%+v, asked %d times", g, asked.Load())
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestMirror(t *testing.T) {
	origin, mirror := newStand(t, "bearer"), newStand(t, "open")
	mirror.push(t, "hub/team/app:v1")
	spec := origin.spec()
	spec.Mirror = mirror.host + "/hub"
	r := newRig(t, spec)
	if g := r.Grant(t.Context(), origin.host+"/team/app:v1", ""); g.Failure != nil || g.Pull != mirror.host+"/hub/team/app:v1" || g.Authorization != "" {
		t.Errorf("%+v %v", g, g.Failure)
	}
	// What it has not, or while it is out of order, comes from the registry itself.
	if g := r.Grant(t.Context(), origin.host+"/team/app:v2", ""); g.Failure != nil || g.Pull != "" || g.Authorization == "" {
		t.Errorf("%+v %v", g, g.Failure)
	}
	mirror.status.Store(503)
	if g := r.Grant(t.Context(), origin.host+"/team/app:v1", ""); g.Failure != nil || g.Pull != "" || g.Authorization == "" {
		t.Errorf("%+v %v", g, g.Failure)
	}
	// A mirror with credentials of its own.
	locked := newStand(t, "basic")
	spec.Mirror = locked.host
	lockedSpec := locked.spec()
	lockedSpec.SendCredentials = true
	r = newRig(t, spec, lockedSpec)
	if g := r.Grant(t.Context(), origin.host+"/team/app:v1", ""); g.Pull != "" {
		t.Errorf("%+v: it has none", g)
	}
}

// TestOnce: whoever asks at the same time gets the same, made once; one who is called off takes nobody along.
func TestOnce(t *testing.T) {
	s := newStand(t, "bearer")
	s.slow = make(chan struct{})
	r := newRig(t, s.spec())
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan wire.PullGrant, 1)
	go func() { first <- r.Grant(ctx, s.host+"/a", "") }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := len(r.making)
		r.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is made")
		}
	}
	var wg sync.WaitGroup
	got := make([]wire.PullGrant, 10)
	for i := range got {
		wg.Go(func() { got[i] = r.Grant(t.Context(), s.host+"/a", "") })
	}
	cancel()
	if g := <-first; g.Failure == nil {
		t.Errorf("%+v", g)
	}
	close(s.slow)
	wg.Wait()
	for _, g := range got {
		if g.Failure != nil || g != got[0] {
			t.Errorf("%+v %v", g, g.Failure)
		}
	}
	if n := len(s.asked()); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestNew(t *testing.T) {
	for _, specs := range [][]api.RegistrySpec{
		{{Host: "bad host"}}, {{Host: "docker.io"}, {Host: "index.docker.io"}},
	} {
		if _, err := New(Config{Registries: specs}); err == nil {
			t.Errorf("%v is taken", specs)
		}
	}
	r, err := New(Config{Registries: []api.RegistrySpec{{Host: "docker.io"}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.entry("index.docker.io", "") == nil {
		t.Errorf("%v", r.hosts)
	}
}
