package submit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// bench is a service over a real state, whose images have the architectures that known says.
type bench struct {
	*testing.T
	*Service
	state *state.State
	known map[string][]string
	fits  func(*api.JobSpec) (bool, string)
	index uint64
}

func newBench(t *testing.T, format state.Format) *bench {
	b := &bench{T: t, known: map[string][]string{}, fits: func(*api.JobSpec) (bool, string) { return true, "" }}
	var err error
	if b.state, err = state.New(16); err != nil {
		t.Fatal(err)
	}
	b.Service, err = New(Config{
		State: b.state, Proposer: b, Clock: func() muster.Time { return 1 }, Uploads: noUploads{},
		Fits:          func(spec *api.JobSpec, _ *state.Snapshot) (bool, string) { return b.fits(spec) },
		Architectures: func(_ context.Context, _ muster.Namespace, image string) []string { return b.known[image] },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Propose(t.Context(), &state.FormatRaised{Format: format}); err != nil {
		t.Fatal(err)
	}
	return b
}

// Propose applies a fact as the log does it.
func (b *bench) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	if err := b.state.MayWrite(f); err != nil {
		return 0, nil, err
	}
	data, err := b.state.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	b.index++
	v := b.state.Apply(b.index, 1, int64(b.index), [][]byte{data})[0]
	err, _ = v.(error)
	return b.index, v, err
}

type noUploads struct{}

func (noUploads) PutUpload(context.Context, string, io.Reader, int64) (int64, error) {
	return 0, errors.New("no uploads")
}

func (noUploads) Upload(context.Context, string) (blob.Info, error) {
	return blob.Info{}, errors.New("no uploads")
}

// job is a job with an image, and with conditions on the architecture.
func job(name, image string, own ...api.ConstraintSpec) *api.JobSubmission {
	q := &api.JobSubmission{}
	q.Spec.Name, q.Spec.Image, q.Spec.Command, q.Spec.Constraints = name, image, []string{"true"}, own
	return q
}

// runsOn are the nodes, each of its architecture, that may run the members of a job.
func (b *bench) runsOn(name string) string {
	b.Helper()
	j := b.state.Latest().Job(muster.JobKey{Namespace: muster.DefaultNamespace, Name: name})
	if j == nil {
		b.Fatalf("there is no job %s", name)
	}
	s := fit.ShapeOf(j.Run)
	var out []string
	for _, arch := range []string{"amd64", "arm64"} {
		n := &state.Node{ID: "n", Attributes: map[string]string{"arch": arch, "containers": "crun 1.8", "isolation": "container-userns"}}
		why := fit.Feasible(s, n)
		if why == "" {
			out = append(out, arch)
		} else if !strings.HasSuffix(why, "(its image)") && !strings.HasPrefix(why, "arch = ") {
			b.Errorf("%s on %s: %s", name, arch, why)
		}
	}
	return strings.Join(out, " ")
}

// A job goes where its image runs, and where its own conditions allow it.
func TestAJobGoesWhereItsImageRuns(t *testing.T) {
	b := newBench(t, state.FormatNewest)
	b.known = map[string][]string{"one:1": {"amd64"}, "arm:1": {"arm64"}, "both:1": {"amd64", "arm64"}}
	arm := api.ConstraintSpec{Attribute: "arch", Value: "arm64"}
	for _, c := range []struct {
		name, image string
		own         []api.ConstraintSpec
		want        string
	}{
		{"one", "one:1", nil, "amd64"}, {"arm", "arm:1", nil, "arm64"}, {"both", "both:1", nil, "amd64 arm64"},
		{"unknown", "unknown:1", nil, "amd64 arm64"}, {"both-arm", "both:1", []api.ConstraintSpec{arm}, "arm64"}, {"unknown-arm", "unknown:1", []api.ConstraintSpec{arm}, "arm64"},
	} {
		if _, err := b.Job(t.Context(), job(c.name, c.image, c.own...), ""); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := b.runsOn(c.name); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	// What no node could ever run is refused at once.
	for name, own := range map[string]api.ConstraintSpec{"a": arm, "b": {Attribute: "arch", Op: "not-in", Values: []string{"amd64"}}} {
		_, err := b.Job(t.Context(), job(name, "one:1", own), "")
		var p *problem.Problem
		if !errors.As(err, &p) || !strings.Contains(problemText(p), "body.spec.image is for amd64 only, which the constraint arch ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func problemText(p *problem.Problem) (text string) {
	for _, e := range p.Errors {
		text += e.Location + " " + e.Message
	}
	return text
}

// Without changes the same submission is the same version, although the image is now for something else;
// a new version goes where the image of now runs, and going back takes what was known then along.
func TestArchitecturesAreThoseOfAVersion(t *testing.T) {
	b := newBench(t, state.FormatNewest)
	b.known["web:1"] = []string{"amd64"}
	web := func(args ...string) *api.JobSubmission {
		q := job("web", "web:1")
		q.Spec.Type, q.Spec.Command = string(muster.JobService), append([]string{"serve"}, args...)
		return q
	}
	submit := func(q *api.JobSubmission) *state.Submitted {
		t.Helper()
		done, err := b.Job(t.Context(), q, "")
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	submit(web())
	b.known["web:1"] = []string{"arm64"}
	if done := submit(web()); !done.Unchanged || b.runsOn("web") != "amd64" {
		t.Errorf("%+v, %s", done, b.runsOn("web"))
	}
	if done := submit(web("more")); done.Version != 2 || b.runsOn("web") != "arm64" {
		t.Errorf("%+v, %s", done, b.runsOn("web"))
	}
	current := func() *state.Job {
		return b.state.Latest().Job(muster.JobKey{Namespace: muster.DefaultNamespace, Name: "web"})
	}
	if _, err := b.Scale(t.Context(), current(), &api.JobScale{Count: 3}); err != nil || b.runsOn("web") != "arm64" {
		t.Errorf("%v, %s", err, b.runsOn("web"))
	}
	if _, err := b.Revert(t.Context(), current(), &api.JobRevert{Version: 1}); err != nil || b.runsOn("web") != "amd64" {
		t.Errorf("%v, %s", err, b.runsOn("web"))
	}
	// A snapshot has it too.
	var image bytes.Buffer
	if _, err := b.state.Image().WriteTo(&image); err != nil {
		t.Fatal(err)
	}
	again, err := state.New(16)
	if err == nil {
		err = again.Restore(&image)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.state = again
	if b.runsOn("web") != "amd64" || !slices.Equal(current().Standing.Past[1].Architectures, []string{"arm64"}) {
		t.Errorf("%s, %+v", b.runsOn("web"), current().Standing.Past)
	}
}

func TestAValidationKnowsTheArchitecture(t *testing.T) {
	b := newBench(t, state.FormatNewest)
	b.known["one:1"] = []string{"amd64"}
	b.fits = func(spec *api.JobSpec) (bool, string) {
		ok := len(spec.Constraints) == 1 && spec.Constraints[0].Attribute == "arch" && slices.Equal(spec.Constraints[0].Values, []string{"amd64"})
		return ok, "asked"
	}
	v, err := b.Validate(t.Context(), job("a", "one:1"), false)
	if err != nil || !v.Fits || len(v.Spec.Constraints) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// A log that older servers read as well has no architectures; jobs are taken as before.
func TestArchitecturesNeedTheirFormat(t *testing.T) {
	b := newBench(t, state.FormatImageArch-1)
	b.known["one:1"] = []string{"amd64"}
	if _, err := b.Job(t.Context(), job("a", "one:1"), ""); err != nil || b.runsOn("a") != "amd64 arm64" {
		t.Errorf("%v", err)
	}
}

func TestEnvironmentsGoWhereTheirImageRuns(t *testing.T) {
	b := newBench(t, state.FormatNewest)
	b.known["one:1"] = []string{"arm64"}
	q := &api.EnvironmentSetting{}
	q.Spec.Name, q.Spec.Image = "e", "one:1"
	if _, err := b.SetEnvironment(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if got := b.runsOn(muster.EnvironmentKey(muster.DefaultNamespace, "e").Name); got != "arm64" {
		t.Errorf("%q", got)
	}
}
