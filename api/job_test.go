package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/validate"
	"pgregory.net/rapid"
)

func good() *JobSpec { return &JobSpec{Template: Template{Command: []string{"true"}}} }

func ptr[T any](v T) *T { return &v }

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		change func(s *JobSpec)
		want   string // "location: message" of each problem, a line each; "" for none
	}{
		{func(s *JobSpec) {}, ""},
		{func(s *JobSpec) { s.Defaults() }, ""},
		{func(s *JobSpec) { s.Name = "Web" }, `name: has 'W' at position 1; a name has lower-case letters, digits, and inside it dots and dashes`},
		{func(s *JobSpec) { s.Namespace = strings.Repeat("a", 64) }, `namespace: has 64 bytes; a name has at most 63`},
		{func(s *JobSpec) { s.Type = "cron" }, `type: is "cron"; it is batch, service or system`},
		{func(s *JobSpec) { s.Type = "service" }, ""},
		{func(s *JobSpec) { s.Type, s.Update = "service", &UpdateSpec{MaxParallel: 3, AutoRevert: true} }, ""},
		{func(s *JobSpec) { s.Update = &UpdateSpec{} }, `update: is for type service and system; members of a batch job run to completion`},
		{func(s *JobSpec) {
			s.Type, s.Restart.Attempts, s.Restart.On = "service", 3, []string{"any"}
		}, "restart.attempts: is for batch jobs: members of a service job are started again however they end\nrestart.on: is for batch jobs: members of a service job are started again however they end"},
		{func(s *JobSpec) { s.Type, s.Outputs = "service", []OutputSpec{{Path: "a"}} }, `outputs: are collected when a member has succeeded, which those of a service job never have`},
		{func(s *JobSpec) { s.Type, s.Update = "service", &UpdateSpec{MaxParallel: -1} }, `update.max_parallel: is -1; it is 1 to 1000000`},
		{func(s *JobSpec) {
			s.Type, s.Update = "service", &UpdateSpec{MinHealthyTime: Duration(time.Minute), HealthyDeadline: Duration(time.Minute)}
		}, `update.healthy_deadline: is 1m, and a member is healthy after min_healthy_time (1m) at the earliest`},
		{func(s *JobSpec) { s.Type, s.Count = "system", 3 }, `count: is 3; a system job has one member on each node that fits, so leave it out`},
		{func(s *JobSpec) { s.Type, s.Spread = "system", []SpreadSpec{{Attribute: "zone", Weight: 50}} }, `spread: does not apply to a system job, which has a member on each node that fits`},
		{func(s *JobSpec) { s.Count = -1 }, `count: is -1; a job has 1 to 1000000 members`},
		{func(s *JobSpec) { s.Count = MaxCount }, ""},
		{func(s *JobSpec) { s.Count = MaxCount + 1 }, `count: is 1000001; a job has 1 to 1000000 members`},
		{func(s *JobSpec) { s.Priority = ptr(0) }, ""},
		{func(s *JobSpec) { s.Priority = ptr(101) }, `priority: is 101; it is 0 to 100, higher first`},
		{func(s *JobSpec) { s.Priority = ptr(-1) }, `priority: is -1; it is 0 to 100, higher first`},
		{func(s *JobSpec) { s.Command = nil }, `command: is missing; give the program and its arguments, as [echo, hello]`},
		{func(s *JobSpec) { s.Command = []string{"", "x"} }, `command[0]: is empty; it is the program to run`},
		{func(s *JobSpec) { s.Command = []string{"echo", ""} }, ""},
		{func(s *JobSpec) { s.Command = []string{"echo", "a\x00b"} }, `command[1]: has a NUL byte, which nothing on Linux can be given`},
		{func(s *JobSpec) { s.Command = []string{"echo", "\xff"} }, `command[1]: is not UTF-8 text; give other bytes in a file, as an input`},
		{func(s *JobSpec) { s.Command = []string{"echo", strings.Repeat("x", MaxArgBytes)} }, ""},
		{func(s *JobSpec) { s.Command = []string{"echo", strings.Repeat("x", MaxArgBytes+1)} }, `command[1]: has 131072 bytes; at most 131071 can be passed`},
		{func(s *JobSpec) { s.Image = "debian:12" }, ""},
		{func(s *JobSpec) { s.Image = "ghcr.io/a/b@" + digest }, ""},
		{func(s *JobSpec) { s.Image = "-v /:/host" }, `image: is "-v /:/host"; write it as registry/name:tag or name@sha256:digest, the name in lower case`},
		{func(s *JobSpec) { s.Env = map[string]string{"A": "", "b.c": "x=y"} }, ""},
		{func(s *JobSpec) { s.Env = map[string]string{"": "x"} }, `env: has an empty name`},
		{func(s *JobSpec) { s.Env = map[string]string{"A=B": "x"} }, `env.A=B: has the name "A=B"; a name has no =, no NUL and no control characters`},
		{func(s *JobSpec) { s.Env = map[string]string{"MUSTER_INDEX": "x"} }, `env.MUSTER_INDEX: is reserved: names that begin with MUSTER_ are set by Muster`},
		{func(s *JobSpec) { s.Env = map[string]string{"A": "x\x00"} }, `env.A: has a NUL byte, which nothing on Linux can be given`},
		{func(s *JobSpec) { s.Workdir = "/tmp" }, ""},
		{func(s *JobSpec) { s.Workdir = "tmp" }, `workdir: is "tmp"; give an absolute path without . or .. in it, or leave it out for a fresh directory`},
		{func(s *JobSpec) { s.Workdir = "/a/../b" }, `workdir: is "/a/../b"; give an absolute path without . or .. in it, or leave it out for a fresh directory`},
		{func(s *JobSpec) { s.Resources.CPU = math.NaN() }, `resources.cpu: is not a number; it is 0.001 to 4096 cores, as 0.5`},
		{func(s *JobSpec) { s.Resources.CPU = math.Inf(1) }, `resources.cpu: is not a number; it is 0.001 to 4096 cores, as 0.5`},
		{func(s *JobSpec) { s.Resources.CPU = -1 }, `resources.cpu: is -1; it is 0.001 to 4096 cores, as 0.5`},
		{func(s *JobSpec) { s.Resources.CPU = 4096 }, ""},
		{func(s *JobSpec) { s.Resources.CPU = 4097 }, `resources.cpu: is 4097; it is 0.001 to 4096 cores, as 0.5`},
		{func(s *JobSpec) { s.Resources.Memory = 64 }, `resources.memory: is 64 bytes; at least 1MiB is needed, with its unit, as 64MiB`},
		{func(s *JobSpec) { s.Resources.Disk = -1 }, `resources.disk: is -1 bytes; it cannot be negative`},
		{func(s *JobSpec) { s.Restart.Attempts = 101 }, `restart.attempts: is 101; it is 1 to 100`},
		{func(s *JobSpec) { s.Restart.On = []string{"1", "2-5", "any", "timeout", "out-of-memory", "signal"} }, ""},
		{func(s *JobSpec) { s.Restart.On = []string{"1", "never"} }, `restart.on[1]: "never" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal`},
		{func(s *JobSpec) {
			s.Restart.Backoff = Duration(time.Hour)
			s.Restart.BackoffMax = Duration(time.Minute)
		}, `restart.backoff_max: is 1m, shorter than backoff (1h)`},
		{func(s *JobSpec) { s.Restart.Backoff = Duration(time.Hour) }, ""},
		{func(s *JobSpec) { s.Timeout = -1 }, `timeout: is -1ns; it cannot be negative`},
		{func(s *JobSpec) { s.Timeout = MaxTimeout + 1 }, `timeout: is 8760h0m0.000000001s; at most 8760h`},
		{func(s *JobSpec) { s.KillGrace = MaxKillGrace + Duration(time.Second) }, `kill_grace: is 1h0m1s; at most 1h`},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Attribute: "os", Value: "linux"}} }, ""},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Value: "linux"}} }, `constraints[0].attribute: is missing; name a node attribute, as os, arch or zone`},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Attribute: "os", Op: "~"}} }, `constraints[0].op: is "~"; it is one of =, !=, <, <=, >, >=, in, not-in, version, regexp, set-contains, is-set, is-not-set`},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Attribute: "os"}} }, `constraints[0].value: is missing; "=" compares with a value`},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Attribute: "os", Op: "in", Value: "x"}} },
			"constraints[0].values: are missing; in needs at least one\nconstraints[0].value: is not for the operator in; write it into values"},
		{func(s *JobSpec) { s.Constraints = []ConstraintSpec{{Attribute: "os", Op: "is-set", Value: "x"}} }, `constraints[0]: has a value, and is-set compares with none`},
		{func(s *JobSpec) { s.Pool = "a/b" }, `pool: has '/' at position 2; a name has lower-case letters, digits, and inside it dots and dashes`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a"}} }, `inputs[0]: has no source; give one of content, file, digest, or url with digest`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Content: ptr("")}} }, ""},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Digest: digest}} }, ""},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", URL: "https://x.org/a?b", Digest: digest}} }, ""},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", URL: "https://x.org/a"}} }, `inputs[0].digest: is missing; with a url it says what must arrive, as sha256:<64 hex digits>`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", URL: "ftp://x.org/a", Digest: digest}} }, `inputs[0].url: is "ftp://x.org/a"; write an http or https address`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Digest: strings.ToUpper(digest)}} },
			`inputs[0].digest: is "SHA256:0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF01234"…; write it as sha256:<64 lower-case hex digits>`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Content: ptr("x"), Digest: digest}} }, `inputs[0].digest: goes with url or stands alone; content and file need none`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Content: ptr("x"), URL: "http://x/"}} }, `inputs[0]: has more than one source; give one of content, file, digest, or url with digest`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", File: "b"}} }, `inputs[0].file: is for job files that the CLI reads; upload the file (PUT /v1/uploads/{digest}) and give its digest`},
		{func(s *JobSpec) {
			s.Inputs = []InputSpec{{Path: "a", Content: ptr(strings.Repeat("x", MaxContentBytes+1))}}
		}, `inputs[0].content: has 65537 bytes; at most 65536 can stand here, give a larger one as file`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Content: ptr(""), Mode: "1777"}} }, `inputs[0].mode: is "1777"; write permission bits in octal, 0000 to 0777, as 0755`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "a", Content: ptr(""), Mode: "0o755"}} }, ""},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "../a", Content: ptr("")}} }, `inputs[0].path: is "../a"; a path cannot leave the work directory with ..`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "/etc/passwd", Content: ptr("")}} }, `inputs[0].path: is "/etc/passwd"; give it relative to the work directory, without the leading /`},
		{func(s *JobSpec) { s.Inputs = []InputSpec{{Path: "./", Content: ptr("")}} }, `inputs[0].path: is the work directory itself; name a file or directory in it`},
		{func(s *JobSpec) {
			s.Inputs = []InputSpec{{Path: "a", Content: ptr("")}, {Path: "./a", Content: ptr("")}}
		}, `inputs[1].path: is that of inputs[0] as well`},
		{func(s *JobSpec) {
			s.Inputs = []InputSpec{{Path: "a/b/c", Content: ptr("")}, {Path: "a", Content: ptr("")}}
		}, `inputs[0].path: is inside "a", which inputs[1] makes a file`},
		{func(s *JobSpec) { s.Outputs = []OutputSpec{{Path: "a"}, {Path: "b/c"}} }, ""},
		{func(s *JobSpec) { s.Outputs = []OutputSpec{{Path: ""}} }, `outputs[0].path: is missing; give a path below the work directory`},
		{func(s *JobSpec) { s.Outputs = []OutputSpec{{Path: "a/"}, {Path: "a"}} }, `outputs[1].path: is that of outputs[0] as well`},
		{func(s *JobSpec) { s.Outputs = []OutputSpec{{Path: strings.Repeat("n", 256)}} }, `outputs[0].path: has a name of 256 bytes; at most 255`},
		{func(s *JobSpec) { s.OutputLimit = 1000 }, `output_limit: is 1000B; it is 64KiB to 16GiB`},
		{func(s *JobSpec) { s.OutputLimit = MaxOutputLimit }, ""},
		{func(s *JobSpec) {
			for range 11 {
				s.Command = append(s.Command, strings.Repeat("x", 100<<10))
			}
		}, `the job is 1.1MiB as JSON and may be 1MiB; give large data as inputs with a digest`},
	} {
		s := good()
		tt.change(s)
		var got []string
		for _, p := range s.Validate() {
			got = append(got, p.String())
		}
		if g := strings.Join(got, "\n"); g != tt.want {
			t.Errorf("got  %s\nwant %s", g, tt.want)
		}
	}
}

func TestValidateFileAcceptsLocalFiles(t *testing.T) {
	s := good()
	s.Inputs = []InputSpec{{Path: "a", File: "../b"}}
	if p := s.ValidateFile(); p != nil {
		t.Error(p)
	}
	s.Inputs[0].Digest = digest
	if p := s.ValidateFile(); len(p) != 1 {
		t.Errorf("file with digest: %v", p)
	}
}

// A job's inputs are bounded by number, and what they bring along by the size of the whole job.
func TestListsAreBounded(t *testing.T) {
	s := good()
	for i := range MaxListLen {
		s.Inputs = append(s.Inputs, InputSpec{Path: fmt.Sprint("in/", i), Content: new("")})
	}
	if p := s.Validate(); p != nil {
		t.Errorf("%d inputs: %v", MaxListLen, p)
	}
	many := s.Clone()
	many.Inputs = append(many.Inputs, InputSpec{Path: "more", Content: new("")})
	if p := many.Validate(); len(p) != 1 || p[0].Location != "inputs" || p[0].Message != "has 1001 entries; at most 1000" {
		t.Errorf("one more: %v", p)
	}
	content := strings.Repeat("x", MaxSpecBytes/MaxListLen)
	for i := range s.Inputs {
		s.Inputs[i].Content = &content
	}
	if p := s.Validate(); len(p) != 1 || !strings.Contains(p[0].Message, "give large data as inputs with a digest") {
		t.Errorf("too much content: %v", p)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	s := good()
	for range 10_000 {
		s.Command = append(s.Command, "\xff")
	}
	p := s.Validate()
	if len(p) != validate.MaxProblems {
		t.Fatalf("%d problems", len(p))
	}
	if got := p[len(p)-1].Message; got != "is the first of 9951 further problems that are not listed" {
		t.Error(got)
	}
	if p[validate.MaxProblems-1].Location != "command[50]" {
		t.Error(p[validate.MaxProblems-1].Location)
	}
}

func TestSpecOfAMillionBytesIsAccepted(t *testing.T) {
	s := good()
	s.Env = map[string]string{}
	for i := range 10 {
		s.Env[fmt.Sprint("K", i)] = strings.Repeat("<", 100_000) // escaping for HTML would make it six-fold
	}
	if p := s.Validate(); p != nil {
		t.Error(p)
	}
}

func TestDefaults(t *testing.T) {
	s := &JobSpec{
		Template: Template{Command: []string{"true"}, Constraints: []ConstraintSpec{{Attribute: "os", Value: "linux"}}, Inputs: []InputSpec{{Path: "./a//b", Content: ptr("x"), Mode: "755"}, {Path: "../c"}}},
		Restart:  RestartSpec{On: []string{"any"}, Backoff: Duration(time.Hour)},
		Outputs:  []OutputSpec{{Path: "out/"}},
	}
	s.Defaults()
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"namespace":"default","type":"batch","count":1,"priority":50,"command":["true"],` +
		`"resources":{"cpu":1,"memory":"256MiB"},` +
		`"inputs":[{"path":"a/b","content":"x","mode":"0755"},{"path":"../c","mode":"0644"}],"kill_grace":"10s",` +
		`"constraints":[{"attribute":"os","op":"=","value":"linux"}],` +
		`"restart":{"attempts":3,"on":["any"],"backoff":"1h","backoff_max":"1h","give_up":"1h"},"outputs":[{"path":"out"}],"output_limit":"256MiB"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// specs draws specs of all kinds, right and wrong.
func specs() *rapid.Generator[*JobSpec] {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", "./a/", "a/b", "..", "/x", "0755", "any", "3-7", "http://x/y", digest, "\x00", "\xff"}))
	return rapid.Custom(func(t *rapid.T) *JobSpec {
		s := &JobSpec{
			Name: text.Draw(t, "name"), Namespace: text.Draw(t, "namespace"), Type: rapid.SampledFrom([]string{"", "batch", "x"}).Draw(t, "type"),
			Count: rapid.IntRange(-1, 5).Draw(t, "count"), Template: Template{Command: rapid.SliceOf(text).Draw(t, "command"), Image: text.Draw(t, "image"), Env: rapid.MapOf(text, text).Draw(t, "env"), Workdir: text.Draw(t, "workdir"), Pool: text.Draw(t, "pool"), KillGrace: Duration(rapid.Int64().Draw(t, "grace")), Resources: ResourcesSpec{CPU: rapid.Float64().Draw(t, "cpu"), Memory: Size(rapid.Int64().Draw(t, "memory")), Disk: Size(rapid.Int64().Draw(t, "disk"))}},
			Timeout:     Duration(rapid.Int64().Draw(t, "timeout")),
			OutputLimit: Size(rapid.Int64().Draw(t, "limit")),
			Restart:     RestartSpec{Attempts: rapid.IntRange(-1, 200).Draw(t, "attempts"), On: rapid.SliceOf(text).Draw(t, "on"), Backoff: Duration(rapid.Int64().Draw(t, "backoff"))},
		}
		if rapid.Bool().Draw(t, "hasPriority") {
			s.Priority = ptr(rapid.IntRange(-5, 105).Draw(t, "priority"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "inputs") {
			in := InputSpec{Path: text.Draw(t, "path"), File: text.Draw(t, "file"), URL: text.Draw(t, "url"), Digest: text.Draw(t, "digest"), Mode: text.Draw(t, "mode")}
			if rapid.Bool().Draw(t, "hasContent") {
				in.Content = ptr(text.Draw(t, "content"))
			}
			s.Inputs = append(s.Inputs, in)
			s.Outputs = append(s.Outputs, OutputSpec{Path: text.Draw(t, "output"), Optional: rapid.Bool().Draw(t, "optional")})
			s.Constraints = append(s.Constraints, ConstraintSpec{Attribute: text.Draw(t, "attribute"), Op: rapid.SampledFrom([]string{"", "=", "in", "is-set", "?"}).Draw(t, "op"), Value: text.Draw(t, "value"), Values: rapid.SliceOf(text).Draw(t, "values")})
		}
		return s
	})
}

func TestDefaultsTwiceIsOnceAndRoundTripIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := specs().Draw(t, "spec")
		before := s.Clone()
		checkSpec(t, s)
		if a, b := fmt.Sprintf("%+v", before.Command), fmt.Sprintf("%+v", s.Command); a != b {
			t.Fatal("the spec was changed")
		}
	})
}

// checkSpec holds what is promised of every spec, whatever is in it.
func checkSpec(t interface{ Fatalf(string, ...any) }, s *JobSpec) {
	problems := s.Validate()
	once := s.Clone()
	once.Defaults()
	twice := once.Clone()
	twice.Defaults()
	a, err1 := json.Marshal(once)
	b, err2 := json.Marshal(twice)
	if (err1 == nil) != (err2 == nil) || !bytes.Equal(a, b) {
		t.Fatalf("Defaults twice: %s\nonce: %s", b, a)
	}
	if after := once.Validate(); (problems == nil) != (after == nil) {
		t.Fatalf("before defaults: %v\nafter: %v", problems, after)
	}
	if problems != nil {
		return
	}
	// What is accepted means the same after its trip through JSON, and is equal to what it was.
	var back JobSpec
	if err := json.Unmarshal(a, &back); err != nil {
		t.Fatalf("own JSON does not read: %v\n%s", err, a)
	}
	if !back.Equal(s) || !s.Equal(once) {
		t.Fatalf("round trip changed the spec: %s\n%s", a, back.Canonical())
	}
	if c := back.Canonical(); !bytes.Equal(c, (&back).Clone().Canonical()) || len(c) > MaxSpecBytes {
		t.Fatalf("canonical form of %d bytes", len(c))
	}
	if _, err := ParseRestartOn(s.Restart.On); err != nil {
		t.Fatalf("accepted restart.on does not parse: %v", err)
	}
}

func FuzzJobSpecValidate(f *testing.F) {
	f.Add([]byte(`{"command":["true"],"count":3,"restart":{"on":["1-3"]}}`))
	f.Add([]byte(`{"command":["a\u0000"],"env":{"=":"x"},"inputs":[{"path":"..","content":"x","mode":"9"}]}`))
	f.Add([]byte(`{"command":["x"],"timeout":"1h","resources":{"cpu":1e300,"memory":"9223372036854775807B"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s JobSpec
		if json.Unmarshal(b, &s) != nil {
			// Its bytes may also be the text of a field.
			s = JobSpec{Template: Template{Command: []string{string(b)}, Env: map[string]string{string(b): string(b)}, Image: string(b), Workdir: "/" + string(b), Inputs: []InputSpec{{Path: string(b), URL: string(b), Digest: string(b), Mode: string(b)}}, Constraints: []ConstraintSpec{{Attribute: string(b), Op: string(b), Value: string(b)}}},
				Restart: RestartSpec{On: []string{string(b)}},
				Outputs: []OutputSpec{{Path: string(b)}}}
		}
		checkSpec(t, &s)
	})
}

func TestEqual(t *testing.T) {
	a, b := good(), good()
	b.Defaults()
	if !a.Equal(b) {
		t.Error("defaults make a difference")
	}
	b.Env = map[string]string{}
	b.Inputs = []InputSpec{}
	if !a.Equal(b) {
		t.Error("empty and missing differ")
	}
	b.Env["A"] = "1"
	if a.Equal(b) {
		t.Error("another env is equal")
	}
	a.Resources.CPU = math.NaN()
	if a.Equal(a) {
		t.Error("what cannot be written equals itself")
	}
}

// A reference that no registry can have is refused when the job is submitted, and not on a node.
func TestImageReferences(t *testing.T) {

	for _, s := range []string{
		"python", "python:3.13", "team/app", "ghcr.io/team/app:1.2", "localhost/app", "localhost:5000/app:A_b-1.2", "10.0.0.1:5000/a/b/c", "Registry.Example.org/app",
		"a__b/c-d/e.f", "a--b", "app@" + digest, "app:1@" + digest, "ghcr.io/team/app:1@" + digest,
	} {
		if p := (&JobSpec{Name: "j", Count: 1, Template: Template{Image: s}}).Validate(); slices.ContainsFunc(p, func(p ProblemField) bool { return p.Location == "image" }) {
			t.Errorf("%s: %v", s, p)
		}
	}
	for _, s := range []string{
		"A:B:C", "ghcr.io/team/../x", "ghcr.io/team/./x", "ghcr.io//x", "Team/app", "python:", "ghcr.io/Team/app", "app@sha256:12", "app@md5:12", "app@" + digest + "@" + digest, "https://ghcr.io/a", "a-/b", "app:1:2", "app:-1",
		"app:" + strings.Repeat("a", 129), "10.0.0.1:port/a",
	} {
		if p := (&JobSpec{Name: "j", Count: 1, Template: Template{Image: s}}).Validate(); !slices.ContainsFunc(p, func(p ProblemField) bool { return p.Location == "image" }) {
			t.Errorf("%s is accepted", s)
		}
	}
}

// A clone shares nothing with what it was made of, whatever fields are added.
func TestClonesShareNothing(t *testing.T) {
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"A": "1"}))
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.String:
			v.SetString("before")
		}
	}
	var change func(v reflect.Value)
	change = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			change(v.Elem())
		case reflect.Slice:
			change(v.Index(0))
		case reflect.Map:
			v.SetMapIndex(reflect.ValueOf("A"), reflect.ValueOf("2"))
		case reflect.Struct:
			for i := range v.NumField() {
				change(v.Field(i))
			}
		case reflect.String:
			v.SetString("after")
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		}
	}
	for _, spec := range []any{&JobSpec{}, &EnvironmentSpec{}} {
		fill(reflect.ValueOf(spec).Elem())
		before, _ := json.Marshal(spec)
		var clone any
		switch s := spec.(type) {
		case *JobSpec:
			clone = s.Clone()
		case *EnvironmentSpec:
			clone = s.Clone()
		}
		if !reflect.DeepEqual(spec, clone) {
			t.Errorf("%T: a clone is not equal", spec)
		}
		change(reflect.ValueOf(spec).Elem())
		if got, _ := json.Marshal(clone); !bytes.Equal(got, before) {
			t.Errorf("%T: changed through what it was made of:\n%s\n%s", spec, before, got)
		}
	}
}

func TestHostnames(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "db": "", "db-0.local": "", "A1": "", strings.Repeat("a", 63): "",
		strings.Repeat("a", 64): "hostname: is", "-a": "hostname: is", "a-": "hostname: is", "a..b": "hostname: is", "a b": "hostname: is", "a\nb": "hostname: is", "ü": "hostname: is",
	} {
		s := &JobSpec{Template: Template{Image: "a", Hostname: name}}
		s.Defaults()
		got := ""
		for _, p := range s.Validate() {
			got += p.String()
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %s", name, got)
		}
	}
	for _, s := range []*JobSpec{
		{Template: Template{Command: []string{"true"}, Hostname: "a"}},
		{Template: Template{Image: "a", Network: "host", Hostname: "a"}},
	} {
		s.Defaults()
		if got := s.Validate(); len(got) != 1 || got[0].Location != "hostname" {
			t.Errorf("%+v: %v", s, got)
		}
	}
}
