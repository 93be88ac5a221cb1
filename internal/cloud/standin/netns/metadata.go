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

// metadata answers as EC2's metadata service does in its second version: no token, no answer.
type metadata struct {
	id        string
	notice    func(id string) (at time.Time, noticed bool)
	rebalance func(id string) (since time.Time, atRisk bool)

	mu     sync.Mutex
	tokens map[string]time.Time
}

// Header fields of the service's second version.
const (
	tokenTTL   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenField = "X-aws-ec2-metadata-token"
)

// ServeHTTP answers what agents ask for, and 404 to all else, as the service does for what it does not
// have.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		if m.notice == nil {
			break
		}
		if at, noticed := m.notice(m.id); noticed {
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
