package client

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

// A claim that waits at a server which ceases to lead is repeated with the rest of its wait, under its
// key, also when that takes longer than other requests are repeated for.
func TestWaitingClaimOutlivesItsServer(t *testing.T) {
	var mu sync.Mutex
	var waits []time.Duration
	keys := map[string]bool{}
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q api.ClaimRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		mu.Lock()
		waits = append(waits, q.Wait.Std())
		keys[r.Header.Get("Idempotency-Key")] = true
		n := len(waits)
		mu.Unlock()
		switch {
		case n == 1:
			// It waits here for longer than the client is patient with a server that does not answer.
			<-time.After(1200 * time.Millisecond)
			w.Header().Set("Retry-After", "1")
			refuse(w, api.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Title: "t"})
		case n < 4:
			refuse(w, api.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Title: "t"})
		default:
			answer(w, http.StatusOK, api.Claim{ID: "c1"})
		}
	})).Patient(time.Second)
	got, err := c.Claim(t.Context(), api.ClaimRequest{Environment: "e", Wait: api.Duration(time.Minute)}, "")
	if err != nil || got.ID != "c1" {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(keys) != 1 || len(waits) != 4 || waits[0] != time.Minute || waits[3] > 58*time.Second || waits[3] < 30*time.Second {
		t.Errorf("keys %v, waits %v", keys, waits)
	}
}

// A server that serves no claim at all is given up as for every other request.
func TestClaimAtAServerThatServesNothing(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, api.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Title: "t"})
	})).Patient(200 * time.Millisecond)
	began := time.Now()
	if _, err := c.Claim(t.Context(), api.ClaimRequest{Environment: "e", Wait: api.Duration(time.Hour)}, ""); err == nil {
		t.Error("it has a claim")
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it gave up after %s", took)
	}
}
