package netns

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Service is whose metadata service a machine has.
type Service string

// The services that are known.
const (
	EC2   Service = "ec2"
	GCE   Service = "gce"
	Azure Service = "azure"
)

// metadata answers as the metadata service of a cloud does, as far as agents ask.
type metadata struct {
	id        string
	notice    func(id string) (at time.Time, noticed bool)
	rebalance func(id string) (since time.Time, atRisk bool)
	answer    http.HandlerFunc

	mu sync.Mutex
	// tokens are those of EC2's service, and until when they hold.
	tokens map[string]time.Time
}

// newMetadata is the service of one machine.
func newMetadata(cfg Config, id string) *metadata {
	m := &metadata{id: id, notice: cfg.Notice, rebalance: cfg.Rebalance, tokens: map[string]time.Time{}}
	switch cfg.Service {
	case GCE:
		m.answer = m.gce
	case Azure:
		m.answer = m.azure
	default:
		m.answer = m.ec2
	}
	return m
}

// ServeHTTP answers what agents ask for, and 404 to all else, as the services do for what they do not
// have.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.answer(w, r) }

// noticed says when the machine will be taken, if it will.
func (m *metadata) noticed() (at time.Time, noticed bool) {
	if m.notice == nil {
		return at, false
	}
	return m.notice(m.id)
}

// Header fields of the second version of EC2's service.
const (
	tokenTTL   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenField = "X-aws-ec2-metadata-token"
)

// ec2 is EC2's service in its second version: no token, no answer.
func (m *metadata) ec2(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" {
		m.makeToken(w, r)
		return
	}
	// Version 2 only: a request without a token is what reaches the service through a careless proxy, and
	// instances are launched so that it is refused.
	m.mu.Lock()
	until, ok := m.tokens[r.Header.Get(tokenField)]
	m.mu.Unlock()
	if !ok || time.Now().After(until) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/latest/meta-data/instance-id":
		_, _ = w.Write([]byte(m.id))
		return
	case "/latest/meta-data/spot/instance-action":
		if at, noticed := m.noticed(); noticed {
			_ = json.NewEncoder(w).Encode(map[string]string{"action": "terminate", "time": at.UTC().Format(time.RFC3339)})
			return
		}
	case "/latest/meta-data/events/recommendations/rebalance":
		if m.rebalance == nil {
			break
		}
		if since, atRisk := m.rebalance(m.id); atRisk {
			_ = json.NewEncoder(w).Encode(map[string]string{"noticeTime": since.UTC().Format(time.RFC3339)})
			return
		}
	}
	// A reader must not take it for a failure, nor a failure for it.
	// 404 is how the service says that there is no notice.
	w.WriteHeader(http.StatusNotFound)
}

// makeToken gives a token for as long as the caller wants it.
func (m *metadata) makeToken(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.Header.Get(tokenTTL))
	// Six hours are the longest that the service gives.
	if err != nil || seconds < 1 || seconds > 21600 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	token := rand.Text()
	m.mu.Lock()
	m.tokens[token] = time.Now().Add(time.Duration(seconds) * time.Second)
	m.mu.Unlock()
	w.Header().Set(tokenTTL, strconv.Itoa(seconds))
	_, _ = w.Write([]byte(token))
}

// gce is the service of Compute Engine. It says that an instance is being preempted, and not when.
func (m *metadata) gce(w http.ResponseWriter, r *http.Request) {
	const field, value = "Metadata-Flavor", "Google"
	if r.Header.Get(field) != value {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set(field, value)
	switch r.URL.Path {
	case "/computeMetadata/v1/instance/preempted":
		text := "FALSE"
		if _, noticed := m.noticed(); noticed {
			text = "TRUE"
		}
		_, _ = w.Write([]byte(text))
	case "/computeMetadata/v1/instance/maintenance-event":
		_, _ = w.Write([]byte("NONE"))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// azure is Azure's service: scheduled events, and the machine's name, by which it finds its own.
func (m *metadata) azure(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	switch r.URL.Path {
	case "/metadata/instance/compute/name":
		_, _ = w.Write([]byte(m.id))
	case "/metadata/scheduledevents":
		events := []any{}
		if at, noticed := m.noticed(); noticed {
			events = append(events, map[string]any{"EventId": "1", "EventStatus": "Scheduled", "EventType": "Preempt", "ResourceType": "VirtualMachine",
				"Resources": []string{m.id}, "NotBefore": at.UTC().Format(http.TimeFormat), "EventSource": "Platform", "DurationInSeconds": -1})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"DocumentIncarnation": 1 + len(events), "Events": events})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// listenInside listens in a network namespace. The thread that enters it is never used for anything
// else: it ends with its goroutine.
func listenInside(ctx context.Context, namespace, address string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine, so no other one ever runs in the
		// namespace.
		runtime.LockOSThread()
		f, err := os.Open("/run/netns/" + namespace)
		if err != nil {
			done <- result{err: err}
			return
		}
		err = errors.Join(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET), f.Close())
		if err != nil {
			done <- result{err: err}
			return
		}
		var c net.ListenConfig
		// The socket stays in the namespace in which it was made, whichever thread accepts on it.
		l, err := c.Listen(ctx, "tcp4", address)
		done <- result{l, err}
	}()
	r := <-done
	return r.l, r.err
}
