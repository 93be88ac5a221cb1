package clitest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/musterhq/muster/api"
)

// What tests tell.

// Do changes the server with its lock held, and wakes all requests that wait. Fields are read in it
// too while a command runs.
func (s *Server) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changeLocked()
}

// allocID is the id of an attempt of a member. It has the form of a real one, which commands tell
// from a job's name.
func allocID(index, attempt int) string { return fmt.Sprintf("u-%d-%d", index, attempt) }

// Start makes an attempt of a member run, and says so in an event.
func (s *Server) Start(index, attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	al := &api.Alloc{ID: allocID(index, attempt), Namespace: s.Job.Namespace, Job: s.Job.Name, JobUID: s.Job.UID, Version: s.Job.Version, Index: index, Attempt: attempt, Node: "n1", Desired: "run", Status: "running", Placed: now, Started: &now}
	al.Output.State = "open"
	s.Allocs = append(s.Allocs, al)
	// A second attempt of a member does not wait for the first time.
	s.Job.Counts.Waiting = max(s.Job.Counts.Waiting-1, 0)
	s.Job.Counts.Running++
	c := *al
	s.EventLocked(api.Event{Type: "alloc.running", Text: "runs", AllocNow: &c})
}

// Print adds to an attempt's output. Readers that follow see it at once.
func (s *Server) Print(index, attempt int, stream, text string) {
	s.Do(func() {
		k := allocID(index, attempt) + "/" + stream
		if s.output[k] == nil {
			s.output[k] = &bytes.Buffer{}
		}
		s.output[k].WriteString(text)
	})
}

// End ends an attempt: with an exit code, or otherwise if change says so. Its output is complete
// then.
func (s *Server) End(index, attempt, code int, change ...func(al *api.Alloc)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, al := range s.Allocs {
		if al.ID != allocID(index, attempt) {
			continue
		}
		now := time.Now()
		al.Status, al.Outcome, al.ExitCode, al.Ended = "ended", "succeeded", &code, &now
		if code != 0 {
			al.Outcome = "failed"
			al.Failure = &api.Failure{Class: "user", Reason: "exit", Message: fmt.Sprintf("exit code %d", code)}
		}
		// The sizes are known then, as from a node.
		al.Output.State = "complete"
		for stream, n := range map[string]*int64{"stdout": &al.Output.StdoutBytes, "stderr": &al.Output.StderrBytes} {
			if b := s.output[al.ID+"/"+stream]; b != nil {
				*n = int64(b.Len())
			}
		}
		for _, f := range change {
			f(al)
		}
		s.Job.Counts.Running--
		c := *al
		s.EventLocked(api.Event{Type: "alloc.ended", Text: "ended", AllocNow: &c})
		return
	}
	s.t.Errorf("no attempt %d of member %d", attempt, index)
}

// EndJob ends the job with an outcome and a reason. Counts are those of the newest attempts.
func (s *Server) EndJob(outcome, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.Job.Stage, s.Job.Outcome, s.Job.Reason, s.Job.Ended = "ended", outcome, reason, &now
	// The counts are recomputed from the outcomes of the attempts.
	s.Job.Counts = api.JobCounts{}
	for _, al := range s.Allocs {
		switch al.Outcome {
		case "succeeded":
			s.Job.Counts.Succeeded++
		case "failed":
			s.Job.Counts.Failed++
		}
	}
	s.EventLocked(api.Event{Type: "job.ended", Text: "ended", JobNow: s.Job})
}

// Kill takes the server away in the middle of all that it does, until Back. Connections that wait
// are cut.
func (s *Server) Kill() { s.Do(func() { s.down, s.kills = true, s.kills+1 }) }

// Back lets the server answer again.
func (s *Server) Back() { s.Do(func() { s.down = false }) }

// AddJob makes the job web, of which so many members run. Commands that are left in their sandboxes
// are killed when the test ends.
func (s *Server) AddJob(members int) {
	s.Job = &api.Job{Namespace: "default", Name: "web", UID: "u", Version: 1, Count: members, Stage: "live", Spec: &api.JobSpec{}}
	for i := range members {
		s.Start(i, 1)
	}
	s.t.Cleanup(s.endCommands)
}

// AddMixedJob makes the job web of three members: 0 succeeded at its second attempt, 1 failed, 2
// runs. It declares two outputs.
func (s *Server) AddMixedJob() {
	spec := api.JobSpec{Name: "web", Count: 3, Template: api.Template{Command: []string{"sh", "-c", "echo 'hi'"}}, Outputs: []api.OutputSpec{{Path: "out"}, {Path: "log.txt"}}}
	spec.Defaults()
	s.Job = &api.Job{Namespace: "default", Name: "web", UID: "u", Version: 1, Count: 3, Stage: "live", Submitted: time.Now().Add(-3 * time.Minute), Spec: &spec, Priority: 50}
	s.Job.Counts.Waiting = 3
	s.Start(0, 1)
	s.Print(0, 1, "stdout", "old\n")
	s.End(0, 1, 1)
	// Its second attempt succeeds: only its output is shown by default.
	s.Start(0, 2)
	s.Print(0, 2, "stdout", "out0\n")
	s.Print(0, 2, "stderr", "err0\n")
	s.End(0, 2, 0)
	s.Start(1, 1)
	s.Print(1, 1, "stdout", "out1")
	s.End(1, 1, 2)
	s.Start(2, 1)
	s.Print(2, 1, "stdout", "out2\n")
}
