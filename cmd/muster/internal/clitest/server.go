package clitest

import (
	"bytes"
	"cmp"
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

// Server answers as a server of Muster does, with what a test tells it. Fields and methods that
// change it may be used while a command runs against it, inside of Do; before a command runs,
// fields may be set directly.
type Server struct {
	// t is the test. Handlers fail it when a command asks for what no command should.
	t  *testing.T
	mu sync.Mutex

	// changed is closed and replaced at each change: requests that wait look again then.
	changed chan struct{}
	// Index is the log index of the last change.
	Index uint64
	// Job is the only job that there is; nil for none.
	Job *api.Job
	// Allocs are its allocations, all attempts.
	Allocs []*api.Alloc
	// Events are all that have happened.
	Events []api.Event
	// Forgotten is up to which index events are not kept any more.
	Forgotten uint64
	// output is what was printed, by "ALLOC/STREAM".
	output map[string]*bytes.Buffer
	// Uploads are the files that were sent, by digest.
	Uploads map[string][]byte
	// Tars are archives of declared outputs, by allocation.
	Tars map[string][][]byte
	// Backup is what it sends as its backup.
	Backup []byte
	// HalfSent is called when the first half of an output has been sent, if it is not nil. The other
	// half follows when it returns.
	HalfSent func()
	// Submitted is what was submitted.
	Submitted []api.JobSubmission
	// Stopped are the reasons with which the job was stopped.
	Stopped []string
	// down says that the server is away: connections are closed without an answer.
	down bool
	// kills counts how often it went away: no connection outlives that.
	kills int
	// OnSubmit plays what follows a submission, in a goroutine of its own.
	OnSubmit func(s *Server)
	// OnStop plays what follows an order to stop, in a goroutine of its own.
	OnStop func(s *Server)
	// url is where it listens.
	url string
	// commands makes the root command of a command line.
	commands func(*cli.App) *cobra.Command
	// Inside is what the allocations are.
	Inside Sandbox
	// Config is the configuration of the server; nil: it does not tell.
	Config *api.ServerConfig
	// Applied is the configuration of the cluster; nil: there is none. Asked are the requests for another.
	Applied *api.AppliedConfig
	Asked   []api.ConfigApply
}

// Root makes the command muster with the commands of one package below it, for New.
func Root(commands func(*cli.App) []*cobra.Command) func(*cli.App) *cobra.Command {
	return func(a *cli.App) *cobra.Command {
		root := a.Root()
		root.AddCommand(commands(a)...)
		return root
	}
}

// New starts a server without jobs. It ends with the test. Root makes the root command of the
// command lines that are run against it.
func New(t *testing.T, commands func(*cli.App) *cobra.Command) *Server {
	s := &Server{t: t, commands: commands, changed: make(chan struct{}), Index: 10, output: map[string]*bytes.Buffer{}, Uploads: map[string][]byte{}, Tars: map[string][][]byte{}}
	mux := http.NewServeMux()
	// What is asked first by every command that submits: does the server answer?
	mux.HandleFunc("GET /v1/server", func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, api.ServerInfo{Index: s.Index}) })
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, r *http.Request) {
		if s.Config == nil {
			http.NotFound(w, r)
			return
		}
		s.answer(w, 200, s.Config)
	})
	mux.HandleFunc("GET /v1/config/applied", func(w http.ResponseWriter, r *http.Request) {
		if s.Applied == nil {
			s.refuse(w, 404, "no configuration is in force yet")
			return
		}
		s.answer(w, 200, s.Applied)
	})
	mux.HandleFunc("PUT /v1/config/applied", func(w http.ResponseWriter, r *http.Request) {
		var q api.ConfigApply
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			s.refuse(w, 400, err.Error())
			return
		}
		s.Asked = append(s.Asked, q)
		if q.IfVersion != nil && *q.IfVersion != s.Applied.Version {
			s.refuse(w, 409, "the configuration in force has another version")
			return
		}
		out := api.ConfigApplied{Version: s.Applied.Version, DryRun: q.DryRun, Changes: []api.ConfigChange{{Field: "pools[p]", From: "there", Warning: "ITS NODES ARE DRAINED"}}}
		if !q.DryRun {
			out.Version++
		}
		s.answer(w, 200, out)
	})
	s.jobs(mux)
	s.allocations(mux)
	s.uploads(mux)
	s.sandbox(mux)
	mux.HandleFunc("GET /v1/events", s.tell)
	mux.HandleFunc("GET /v1/backup", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(s.Backup) })
	// All requests take the lock here, and the server may be away for any of them.
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

// jobs answers about the job and its members, and takes submissions.
func (s *Server) jobs(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		l := api.JobList{Jobs: []api.Job{}, Index: s.Index}
		status := r.URL.Query().Get("status")
		if s.Job != nil && (status == "" || status == api.JobStatus(s.Job)) {
			l.Jobs = append(l.Jobs, *s.Job)
		}
		s.answer(w, 200, l)
	})
	mux.HandleFunc("POST /v1/jobs", s.submit)
	mux.HandleFunc("POST /v1/jobs/validate", func(w http.ResponseWriter, r *http.Request) {
		var sub api.JobSubmission
		if err := json.NewDecoder(r.Body).Decode(&sub); err != nil {
			s.t.Error(err)
		}
		// What fits is made up: up to four cores do.
		fits := sub.Spec.Resources.CPU <= 4
		s.answer(w, 200, api.JobValidation{Spec: sub.Spec, Problems: sub.Spec.Validate(), Fits: fits, Why: map[bool]string{true: "a member fits small", false: "cpu: 5 wanted, the largest offering has 4"}[fits]})
	})
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}", s.withJob(func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, s.Job) }))
	mux.HandleFunc("POST /v1/jobs/{ns}/{name}/stop", s.withJob(s.stop))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/members", s.withJob(s.members))
	mux.HandleFunc("GET /v1/jobs/{ns}/{name}/allocations", s.withJob(s.jobAllocs))
}

// allocations answers about allocations, what they have printed and what they have left.
func (s *Server) allocations(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/allocations/{id}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) { s.answer(w, 200, al) }))
	mux.HandleFunc("GET /v1/allocations/{id}/output/{stream}", s.withAlloc(s.read))
	// Outputs that were declared and did not arrive are not listed.
	mux.HandleFunc("GET /v1/allocations/{id}/outputs", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		l := api.OutputFileList{Files: []api.OutputFile{}}
		for i, b := range s.Tars[al.ID] {
			l.Files = append(l.Files, api.OutputFile{Path: s.Job.Spec.Outputs[i].Path, Size: int64(len(b))})
		}
		s.answer(w, 200, l)
	}))
	mux.HandleFunc("GET /v1/allocations/{id}/outputs/{n}", s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		b := s.Tars[al.ID][n]
		if s.HalfSent != nil {
			_, _ = w.Write(b[:len(b)/2])
			_ = http.NewResponseController(w).Flush()
			b = b[len(b)/2:]
			s.HalfSent()
		}
		_, _ = w.Write(b)
	}))
	// Those that live are what commands look through for names.
	mux.HandleFunc("GET /v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		l := api.AllocList{Allocs: []api.Alloc{}}
		for _, al := range s.Allocs {
			if al.Status != "ended" || r.URL.Query().Get("live") != "true" {
				l.Allocs = append(l.Allocs, *al)
			}
		}
		s.answer(w, 200, l)
	})
}

// uploads takes files, and says which there are. Digests are not checked: a wrong one would be
// asked for by that name.
func (s *Server) uploads(mux *http.ServeMux) {
	// A file that is there is not sent again.
	mux.HandleFunc("HEAD /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.Uploads[r.PathValue("digest")]; !ok {
			w.WriteHeader(404)
		}
	})
	mux.HandleFunc("PUT /v1/uploads/{digest}", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		s.Uploads[r.PathValue("digest")] = b
		s.answer(w, 201, api.Upload{Digest: r.PathValue("digest"), Size: int64(len(b))})
	})
}

// answer writes a value. Handlers run with the lock held, and those that wait let it go.
func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// refuse writes a problem without a code, as an older server does. Commands must tell from the
// status alone what it means.
func (s *Server) refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Status: status, Title: http.StatusText(status), Detail: detail})
}

// withJob calls a handler if the request names the job that there is.
func (s *Server) withJob(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A client of another job learns nothing of this one.
		if s.Job == nil || r.PathValue("name") != s.Job.Name || r.PathValue("ns") != s.Job.Namespace {
			s.refuse(w, 404, "job "+r.PathValue("name")+": not found")
			return
		}
		h(w, r)
	}
}

// withAlloc calls a handler with the allocation that the request names, whichever attempt that is.
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

// submit takes a submission. It fails the test if that is wrong, since commands check what they
// submit. A job that is there is left as it is.
func (s *Server) submit(w http.ResponseWriter, r *http.Request) {
	var sub api.JobSubmission
	if err := json.NewDecoder(r.Body).Decode(&sub); err != nil || r.Header.Get("Idempotency-Key") == "" {
		s.t.Errorf("key %q, %v", r.Header.Get("Idempotency-Key"), err)
	}
	if problems := sub.Spec.Validate(); problems != nil {
		s.t.Errorf("submitted: %v", problems)
	}
	s.Submitted = append(s.Submitted, sub)
	// One job is all that there is: a second submission is taken for the same.
	unchanged := s.Job != nil
	if !unchanged {
		sub.Spec.Defaults()
		sub.Spec.Name = cmp.Or(sub.Spec.Name, "run-1")
		s.Job = &api.Job{Namespace: sub.Spec.Namespace, Name: sub.Spec.Name, UID: "u", Version: 1, Type: "batch", Count: sub.Spec.Count, Stage: "live", Submitted: time.Now(), Spec: &sub.Spec, Priority: *sub.Spec.Priority}
		s.Job.Counts.Waiting = s.Job.Count
		s.EventLocked(api.Event{Type: "job.live", JobNow: s.Job})
	}
	s.answer(w, 201, api.JobSubmitted{Namespace: s.Job.Namespace, Name: s.Job.Name, UID: "u", Version: s.Job.Version, Index: s.Index, Unchanged: unchanged})
	// The answer is on its way, and what follows must not wait for the lock that is held here.
	if s.OnSubmit != nil {
		go s.OnSubmit(s)
	}
}

// stop takes an order to stop the job. The job stops when OnStop says so.
func (s *Server) stop(w http.ResponseWriter, r *http.Request) {
	var b api.JobStop
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		s.t.Error(err)
	}
	// The reason is what a test looks at.
	s.Stopped = append(s.Stopped, b.Reason)
	if s.Job.Stage == "live" {
		s.Job.Stage = "stopping"
	}
	s.answer(w, 200, s.Job)
	// What follows comes after the answer.
	if s.OnStop != nil {
		go s.OnStop(s)
	}
}

// members lists members in pages of two, so that every test with three of them reads a second page.
func (s *Server) members(w http.ResponseWriter, r *http.Request) {
	l := api.MemberList{Members: []api.Member{}, Index: s.Index}
	first, _ := strconv.Atoi(r.URL.Query().Get("after"))
	for i := first; i < s.Job.Count && i < first+2; i++ { // pages of two
		// A member without an attempt waits; otherwise its newest attempt says how it is.
		m := api.Member{Index: i, Status: "waiting"}
		for _, al := range s.Allocs {
			if al.Index == i {
				m.Alloc, m.Attempt, m.Status = al.ID, al.Attempt, "placed"
				if al.Outcome != "" {
					m.Status = al.Outcome
				}
			}
		}
		// A filter is applied after the page was chosen, so a page may be empty while there are
		// more.
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

// jobAllocs lists allocations of the job on one page.
func (s *Server) jobAllocs(w http.ResponseWriter, r *http.Request) {
	l := api.AllocList{Allocs: []api.Alloc{}, Index: s.Index}
	for _, al := range s.Allocs {
		// Without an index those of all members are meant.
		if index := r.URL.Query().Get("index"); index == "" || index == strconv.Itoa(al.Index) {
			l.Allocs = append(l.Allocs, *al)
		}
	}
	s.answer(w, 200, l)
}

// read sends a stream of output, and more as it comes, until the stream is complete.
func (s *Server) read(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
	b := s.output[al.ID+"/"+r.PathValue("stream")]
	if b == nil {
		b = &bytes.Buffer{}
		s.output[al.ID+"/"+r.PathValue("stream")] = b
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	// The last bytes are counted from what there is now, as a server counts them.
	if tail, err := strconv.Atoi(r.URL.Query().Get("tail")); err == nil {
		offset = max(b.Len()-tail, 0)
	}
	// Where the stream begins is in a header, where it ends too if that is known already.
	w.Header().Set("Muster-Output-Start", strconv.Itoa(offset))
	if al.Output.State != "open" {
		w.Header().Set("Muster-Output-End", strconv.Itoa(b.Len()))
	}
	w.Header().Set("Muster-Output-State", al.Output.State)
	w.WriteHeader(200)
	for {
		// The bytes are copied, because the buffer may grow while they are written.
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

// tell sends events, and more as they come. After each batch it sends the position alone, as a
// server does.
func (s *Server) tell(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	// A wrong position is refused by its field, as the API does.
	if q.Get("after") == "bogus" {
		s.problem(w, &api.Problem{Status: 422, Title: "Unprocessable Entity", Detail: "the request is wrong in one field", Code: "invalid", Errors: []api.ProblemField{
			{Location: "query.after", Message: `is "bogus"; give the id of an event, an index, or oldest`}}})
		return
	}
	// Events of what does not exist are none, and no error.
	unknown := slices.Contains([]string{q.Get("namespace"), q.Get("job"), q.Get("node")}, "nope")
	after, _, _ := strings.Cut(strings.ReplaceAll(r.URL.Query().Get("after"), "oldest", "0"), ".")
	from, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		s.t.Errorf("after: %v", err)
	}
	// Events that were dropped have an error of their own: the client must start over with a list.
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

// waitLocked waits for a change with the lock released; false when the request or the server is
// over.
func (s *Server) waitLocked(r *http.Request) bool {
	// The channel is read with the lock held: a change after that closes it.
	changed, kills := s.changed, s.kills
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-r.Context().Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// It may be back already when this goroutine runs.
	return !s.down && s.kills == kills
}

// cutLocked closes a connection in the middle of an answer: the client cannot take that for the
// end.
func (s *Server) cutLocked(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// changeLocked wakes all requests that wait.
func (s *Server) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) EventLocked(ev api.Event) {
	// Each event has an index of its own, as if each were a fact.
	s.Index++
	ev.Index, ev.ID, ev.Time = s.Index, fmt.Sprintf("%d.0", s.Index), time.Unix(1_700_000_000, 0)
	if ev.JobNow != nil {
		j := *ev.JobNow
		ev.JobNow = &j
	}
	s.Events = append(s.Events, ev)
	s.changeLocked()
}
