package metadata

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// cloudService plays a metadata service: answers by path, and what each request must have.
type cloudService struct {
	t    *testing.T
	kind string

	mu      sync.Mutex
	answers map[string]string
	down    bool
	token   string // that EC2's takes
	tokens  int
	asked   int
}

func (s *cloudService) set(path, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer == "" {
		delete(s.answers, path)
		return
	}
	s.answers[path] = answer
}

func (s *cloudService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch s.kind {
	case "ec2":
		if r.URL.Path == ec2TokenPath {
			if r.Method != http.MethodPut || r.Header.Get(ec2TokenTTL) != ec2TokenSeconds {
				s.t.Errorf("%s %v", r.Method, r.Header)
			}
			s.tokens++
			_, _ = io.WriteString(w, s.token)
			return
		}
		if r.Header.Get(ec2Token) != s.token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	case "gce":
		if r.Header.Get(gceFlavor) != "Google" {
			s.t.Errorf("%v", r.Header)
		}
	case "azure":
		if r.Header.Get(azureField) != "true" {
			s.t.Errorf("%v", r.Header)
		}
	}
	answer, there := s.answers[r.URL.RequestURI()]
	if !there {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, answer)
}

// RoundTrip answers without a network, which synctest cannot have.
func (s *cloudService) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

// play runs a Watch against a service in a bubble. told returns the notices since it was last called.
func play(t *testing.T, kind string, do func(s *cloudService, after func(time.Duration) []wire.Notice)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &cloudService{t: t, kind: kind, answers: map[string]string{}, token: "first"}
		var told []wire.Notice
		var mu sync.Mutex
		w, err := New(Config{Kind: kind, Tell: func(n wire.Notice) { mu.Lock(); told = append(told, n); mu.Unlock() }})
		if err != nil {
			t.Fatal(err)
		}
		w.client.Transport = s
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		do(s, func(d time.Duration) []wire.Notice {
			time.Sleep(d) // of the bubble's clock
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := told
			told = nil
			return out
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func expect(t *testing.T, what string, got []wire.Notice, want ...wire.Notice) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: told %+v, want %+v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: told %+v, want %+v", what, got, want)
		}
	}
}

func TestNoticesOfAmazon(t *testing.T) {
	play(t, "ec2", func(s *cloudService, after func(time.Duration) []wire.Notice) {
		expect(t, "nothing open", after(time.Minute))
		begun := time.Now().UTC().Truncate(time.Second)
		s.set(ec2RebalancePath, `{"noticeTime":"`+begun.Format(time.RFC3339)+`"}`)
		expect(t, "rebalance", after(5*time.Second), wire.Notice{Kind: wire.NoticeAtRisk, At: muster.At(begun)})

		// The token is no longer taken, as after six hours: another one is asked for.
		s.mu.Lock()
		s.token = "second"
		s.mu.Unlock()
		taken := begun.Add(2 * time.Minute)
		s.set(ec2ActionPath, `{"action":"stop","time":"`+taken.Format(time.RFC3339)+`"}`)
		expect(t, "spot notice", after(5*time.Second), wire.Notice{Kind: wire.NoticeTaken, At: muster.At(taken)})
		if s.tokens != 2 {
			t.Errorf("%d tokens were asked for", s.tokens)
		}

		// A service that fails has withdrawn nothing, and neither has an answer that cannot be read.
		s.mu.Lock()
		s.down = true
		s.mu.Unlock()
		expect(t, "failing", after(time.Minute))
		s.mu.Lock()
		s.down = false
		s.mu.Unlock()
		s.set(ec2ActionPath, `{"action":`)
		expect(t, "cut", after(time.Minute))
		s.set(ec2ActionPath, `{"action":"terminate"}`)
		expect(t, "without a time", after(time.Minute))
		s.set(ec2ActionPath, "")
		s.set(ec2RebalancePath, "")
		expect(t, "withdrawn", after(5*time.Second), wire.Notice{})
	})
}

func TestScheduledEventsOfAmazon(t *testing.T) {
	play(t, "ec2", func(s *cloudService, after func(time.Duration) []wire.Notice) {
		at := time.Now().UTC().Truncate(time.Second).Add(2 * time.Hour)
		event := func(state string, at time.Time) string {
			return `{"Code":"system-reboot","State":"` + state + `","NotBefore":"` + at.Format("2 Jan 2006 15:04:05 GMT") + `"}`
		}
		s.set(ec2MaintenancePath, "["+event("completed", at.Add(-3*time.Hour))+","+event("active", at)+"]")
		expect(t, "far ahead", after(50*time.Minute))
		expect(t, "near", after(11*time.Minute), wire.Notice{Kind: wire.NoticeMaintenance, At: muster.At(at)})
		s.set(ec2MaintenancePath, "["+event("canceled", at)+"]")
		expect(t, "canceled", after(5*time.Second), wire.Notice{})
	})
}

func TestNoticesOfGoogle(t *testing.T) {
	play(t, "gce", func(s *cloudService, after func(time.Duration) []wire.Notice) {
		s.set(gcePreemptedPath, "FALSE")
		s.set(gceMaintenancePath, "NONE")
		expect(t, "nothing open", after(time.Minute))
		// A live migration is no notice.
		s.set(gceMaintenancePath, "MIGRATE_ON_HOST_MAINTENANCE")
		expect(t, "migration", after(time.Minute))
		next := time.Now().Add(time.Second)
		s.set(gceMaintenancePath, "TERMINATE_ON_HOST_MAINTENANCE")
		got := after(1500 * time.Millisecond)
		expect(t, "maintenance", got, wire.Notice{Kind: wire.NoticeMaintenance, At: muster.At(next.Add(gceMaintenanceIn))})
		// Its time is that of the first sign, however often it is read.
		expect(t, "again", after(20*time.Second))
		s.set(gcePreemptedPath, "TRUE\n")
		if got := after(time.Second); len(got) != 1 || got[0].Kind != wire.NoticeTaken {
			t.Errorf("preempted: %+v", got)
		}
	})
}

func TestNoticesOfAzure(t *testing.T) {
	play(t, "azure", func(s *cloudService, after func(time.Duration) []wire.Notice) {
		s.set(azureNamePath, "muster-1\n")
		s.set(azureEventsPath, `{"DocumentIncarnation":1,"Events":[]}`)
		expect(t, "nothing open", after(time.Minute))
		at := time.Now().UTC().Truncate(time.Second).Add(40 * time.Second)
		event := func(kind, name, at string) string {
			return `{"Events":[{"EventType":"` + kind + `","Resources":["` + name + `"],"NotBefore":"` + at + `"}]}`
		}
		when := at.Format("Mon, 02 Jan 2006 15:04:05 GMT")
		s.set(azureEventsPath, event("Preempt", "another", when))
		expect(t, "another machine's", after(3*time.Second))
		s.set(azureEventsPath, event("Freeze", "muster-1", when))
		expect(t, "frozen for seconds", after(3*time.Second))
		s.set(azureEventsPath, event("Preempt", "Muster-1", when))
		taken := wire.Notice{Kind: wire.NoticeTaken, At: muster.At(at)}
		expect(t, "evicted", after(time.Second), taken)
		// Once it has begun, the event says no time.
		s.set(azureEventsPath, event("Preempt", "muster-1", ""))
		expect(t, "begun", after(time.Minute))
		s.set(azureEventsPath, event("Redeploy", "muster-1", when))
		expect(t, "redeployed", after(time.Second), wire.Notice{Kind: wire.NoticeMaintenance, At: muster.At(at)})
	})
}

// A redirect is not followed, and an answer that is too long is no answer.
func TestOtherAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == gcePreemptedPath {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			return
		}
		_, _ = w.Write(make([]byte, maxAnswer+1))
	}))
	defer server.Close()
	w, err := New(Config{Kind: "gce", Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	g := &gce{service: &service{address: server.URL, client: w.client}}
	for _, path := range []string{gcePreemptedPath, gceMaintenancePath} {
		if b, err := g.get(t.Context(), path); err == nil {
			t.Errorf("%s: %d bytes", path, len(b))
		}
	}
}

func TestKinds(t *testing.T) {
	for _, kind := range []string{"ec2", "gce", "azure", "hetzner", "openstack", ""} {
		if _, err := New(Config{Kind: kind}); (err == nil) != Serves(kind) {
			t.Errorf("%q: %v", kind, err)
		}
	}
}
