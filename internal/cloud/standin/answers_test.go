package standin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

func TestAnswers(t *testing.T) {
	var a Answers
	// A connection that ends without an answer says nothing of when its handler has ended.
	var done atomic.Int64
	do := func(w http.ResponseWriter, _ *http.Request) {
		done.Add(1)
		JSON(w, http.StatusOK, "whole")
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case a.Answered(r.URL.Path, do, w, r):
		case r.URL.Path == "/half":
			Truncated(do, w, r)
		case r.URL.Path == "/proxy":
			Proxy(w, r)
		default:
			do(w, r)
		}
	}))
	defer s.Close()
	a.Refuse("/a", http.StatusTeapot, http.Header{"Retry-After": {"7"}}, "no")
	a.Lose("/a")
	a.Refuse("/b", http.StatusConflict, nil, "")
	for _, row := range []struct {
		path, body string
		status     int
		done       int64
	}{
		{"/c", "\"whole\"\n", http.StatusOK, 1},
		{"/a", "no", http.StatusTeapot, 1},
		{"/a", "", 0, 2}, // lost, and done
		{"/a", "\"whole\"\n", http.StatusOK, 3},
		{"/b", "", http.StatusConflict, 3},
		{"/half", "\"who", http.StatusOK, 4},
		{"/proxy", "<html>unavailable</html>", http.StatusServiceUnavailable, 4},
	} {
		status, body := 0, ""
		// A POST, since a client repeats a GET whose connection ends without an answer.
		if answer, err := http.Post(s.URL+row.path, "", nil); err == nil {
			b, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			status, body = answer.StatusCode, string(b)
		}
		if status != row.status || body != row.body || done.Load() != row.done {
			t.Errorf("%s: %d %q, done %d times", row.path, status, body, done.Load())
		}
	}
}

func TestFake(t *testing.T) {
	var f Fake
	if _, err := f.Start("a", nil); err == nil || f.State("a") {
		t.Error("a machine without user data starts")
	}
	if at, err := f.Start("a", []byte("x")); err != nil || at != FakeAddress || !f.State("a") || len(f.Running()) != 1 {
		t.Errorf("%s, %v, %v", at, err, f.Running())
	}
	f.Stop("a")
	f.Stop("a")
	if f.State("a") || len(f.Running()) != 0 {
		t.Errorf("%v", f.Running())
	}
}
