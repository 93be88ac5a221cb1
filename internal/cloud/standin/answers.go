package standin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
)

// Answers are answers that were prepared for calls to come, each for the first one of its kind. What a
// kind is called is the stand-in's choice. The zero value has none.
type Answers struct {
	mu   sync.Mutex
	next []prepared
}

type prepared struct {
	call string
	// done: what the call asks for is done first.
	done   bool
	answer http.HandlerFunc
}

// Refuse answers the next call of this kind so. An empty body is that of a proxy.
func (a *Answers) Refuse(call string, status int, header http.Header, body string) {
	a.push(prepared{call: call, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for k := range header {
			w.Header().Set(k, header.Get(k))
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}})
}

// Lose does what the next call of this kind asks for, and ends the connection without an answer.
func (a *Answers) Lose(call string) { a.push(prepared{call: call, done: true, answer: Lost}) }

func (a *Answers) push(p prepared) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = append(a.next, p)
}

// Answered gives the answer that was prepared for a call, which do would answer, and reports whether
// there was one.
func (a *Answers) Answered(call string, do http.HandlerFunc, w http.ResponseWriter, r *http.Request) bool {
	a.mu.Lock()
	i := slices.IndexFunc(a.next, func(p prepared) bool { return p.call == call })
	if i < 0 {
		a.mu.Unlock()
		return false
	}
	p := a.next[i]
	a.next = slices.Delete(a.next, i, i+1)
	a.mu.Unlock()
	if p.done {
		do(httptest.NewRecorder(), r)
	}
	p.answer(w, r)
	return true
}

// Lost ends a connection without an answer.
func Lost(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Proxy is the answer of something before the API.
func Proxy(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte("<html>unavailable</html>"))
}

// Truncated does what a call asks for, and answers with half of the answer.
func Truncated(do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	whole := httptest.NewRecorder()
	do(whole, r)
	w.Header().Set("Content-Type", whole.Header().Get("Content-Type"))
	w.WriteHeader(whole.Code)
	_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
}

// JSON answers with a value.
func JSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
