package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/state"
)

const simple = `{"spec":{"name":"sim","command":["true"]}}`

func TestSubmit(t *testing.T) {
	b := newBench(t, 100)
	a := b.do("POST", "/v1/jobs", simple)
	if a.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	first := as[api.JobSubmitted](b, a)
	if first.Namespace != "default" || first.Name != "sim" || first.Version != 1 || first.Index == 0 || first.Unchanged || len(first.UID) < 8 || strings.Contains(first.UID, "-") {
		t.Errorf("%+v", first)
	}
	a = b.do("POST", "/v1/jobs", simple)
	again := as[api.JobSubmitted](b, a)
	if a.StatusCode != http.StatusOK || !again.Unchanged || again.UID != first.UID || again.Version != 1 {
		t.Errorf("the same again: %d %+v", a.StatusCode, again)
	}
	p := b.problem(b.do("POST", "/v1/jobs", `{"spec":{"name":"sim","command":["false"]}}`), 409, "conflict")
	if !strings.Contains(p.Detail, "replace") {
		t.Errorf("detail %q", p.Detail)
	}
	b.problem(b.do("POST", "/v1/jobs", `{"spec":{"name":"sim","command":["true"]},"if_version":0}`), 409, "conflict")
	a = b.do("POST", "/v1/jobs", `{"spec":{"name":"sim","command":["false"]},"replace":true,"if_version":1}`)
	if v := as[api.JobSubmitted](b, a); a.StatusCode != 201 || v.Version != 2 || v.UID != first.UID {
		t.Errorf("replaced: %d %+v", a.StatusCode, v)
	}
	j := get[api.Job](b, "/v1/jobs/default/sim")
	if j.Version != 2 || j.Spec == nil || j.Spec.Command[0] != "false" || j.Spec.Resources.Memory != api.DefaultMemory || j.Stage != "live" || j.Counts.Waiting != 1 {
		t.Errorf("%+v", j)
	}
	if strings.Contains(b.logged.String(), token) {
		t.Error("the token is in the log")
	}
}

func TestSubmitMakesAName(t *testing.T) {
	b := newBench(t, 100)
	names := map[string]bool{}
	for range 20 {
		a := b.do("POST", "/v1/jobs", `{"spec":{"command":["true"],"namespace":"x"}}`)
		s := as[api.JobSubmitted](b, a)
		if muster.CheckName(s.Name) != nil || !strings.HasPrefix(s.Name, "job-") || len(s.Name) != 12 || names[s.Name] || s.Namespace != "x" {
			t.Fatalf("%d %+v", a.StatusCode, s)
		}
		names[s.Name] = true
		if j := get[api.Job](b, "/v1/jobs/x/"+s.Name); j.Spec.Name != s.Name {
			t.Errorf("the spec says %q", j.Spec.Name)
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	b := newBench(t, 100)
	key := header("Idempotency-Key", "k1")
	one := as[api.JobSubmitted](b, b.do("POST", "/v1/jobs", `{"spec":{"command":["true"]}}`, key))
	// Another text, the same request.
	a := b.do("POST", "/v1/jobs", ` { "spec" : {"command": [ "true" ] } }`, key)
	two := as[api.JobSubmitted](b, a)
	if a.StatusCode != 200 || two.Name != one.Name || two.UID != one.UID || two.Index != one.Index {
		t.Errorf("repeated: %d %+v, first %+v", a.StatusCode, two, one)
	}
	b.problem(b.do("POST", "/v1/jobs", `{"spec":{"command":["false"]}}`, key), 409, "conflict")
	if a := b.do("POST", "/v1/jobs", `{"spec":{"command":["true"],"namespace":"other"}}`, key); a.StatusCode != 201 {
		t.Errorf("the key in another namespace: %d", a.StatusCode)
	}
	p := b.problem(b.do("POST", "/v1/jobs", simple, header("Idempotency-Key", strings.Repeat("k", 129))), 422, "invalid")
	if len(p.Errors) != 1 || p.Errors[0].Location != "header.Idempotency-Key" {
		t.Errorf("%+v", p.Errors)
	}
}

// A job without a name is the same job when its submission is repeated, even after the receipt is forgotten.
func TestUnnamedJobIsSubmittedOnce(t *testing.T) {
	b := newBench(t, 100)
	b.propose(&state.FormatRaised{Format: 2})
	key := header("Idempotency-Key", "k1")
	submit := func() (api.JobSubmitted, int) {
		a := b.do("POST", "/v1/jobs", `{"spec":{"command":["true"]}}`, key)
		return as[api.JobSubmitted](b, a), a.StatusCode
	}
	first, status := submit()
	if status != 201 {
		t.Fatalf("%d %+v", status, first)
	}
	// Others take all the room that receipts have.
	zero, long := 50, strings.Repeat("k", 1<<20)
	for i := range 70 {
		b.propose(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "other"}, UID: "other", Idempotency: long + strconv.Itoa(i),
			Spec: &api.JobSpec{Name: "other", Type: "batch", Count: 1, Template: api.Template{Priority: &zero, Command: []string{"true"}}}})
	}
	again, status := submit()
	if status != 200 || again != (api.JobSubmitted{Namespace: first.Namespace, Name: first.Name, UID: first.UID, Version: first.Version, Index: first.Index, Unchanged: true}) {
		t.Errorf("repeated: %d %+v, first %+v", status, again, first)
	}
	p := b.problem(b.do("POST", "/v1/jobs", `{"spec":{"command":["false"]}}`, key), 409, "conflict")
	if !strings.Contains(p.Detail, "of job "+first.Name) {
		t.Errorf("%+v", p)
	}
	b.propose(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: first.Name}})
	if again, status := submit(); status != 200 || again.UID != first.UID {
		t.Errorf("repeated after its end: %d %+v, first %+v", status, again, first)
	}
	// Another key is another job.
	if other := as[api.JobSubmitted](b, b.do("POST", "/v1/jobs", `{"spec":{"command":["true"]}}`, header("Idempotency-Key", "k2"))); other.Name == first.Name {
		t.Errorf("two keys, one job: %+v", other)
	}
}

func TestSubmitRefusals(t *testing.T) {
	b := newBench(t, 100)
	long := strings.Repeat("x", 300)
	digest := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		body   string
		status int
		where  string
		says   string
	}{
		"empty":          {" ", 400, "body", "missing"},
		"no JSON":        {`{"spec":`, 400, "body", "line 1"},
		"where":          {"{\n  \"spec\": {,}\n}", 400, "body", "line 2, column 12"},
		"two values":     {simple + simple, 400, "body", "after top-level value"},
		"not UTF-8":      {"{\"spec\":{\"name\":\"\xff\"}}", 400, "body", "UTF-8"},
		"a list":         {`[1]`, 422, "body", "an object"},
		"a number":       {`1`, 422, "body", "an object"},
		"null":           {`null`, 422, "body", "null"},
		"unknown":        {`{"spec":{"comand":["true"]}}`, 422, "body.spec.comand", "did you mean command?"},
		"unknown deep":   {`{"spec":{"command":["true"],"resources":{"cpus":1}}}`, 422, "body.spec.resources.cpus", "did you mean cpu?"},
		"unknown top":    {`{"job":{}}`, 422, "body.job", "known are"},
		"wrong case":     {`{"Spec":{"command":["true"]}}`, 422, "body.Spec", "did you mean spec?"},
		"twice":          {`{"spec":{"command":["true"],"count":1,"count":2}}`, 422, "body.spec.count", "twice"},
		"type":           {`{"spec":{"command":"true"}}`, 422, "body.spec.command", "a list"},
		"fraction":       {`{"spec":{"command":["true"],"count":1.5}}`, 422, "body.spec.count", "whole number"},
		"exponent":       {`{"spec":{"command":["true"],"count":1e3}}`, 422, "body.spec.count", "whole number"},
		"huge number":    {`{"spec":{"command":["true"],"count":99999999999999999999}}`, 422, "body.spec.count", "whole number"},
		"infinite":       {`{"spec":{"command":["true"],"resources":{"cpu":1e999}}}`, 422, "body.spec.resources.cpu", "a number"},
		"negative index": {`{"spec":{"command":["true"]},"if_version":-1}`, 422, "body.if_version", "not negative"},
		"null field":     {`{"spec":{"command":["true"],"env":null}}`, 422, "body.spec.env", "null"},
		"null item":      {`{"spec":{"command":[null]}}`, 422, "body.spec.command[0]", "null"},
		"zero":           {`{"spec":{"command":["true"],"count":0}}`, 422, "body.spec.count", "default"},
		"size":           {`{"spec":{"command":["true"],"resources":{"memory":"64XB"}}}`, 422, "body.spec.resources.memory", "64MiB"},
		"duration":       {`{"spec":{"command":["true"],"timeout":"90 sec"}}`, 422, "body.spec.timeout", "90s"},
		"env":            {`{"spec":{"command":["true"],"env":{"A":1}}}`, 422, "body.spec.env.A", "a text"},
		"no command":     {`{"spec":{}}`, 422, "body.spec.command", "missing"},
		"no spec":        {`{}`, 422, "body.spec.command", "missing"},
		"range":          {`{"spec":{"command":["true"],"count":2000000}}`, 422, "body.spec.count", "1000000"},
		"name":           {`{"spec":{"command":["true"],"name":"A b"}}`, 422, "body.spec.name", "lower-case"},
		"input":          {`{"spec":{"command":["true"],"inputs":[{"path":"a","digest":"` + digest + `"}]}}`, 422, "body.spec.inputs[0].digest", "/v1/uploads/" + digest},
		"file":           {`{"spec":{"command":["true"],"inputs":[{"path":"a","file":"b"}]}}`, 422, "body.spec.inputs[0].file", "upload"},
		"long name":      {`{"spec":{"` + long + `":1}}`, 422, "body.spec.xxx", "not known"},
		"deep":           {`{"spec":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, 422, "body.spec", "an object"},
		"too deep":       {`{"spec":` + strings.Repeat("[", 200000) + strings.Repeat("]", 200000) + `}`, 400, "body", "depth"},
	} {
		t.Run(name, func(t *testing.T) {
			b.TB = t
			a := b.do("POST", "/v1/jobs", c.body)
			p := b.problem(a, c.status, "invalid")
			found := false
			for _, e := range p.Errors {
				found = found || strings.HasPrefix(e.Location, c.where) && strings.Contains(e.Message, c.says)
			}
			if !found {
				t.Errorf("want %q at %s in %s", c.says, c.where, a.body)
			}
			if len(a.body) > 4096 {
				t.Errorf("the answer has %d bytes", len(a.body))
			}
		})
	}
	if n := b.state.Latest().JobCount(); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
}

func TestLargeJob(t *testing.T) {
	b := newBench(t, 100)
	args := make([]string, 16)
	for i := range args {
		args[i] = strings.Repeat("a", 60<<10)
	}
	spec, err := json.Marshal(map[string]any{"spec": map[string]any{"name": "big", "command": args}})
	if err != nil {
		t.Fatal(err)
	}
	if a := b.do("POST", "/v1/jobs", string(spec)); a.StatusCode != 201 {
		t.Errorf("a job of %d bytes: %d %.300s", len(spec), a.StatusCode, a.body)
	}
	b.problem(b.do("POST", "/v1/jobs", `{"spec":{"name":"`+strings.Repeat("a", door.MaxBody)+`"}}`), 413, "invalid")
	p := b.problem(b.do("POST", "/v1/jobs", `{"spec":{"name":"x","command":["a","`+strings.Repeat("b", 1<<20)+`"]}}`), 422, "invalid")
	if len(p.Errors) == 0 {
		t.Errorf("%+v", p)
	}
}

func TestSubmitWithUpload(t *testing.T) {
	b := newBench(t, 100)
	content := "input"
	digest := digestOf(content)
	body := `{"spec":{"name":"in","command":["true"],"inputs":[{"path":"a","digest":"` + digest + `"}]}}`
	b.problem(b.do("POST", "/v1/jobs", body), 422, "invalid")
	if a := b.do("PUT", "/v1/uploads/"+digest, content, header("Content-Type", "application/octet-stream")); a.StatusCode != 200 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if a := b.do("POST", "/v1/jobs", body); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestProposerFaults(t *testing.T) {
	b := newBench(t, 100)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{muster.Faultf(muster.FaultDiskLow, "the disk of the data directory has 3MiB free"), 507, "disk-low"},
		{&muster.Fault{Kind: muster.FaultUnavailable, Message: "this server does not lead", After: 2500 * time.Millisecond}, 503, "unavailable"},
		{muster.Faultf(muster.FaultAmbiguous, "it is not known whether it was committed"), 503, "ambiguous"},
		{muster.Faultf(muster.FaultRateLimited, "too many"), 429, "rate-limited"},
		{fmt.Errorf("wrapped: %w", muster.Faultf(muster.FaultConflict, "no")), 409, "conflict"},
		{errSecret, 500, "internal"},
	} {
		b.log.refuse(c.err)
		for _, path := range []string{"/v1/jobs"} {
			a := b.do("POST", path, simple)
			p := b.problem(a, c.status, c.code)
			if after := a.Header.Get("Retry-After"); (c.status == 503 || c.status == 429) != (after != "") || c.code == "unavailable" && after != "3" {
				t.Errorf("%s: Retry-After %q", c.code, after)
			}
			if c.status == 500 {
				if strings.Contains(p.Detail, "hunter2") || !strings.Contains(b.logged.String(), "hunter2") {
					t.Errorf("a defect is told to the client and not to the log: %s", a.body)
				}
			} else if !strings.Contains(p.Detail, "no") && !strings.Contains(p.Detail, c.err.Error()) {
				t.Errorf("detail %q", p.Detail)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	b := newBench(t, 100)
	v := as[api.JobValidation](b, b.do("POST", "/v1/jobs/validate", simple))
	if !v.Fits || v.Why == "" || len(v.Problems) != 0 || v.Spec.Count != 1 || *v.Spec.Priority != 50 {
		t.Errorf("%+v", v)
	}
	v = as[api.JobValidation](b, b.do("POST", "/v1/jobs/validate", `{"spec":{"command":["true"],"resources":{"cpu":8}}}`))
	if v.Fits || !strings.Contains(v.Why, "4 cores") {
		t.Errorf("too large: %+v", v)
	}
	v = as[api.JobValidation](b, b.do("POST", "/v1/jobs/validate", `{"spec":{"command":[],"count":-1}}`))
	if v.Fits || len(v.Problems) != 2 || v.Problems[0].Location != "count" && v.Problems[1].Location != "count" {
		t.Errorf("wrong: %+v", v)
	}
	b.problem(b.do("POST", "/v1/jobs/validate", `{"spec":{"nonsense":1}}`), 422, "invalid")
	if n := b.state.Latest().JobCount(); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
}

func TestStop(t *testing.T) {
	b := newBench(t, 100)
	b.problem(b.do("POST", "/v1/jobs/default/nope/stop", ""), 404, "not-found")
	b.problem(b.do("POST", "/v1/jobs/default/Nope/stop", ""), 422, "invalid")
	b.node("n1")
	uid := b.submit("default", "j", 3)
	b.place(uid, "n1", 0, 1)
	a := b.do("POST", "/v1/jobs/default/j/stop", `{"reason":"enough"}`)
	j := as[api.Job](b, a)
	if a.StatusCode != 200 || j.Stage != "stopping" || !strings.Contains(j.Reason, "enough") || a.Header.Get("Muster-Note") != "" || j.Outcome != "" {
		t.Errorf("%d %+v %q", a.StatusCode, j, a.Header.Get("Muster-Note"))
	}
	if c := j.Counts; c.Waiting != 0 || c.Placed != 1 || c.Stopped != 2 {
		t.Errorf("counts %+v", c)
	}
	a = b.do("POST", "/v1/jobs/default/j/stop", "")
	if a.StatusCode != 200 || !strings.Contains(a.Header.Get("Muster-Note"), "is stopping already") {
		t.Errorf("again: %d %q", a.StatusCode, a.Header.Get("Muster-Note"))
	}
	b.report("n1", state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	a = b.do("POST", "/v1/jobs/default/j/stop", `{}`)
	if j := as[api.Job](b, a); a.StatusCode != 200 || j.Stage != "ended" || j.Outcome != "stopped" || !strings.Contains(a.Header.Get("Muster-Note"), "ended already") {
		t.Errorf("ended: %d %q %+v", a.StatusCode, a.Header.Get("Muster-Note"), j)
	}
	p := b.problem(b.do("POST", "/v1/jobs/default/j/stop", `{"reason":"`+strings.Repeat("x", 201)+`"}`), 422, "invalid")
	if p.Errors[0].Location != "body.reason" {
		t.Errorf("%+v", p)
	}
}

func TestGetMissing(t *testing.T) {
	b := newBench(t, 100)
	for _, path := range []string{
		"/v1/jobs/default/x", "/v1/jobs/default/x/members", "/v1/jobs/default/x/allocations", "/v1/allocations/x", "/v1/allocations/x/outputs",
		"/v1/allocations/x/outputs/0", "/v1/allocations/x/output/stdout", "/v1/nodes/x",
	} {
		p := b.problem(b.do("GET", path, ""), 404, "not-found")
		if !strings.Contains(p.Detail, "x: not found") {
			t.Errorf("%s: %q", path, p.Detail)
		}
	}
}

// Uids sort by when they were drawn, so that jobs that came together lie together.
