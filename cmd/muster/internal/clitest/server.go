package clitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// Server answers as a server does, with what a test tells it. What a real server
// answers is tested by the scripts; here it can fail on cue.
type Server struct {
	t  *testing.T
	mu sync.Mutex

	changed   chan struct{} // closed and replaced at each change
	Index     uint64
	Job       *api.Job
	Allocs    []*api.Alloc
	Events    []api.Event
	Forgotten uint64 // events up to it are not kept
	output    map[string]*bytes.Buffer
	Uploads   map[string][]byte
	Tars      map[string][][]byte // by allocation
	Submitted []api.JobSubmission
	Stopped   []string // reasons
	down      bool
	OnSubmit  func(s *Server)
	OnStop    func(s *Server)
	url       string
	commands  func(*cli.App) *cobra.Command // makes what is run
	Inside    Sandbox
}

// Root makes the command muster with the commands of one package below it.
func Root(commands func(*cli.App) []*cobra.Command) func(*cli.App) *cobra.Command {
	return func(a *cli.App) *cobra.Command {
		root := a.Root()
		root.AddCommand(commands(a)...)
		return root
	}
}

// New is a stub for command lines of a root command.
func New(t *testing.T, commands func(*cli.App) *cobra.Command) *Server {
	s := &Server{t: t, commands: commands, changed: make(chan struct{}), Index: 10, output: map[string]*bytes.Buffer{}, Uploads: map[string][]byte{}, Tars: map[string][][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/server", func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, api.ServerInfo{Index: s.Index}) })
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		l := api.JobList{Jobs: []api.Job{}, Index: s.Index}
		if s.Job != nil {
			l.Jobs = append(l.Jobs, *s.Job)
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
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}", s.withJob(func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, s.Job) }))
	mux.HandleFunc("POST /v1/jobs/{ns}/{name}/stop", s.withJob(s.stop))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/members", s.withJob(s.members))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/allocations", s.withJob(s.jobAllocs))
	mux.HandleFunc("GET /v1/allocations/{id}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) { s.answer(w, 200, al) }))
	mux.HandleFunc("GET /v1/allocations/{id}/output/{stream}", s.withAlloc(s.read))
	mux.HandleFunc("GET /v1/allocations/{id}/outputs", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		l := api.OutputFileList{Files: []api.OutputFile{}}
		for i, b := range s.Tars[al.ID] {
			l.Files = append(l.Files, api.OutputFile{Path: s.Job.Spec.Outputs[i].Path, Size: int64(len(b))})
		}
		s.answer(w, 200, l)
	}))
	mux.HandleFunc("GET /v1/allocations/{id}/outputs/{n}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		_, _ = w.Write(s.Tars[al.ID][n])
	}))
	mux.HandleFunc("HEAD /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.Uploads[r.PathValue("digest")]; !ok {
			w.WriteHeader(404)
		}
	})
	mux.HandleFunc("PUT /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.Uploads[r.PathValue("digest")] = b
		s.answer(w, 201, api.Upload{Digest: r.PathValue("digest"), Size: int64(len(b))})
	})
	mux.HandleFunc("GET /v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		l := api.AllocList{Allocs: []api.Alloc{}}
		for _, al := range s.Allocs {
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

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Server) refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Status: status, Title: http.StatusText(status), Detail: detail})
}

func (s *Server) withJob(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.Job == nil || r.PathValue("name") != s.Job.Name || r.PathValue("ns") != s.Job.Namespace {
			s.refuse(w, 404, "job "+r.PathValue("name")+": not found")
			return
		}
		h(w, r)
	}
}

func (s *Server) withAlloc(h func(http.ResponseWriter, *http.Request, *api.Alloc)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, al := range s.Allocs {
			if al.ID == r.PathValue("id") {
				h(w, r, al)
				return
			}
		}
		s.refuse(w, 404, "allocation "+r.PathValue("id")+": not found")
	}
}

func (s *Server) submit(w http.ResponseWriter, r *http.Request) {
	var sub api.JobSubmission
	if err := json.NewDecoder(r.Body).Decode(&sub); err != nil || r.Header.Get("Idempotency-Key") == "" {
		s.t.Errorf("key %q, %v", r.Header.Get("Idempotency-Key"), err)
	}
	if problems := sub.Spec.Validate(); problems != nil {
		s.t.Errorf("submitted: %v", problems)
	}
	s.Submitted = append(s.Submitted, sub)
	unchanged := s.Job != nil
	if !unchanged {
		sub.Spec.Defaults()
		if sub.Spec.Name == "" {
			sub.Spec.Name = "run-1"
		}
		s.Job = &api.Job{Namespace: sub.Spec.Namespace, Name: sub.Spec.Name, UID: "u", Version: 1, Type: "batch", Count: sub.Spec.Count, Stage: "live", Submitted: time.Now(), Spec: &sub.Spec, Priority: *sub.Spec.Priority}
		s.Job.Counts.Waiting = s.Job.Count
		s.EventLocked(api.Event{Type: "job.live", JobNow: s.Job})
	}
	s.answer(w, 201, api.JobSubmitted{Namespace: s.Job.Namespace, Name: s.Job.Name, UID: "u", Version: s.Job.Version, Index: s.Index, Unchanged: unchanged})
	if s.OnSubmit != nil {
		go s.OnSubmit(s)
	}
}

func (s *Server) stop(w http.ResponseWriter, r *http.Request) {
	var b api.JobStop
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		s.t.Error(err)
	}
	s.Stopped = append(s.Stopped, b.Reason)
	if s.Job.Stage == "live" {
		s.Job.Stage = "stopping"
	}
	s.answer(w, 200, s.Job)
	if s.OnStop != nil {
		go s.OnStop(s)
	}
}

func (s *Server) members(w http.ResponseWriter, r *http.Request) {
	l := api.MemberList{Members: []api.Member{}, Index: s.Index}
	first, _ := strconv.Atoi(r.URL.Query().Get("after"))
	for i := first; i < s.Job.Count && i < first+2; i++ { // pages of two
		m := api.Member{Index: i, Status: "waiting"}
		for _, al := range s.Allocs {
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
		if i+1 < s.Job.Count {
			l.Next = strconv.Itoa(i + 1)
		} else {
			l.Next = ""
		}
	}
	s.answer(w, 200, l)
}

func (s *Server) jobAllocs(w http.ResponseWriter, r *http.Request) {
	l := api.AllocList{Allocs: []api.Alloc{}, Index: s.Index}
	for _, al := range s.Allocs {
		if index := r.URL.Query().Get("index"); index == "" || index == strconv.Itoa(al.Index) {
			l.Allocs = append(l.Allocs, *al)
		}
	}
	s.answer(w, 200, l)
}

// read gives a stream of output, and more as it comes.
func (s *Server) read(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
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
func (s *Server) tell(w http.ResponseWriter, r *http.Request) {
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
	if from < s.Forgotten && from != 0 {
		s.refuse(w, 410, fmt.Sprintf("kept from %d", s.Forgotten))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	for {
		for _, ev := range s.Events {
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
func (s *Server) waitLocked(r *http.Request) bool {
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

func (s *Server) cutLocked(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func (s *Server) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) EventLocked(ev api.Event) {
	s.Index++
	ev.Index, ev.ID, ev.Time = s.Index, fmt.Sprintf("%d.0", s.Index), time.Unix(1_700_000_000, 0)
	if ev.JobNow != nil {
		j := *ev.JobNow
		ev.JobNow = &j
	}
	s.Events = append(s.Events, ev)
	s.changeLocked()
}
