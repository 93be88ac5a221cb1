package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/state"
)

// TestClient lets the Go client, by which the CLI asks, meet the real API.
func TestClient(t *testing.T) {
	b := newBench(t, 1000)
	srv := b.serve()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(client.Config{Address: srv.URL, Token: muster.NewSecret(token), HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.WaitReady(ctx))

	content := "input"
	digest := digestOf(content)
	has, err := c.HasUpload(ctx, digest)
	if must(err); has {
		t.Error("has what was never sent")
	}
	open := func(s string) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
	}
	up, err := c.Upload(ctx, digest, int64(len(content)), open(content))
	if must(err); up.Size != 5 {
		t.Errorf("%+v", up)
	}
	_, err = c.Upload(ctx, digestOf(""), 0, open(""))
	must(err)
	if has, err = c.HasUpload(ctx, digest); err != nil || !has {
		t.Errorf("%v %v", has, err)
	}

	// Every field, and again as the server shows it: what it says must be what it takes.
	text := "text"
	priority := 7
	spec := api.JobSpec{
		Name: "j", Namespace: "team", Type: "batch", Count: 2, Template: api.Template{Priority: &priority, Command: []string{"sh", "-c", "exit 0"}, Image: "a/b:c", Env: map[string]string{"A": "<&>\u2028 \x01"}, Workdir: "/tmp", Resources: api.ResourcesSpec{CPU: 0.5, Memory: 1 << 20, Disk: 1}, KillGrace: api.Duration(time.Millisecond), Constraints: []api.ConstraintSpec{{Attribute: "os", Op: "in", Values: []string{"linux"}}}, Pool: "p", Inputs: []api.InputSpec{{Path: "a", Content: &text}, {Path: "b", Digest: digest, Mode: "0755"}}},
		Restart: api.RestartSpec{Attempts: 2, On: []string{"1-3", "timeout"}, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)},
		Timeout: api.Duration(90 * time.Second), Outputs: []api.OutputSpec{{Path: "o", Optional: true}}, OutputLimit: 1 << 20,
	}
	v, err := c.Validate(ctx, api.JobSubmission{Spec: spec})
	if must(err); len(v.Problems) > 0 || !v.Fits {
		t.Errorf("%+v", v)
	}
	key := client.NewKey()
	s, err := c.Submit(ctx, api.JobSubmission{Spec: spec}, key)
	must(err)
	again, err := c.Submit(ctx, api.JobSubmission{Spec: spec}, key)
	if must(err); again.UID != s.UID || !again.Unchanged {
		t.Errorf("%+v", again)
	}
	jobKey := muster.JobKey{Namespace: "team", Name: "j"}
	j, err := c.Job(ctx, jobKey)
	must(err)
	if j.Spec.Env["A"] != spec.Env["A"] || *j.Spec.Inputs[0].Content != text {
		t.Errorf("%+v", j.Spec)
	}
	again, err = c.Submit(ctx, api.JobSubmission{Spec: *j.Spec}, client.NewKey())
	if must(err); !again.Unchanged {
		t.Errorf("the spec as shown is not the spec as taken: %+v", again)
	}
	_, err = c.Submit(ctx, api.JobSubmission{Spec: api.JobSpec{Name: "j", Namespace: "team", Template: api.Template{Command: []string{"x"}}}}, client.NewKey())
	if !client.IsConflict(err) {
		t.Errorf("%v", err)
	}
	var p *api.Problem
	if _, err = c.Submit(ctx, api.JobSubmission{}, client.NewKey()); !errors.As(err, &p) || p.Status != 422 || len(p.Errors) != 1 || p.Errors[0].Location != "body.spec.command" {
		t.Errorf("%v", err)
	}
	if _, err = c.Job(ctx, muster.JobKey{Name: "nope"}); !client.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	none, err := client.New(client.Config{Address: srv.URL, HTTPClient: &http.Client{Transport: transport}})
	must(err)
	if _, err = none.Server(ctx); !client.IsAuth(err) {
		t.Errorf("%v", err)
	}

	b.node("n1")
	id := b.place(muster.JobUID(s.UID), "n1", 0, 1)[0]
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning})
	all := bytes.Repeat([]byte("0123456789"), 20_000)
	stream := b.nodes.stream(id, "stdout")
	stream.update(func() { stream.breakAfter = 70_000 })
	stream.write(string(all[:100_000]))
	out, err := c.Output(ctx, client.OutputQuery{Alloc: id, Stream: client.Stdout, Follow: true})
	must(err)
	done := make(chan []byte)
	go func() {
		read, err := io.ReadAll(out)
		if err != nil {
			t.Error(err)
		}
		done <- read
	}()
	stream.write(string(all[100_000:]))
	stream.end()
	if read := <-done; !bytes.Equal(read, all) {
		t.Errorf("%d bytes of %d", len(read), len(all))
	}
	must(out.Close())

	var kinds []string
	for ev, err := range c.Events(ctx, client.EventQuery{After: "oldest", Namespace: "team", Job: "j"}) {
		must(err)
		kinds = append(kinds, ev.Type)
		if ev.Type == "alloc.running" {
			break
		}
	}
	if got := strings.Join(kinds, " "); got != "job.submitted alloc.placed alloc.running" {
		t.Errorf("%s", got)
	}
	n := 0
	for _, err := range c.AllMembers(ctx, jobKey, client.MemberQuery{Limit: 1}) {
		must(err)
		n++
	}
	if n != 2 {
		t.Errorf("%d members", n)
	}
	stopped, err := c.Stop(ctx, jobKey, "enough")
	if must(err); stopped.Stage != "stopping" {
		t.Errorf("%+v", stopped)
	}
	backup, err := c.Backup(ctx)
	must(err)
	if got, err := io.ReadAll(backup); err != nil || string(got) != "backup\x00" {
		t.Errorf("%q %v", got, err)
	}
	must(backup.Close())
}
