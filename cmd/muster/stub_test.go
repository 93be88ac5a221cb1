package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// stub answers as a server does, with what a test tells it. What a real server
// answers is tested by the scripts; here it can fail on cue.
type stub struct {
	t  *testing.T
	mu sync.Mutex

	changed   chan struct{} // closed and replaced at each change
	index     uint64
	job       *api.Job
	allocs    []*api.Alloc
	events    []api.Event
	forgotten uint64 // events up to it are not kept
	output    map[string]*bytes.Buffer
	uploads   map[string][]byte
	tars      map[string][][]byte // by allocation
	submitted []api.JobSubmission
	stopped   []string // reasons
	down      bool
	onSubmit  func(s *stub)
	onStop    func(s *stub)
	url       string
	commands  func(*cli.App) *cobra.Command // makes what is run
	inside    sandboxStub
}

// newServer is a stub for command lines of a root command.
func newServer(t *testing.T, commands func(*cli.App) *cobra.Command) *stub {
	s := &stub{t: t, commands: commands, changed: make(chan struct{}), index: 10, output: map[string]*bytes.Buffer{}, uploads: map[string][]byte{}, tars: map[string][][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/server", func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, api.ServerInfo{Index: s.index}) })
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		l := api.JobList{Jobs: []api.Job{}, Index: s.index}
		if s.job != nil {
			l.Jobs = append(l.Jobs, *s.job)
		}
		s.answer(w, 200, l)
	})
	mux.HandleFunc("POST /v1/jobs", s.submit)
	mux.HandleFunc("POST /v1/jobs/validate", func(w http.ResponseWriter, r *http.Request) {
		var sub api.JobSubmission
		if err := json.NewDecoder(r.Body).Decode(&sub); err != nil {
			t.Error(err)
		}
		fits := sub.Spec.Resources.CPU <= 4
		s.answer(w, 200, api.JobValidation{Spec: sub.Spec, Problems: sub.Spec.Validate(), Fits: fits, Why: map[bool]string{true: "a member fits small", false: "cpu: 5 wanted, the largest offering has 4"}[fits]})
	})
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}", s.withJob(func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, s.job) }))
	mux.HandleFunc("POST /v1/jobs/{ns}/{name}/stop", s.withJob(s.stop))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/members", s.withJob(s.members))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/allocations", s.withJob(s.jobAllocs))
	mux.HandleFunc("GET /v1/allocations/{id}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) { s.answer(w, 200, al) }))
	mux.HandleFunc("GET /v1/allocations/{id}/output/{stream}", s.withAlloc(s.read))
	mux.HandleFunc("GET /v1/allocations/{id}/outputs", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		l := api.OutputFileList{Files: []api.OutputFile{}}
		for i, b := range s.tars[al.ID] {
			l.Files = append(l.Files, api.OutputFile{Path: s.job.Spec.Outputs[i].Path, Size: int64(len(b))})
		}
		s.answer(w, 200, l)
	}))
	mux.HandleFunc("GET /v1/allocations/{id}/outputs/{n}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		_, _ = w.Write(s.tars[al.ID][n])
	}))
	mux.HandleFunc("HEAD /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.uploads[r.PathValue("digest")]; !ok {
			w.WriteHeader(404)
		}
	})
	mux.HandleFunc("PUT /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.uploads[r.PathValue("digest")] = b
		s.answer(w, 201, api.Upload{Digest: r.PathValue("digest"), Size: int64(len(b))})
	})
	mux.HandleFunc("GET /v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		l := api.AllocList{Allocs: []api.Alloc{}}
		for _, al := range s.allocs {
			if al.Status != "ended" || r.URL.Query().Get("live") != "true" {
				l.Allocs = append(l.Allocs, *al)
			}
		}
		s.answer(w, 200, l)
	})
	s.sandbox(mux)
	mux.HandleFunc("GET /v1/events", s.tell)
	mux.HandleFunc("GET /v1/backup", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "a backup") })
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.down {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close()
			return
		}
		if r.Header.Get("Authorization") != "Bearer stub-token" {
			s.refuse(w, 401, "the token is missing or wrong")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	h.Start()
	t.Cleanup(h.Close)
	s.url = h.URL
	return s
}

// Handlers run with the lock held; those that wait let it go.

func (s *stub) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *stub) refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Status: status, Title: http.StatusText(status), Detail: detail})
}

func (s *stub) withJob(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.job == nil || r.PathValue("name") != s.job.Name || r.PathValue("ns") != s.job.Namespace {
			s.refuse(w, 404, "job "+r.PathValue("name")+": not found")
			return
		}
		h(w, r)
	}
}

func (s *stub) withAlloc(h func(http.ResponseWriter, *http.Request, *api.Alloc)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, al := range s.allocs {
			if al.ID == r.PathValue("id") {
				h(w, r, al)
				return
			}
		}
		s.refuse(w, 404, "allocation "+r.PathValue("id")+": not found")
	}
}

func (s *stub) submit(w http.ResponseWriter, r *http.Request) {
	var sub api.JobSubmission
	if err := json.NewDecoder(r.Body).Decode(&sub); err != nil || r.Header.Get("Idempotency-Key") == "" {
		s.t.Errorf("key %q, %v", r.Header.Get("Idempotency-Key"), err)
	}
	if problems := sub.Spec.Validate(); problems != nil {
		s.t.Errorf("submitted: %v", problems)
	}
	s.submitted = append(s.submitted, sub)
	unchanged := s.job != nil
	if !unchanged {
		sub.Spec.Defaults()
		if sub.Spec.Name == "" {
			sub.Spec.Name = "run-1"
		}
		s.job = &api.Job{Namespace: sub.Spec.Namespace, Name: sub.Spec.Name, UID: "u", Version: 1, Type: "batch", Count: sub.Spec.Count, Stage: "live", Submitted: time.Now(), Spec: &sub.Spec, Priority: *sub.Spec.Priority}
		s.job.Counts.Waiting = s.job.Count
		s.eventLocked(api.Event{Type: "job.live", JobNow: s.job})
	}
	s.answer(w, 201, api.JobSubmitted{Namespace: s.job.Namespace, Name: s.job.Name, UID: "u", Version: s.job.Version, Index: s.index, Unchanged: unchanged})
	if s.onSubmit != nil {
		go s.onSubmit(s)
	}
}

func (s *stub) stop(w http.ResponseWriter, r *http.Request) {
	var b api.JobStop
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		s.t.Error(err)
	}
	s.stopped = append(s.stopped, b.Reason)
	if s.job.Stage == "live" {
		s.job.Stage = "stopping"
	}
	s.answer(w, 200, s.job)
	if s.onStop != nil {
		go s.onStop(s)
	}
}

func (s *stub) members(w http.ResponseWriter, r *http.Request) {
	l := api.MemberList{Members: []api.Member{}, Index: s.index}
	first, _ := strconv.Atoi(r.URL.Query().Get("after"))
	for i := first; i < s.job.Count && i < first+2; i++ { // pages of two
		m := api.Member{Index: i, Status: "waiting"}
		for _, al := range s.allocs {
			if al.Index == i {
				m.Alloc, m.Attempt, m.Status = al.ID, al.Attempt, "placed"
				if al.Outcome != "" {
					m.Status = al.Outcome
				}
			}
		}
		if status := r.URL.Query().Get("status"); status == "" || status == m.Status {
			l.Members = append(l.Members, m)
		}
		if i+1 < s.job.Count {
			l.Next = strconv.Itoa(i + 1)
		} else {
			l.Next = ""
		}
	}
	s.answer(w, 200, l)
}

func (s *stub) jobAllocs(w http.ResponseWriter, r *http.Request) {
	l := api.AllocList{Allocs: []api.Alloc{}, Index: s.index}
	for _, al := range s.allocs {
		if index := r.URL.Query().Get("index"); index == "" || index == strconv.Itoa(al.Index) {
			l.Allocs = append(l.Allocs, *al)
		}
	}
	s.answer(w, 200, l)
}

// read gives a stream of output, and more as it comes.
func (s *stub) read(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
	b := s.output[al.ID+"/"+r.PathValue("stream")]
	if b == nil {
		b = &bytes.Buffer{}
		s.output[al.ID+"/"+r.PathValue("stream")] = b
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	if tail, err := strconv.Atoi(r.URL.Query().Get("tail")); err == nil {
		offset = max(b.Len()-tail, 0)
	}
	w.Header().Set("Muster-Output-Start", strconv.Itoa(offset))
	if al.Output.State != "open" {
		w.Header().Set("Muster-Output-End", strconv.Itoa(b.Len()))
	}
	w.Header().Set("Muster-Output-State", al.Output.State)
	w.WriteHeader(200)
	for {
		part := bytes.Clone(b.Bytes()[offset:])
		offset += len(part)
		if _, err := w.Write(part); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		if al.Output.State != "open" || r.URL.Query().Get("follow") != "true" {
			return
		}
		if !s.waitLocked(r) {
			s.cutLocked(w)
			return
		}
	}
}

// tell gives events, and more as they come.
func (s *stub) tell(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("after") == "bogus" {
		s.problem(w, &api.Problem{Status: 422, Title: "Unprocessable Entity", Detail: "the request is wrong in one field", Code: "invalid", Errors: []api.ProblemField{
			{Location: "query.after", Message: `is "bogus"; give the id of an event, an index, or oldest`}}})
		return
	}
	unknown := slices.Contains([]string{q.Get("namespace"), q.Get("job"), q.Get("node")}, "nope")
	after, _, _ := strings.Cut(strings.ReplaceAll(r.URL.Query().Get("after"), "oldest", "0"), ".")
	from, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		s.t.Errorf("after: %v", err)
	}
	if from < s.forgotten && from != 0 {
		s.refuse(w, 410, fmt.Sprintf("kept from %d", s.forgotten))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	for {
		for _, ev := range s.events {
			if ev.Index <= from || unknown {
				continue
			}
			from = ev.Index
			b, err := json.Marshal(ev)
			if err != nil {
				s.t.Error(err)
			}
			_, _ = fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", ev.ID, ev.Type, b)
		}
		_, _ = fmt.Fprintf(w, "id: %d.0\n\n", from)
		_ = http.NewResponseController(w).Flush()
		if r.URL.Query().Get("follow") == "false" {
			return
		}
		if !s.waitLocked(r) {
			s.cutLocked(w)
			return
		}
	}
}

// waitLocked waits for a change with the lock let go; false when the request or the server is over.
func (s *stub) waitLocked(r *http.Request) bool {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-r.Context().Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.down
}

func (s *stub) cutLocked(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func (s *stub) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stub) eventLocked(ev api.Event) {
	s.index++
	ev.Index, ev.ID, ev.Time = s.index, fmt.Sprintf("%d.0", s.index), time.Unix(1_700_000_000, 0)
	if ev.JobNow != nil {
		j := *ev.JobNow
		ev.JobNow = &j
	}
	s.events = append(s.events, ev)
	s.changeLocked()
}

// What tests tell.

func (s *stub) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changeLocked()
}

func allocID(index, attempt int) string { return fmt.Sprintf("u-%d-%d", index, attempt) }

// start makes an attempt of a member run.
func (s *stub) start(index, attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	al := &api.Alloc{ID: allocID(index, attempt), Namespace: s.job.Namespace, Job: s.job.Name, JobUID: s.job.UID, Version: s.job.Version, Index: index, Attempt: attempt, Node: "n1", Desired: "run", Status: "running", Placed: now, Started: &now}
	al.Output.State = "open"
	s.allocs = append(s.allocs, al)
	s.job.Counts.Waiting = max(s.job.Counts.Waiting-1, 0)
	s.job.Counts.Running++
	c := *al
	s.eventLocked(api.Event{Type: "alloc.running", Text: "runs", AllocNow: &c})
}

func (s *stub) print(index, attempt int, stream, text string) {
	s.do(func() {
		k := allocID(index, attempt) + "/" + stream
		if s.output[k] == nil {
			s.output[k] = &bytes.Buffer{}
		}
		s.output[k].WriteString(text)
	})
}

// end ends an attempt: with an exit code, or otherwise if change says so.
func (s *stub) end(index, attempt, code int, change ...func(al *api.Alloc)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, al := range s.allocs {
		if al.ID != allocID(index, attempt) {
			continue
		}
		now := time.Now()
		al.Status, al.Outcome, al.ExitCode, al.Ended = "ended", "succeeded", &code, &now
		if code != 0 {
			al.Outcome = "failed"
			al.Failure = &api.Failure{Class: "user", Reason: "exit", Message: fmt.Sprintf("exit code %d", code)}
		}
		al.Output.State = "complete"
		for stream, n := range map[string]*int64{"stdout": &al.Output.StdoutBytes, "stderr": &al.Output.StderrBytes} {
			if b := s.output[al.ID+"/"+stream]; b != nil {
				*n = int64(b.Len())
			}
		}
		for _, f := range change {
			f(al)
		}
		s.job.Counts.Running--
		c := *al
		s.eventLocked(api.Event{Type: "alloc.ended", Text: "ended", AllocNow: &c})
		return
	}
	s.t.Errorf("no attempt %d of member %d", attempt, index)
}

// endJob ends the job.
func (s *stub) endJob(outcome, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.job.Stage, s.job.Outcome, s.job.Reason, s.job.Ended = "ended", outcome, reason, &now
	s.job.Counts = api.JobCounts{}
	for _, al := range s.allocs {
		switch al.Outcome {
		case "succeeded":
			s.job.Counts.Succeeded++
		case "failed":
			s.job.Counts.Failed++
		}
	}
	s.eventLocked(api.Event{Type: "job.ended", Text: "ended", JobNow: s.job})
}

// kill takes the server away in the middle of all it does, for a while.
func (s *stub) kill() { s.do(func() { s.down = true }) }

func (s *stub) back() { s.do(func() { s.down = false }) }

// tarOf packs files.
func tarOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		h := headers[i]
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = h.Uname // its content, for short
			h.Size, h.Uname = int64(len(content)), ""
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// result is what a command came to.
type result struct {
	code           int
	stdout, stderr string
}

// muster runs a command line against the stub. Signals, if not nil, stand for the process's.
func (s *stub) muster(signals chan os.Signal, args ...string) result {
	return s.fed(strings.NewReader(""), signals, args...)
}

// fed is muster with a stdin.
func (s *stub) fed(stdin io.Reader, signals chan os.Signal, args ...string) result {
	var out, errs lockedBuffer
	a := &cli.App{Stdin: stdin, Stdout: &out, Stderr: &errs, Signals: signals}
	code := s.execute(a, args...)
	return result{code, out.String(), errs.String()}
}

// execute runs a command line of an app that the test has made.
func (s *stub) execute(a *cli.App, args ...string) int {
	if a.Signals == nil {
		a.Signals = make(chan os.Signal, 4)
	}
	return a.Execute(s.commands(a), append([]string{"--addr", s.url, "--token", "stub-token"}, args...))
}

// lockedBuffer is a buffer for writers that are several.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// addJob makes the job web, of which so many members run.
func (s *stub) addJob(members int) {
	s.job = &api.Job{Namespace: "default", Name: "web", UID: "u", Version: 1, Count: members, Stage: "live", Spec: &api.JobSpec{}}
	for i := range members {
		s.start(i, 1)
	}
	s.t.Cleanup(s.endCommands)
}

// addMixedJob makes the job web of three members: 0 succeeded at its second attempt, 1 failed, 2 runs.
func (s *stub) addMixedJob() {
	spec := api.JobSpec{Name: "web", Count: 3, Template: api.Template{Command: []string{"sh", "-c", "echo 'hi'"}}, Outputs: []api.OutputSpec{{Path: "out"}, {Path: "log.txt"}}}
	spec.Defaults()
	s.job = &api.Job{Namespace: "default", Name: "web", UID: "u", Version: 1, Count: 3, Stage: "live", Submitted: time.Now().Add(-3 * time.Minute), Spec: &spec, Priority: 50}
	s.job.Counts.Waiting = 3
	s.start(0, 1)
	s.print(0, 1, "stdout", "old\n")
	s.end(0, 1, 1)
	s.start(0, 2)
	s.print(0, 2, "stdout", "out0\n")
	s.print(0, 2, "stderr", "err0\n")
	s.end(0, 2, 0)
	s.start(1, 1)
	s.print(1, 1, "stdout", "out1")
	s.end(1, 1, 2)
	s.start(2, 1)
	s.print(2, 1, "stdout", "out2\n")
}
