package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/wait"
)

// TargetHelp is how commands about one allocation say what they take.
const TargetHelp = `ALLOC is an allocation by its id, or a job by its name if only one of its members runs,
or one member of it as JOB/INDEX.`

// Target is an allocation that a command is about, as it was named.
type Target struct {
	// Name is what the user wrote. Errors use it, because it is what the user knows.
	Name string
	ID   muster.AllocID
	// Alloc is what was known when it was found; nil if only the id is known.
	Alloc *api.Alloc
}

// JobsHint says where jobs and their members are shown.
const JobsHint = "`muster job list` shows the jobs, `muster job show NAME` their members"

// FindTarget finds the allocation that a name stands for: ID, JOB, or JOB/INDEX, with NAMESPACE/
// before a job. An id counts first, unless --namespace says that a job is meant. It waits up to
// StartWait for a member that is about to start.
func (a *App) FindTarget(ctx context.Context, cl *client.Client, name string) (*Target, error) {
	if _, _, _, err := muster.AllocID(name).Parse(); err == nil && a.Namespace == "" {
		al, err := cl.Alloc(ctx, muster.AllocID(name))
		if err == nil {
			return &Target{name, muster.AllocID(name), al}, nil
		}
		if !client.IsNotFound(err) {
			return nil, err
		}
		// A job may be named like that as well.
	}
	job, index := name, -1
	if before, n, ok := SplitMember(name); ok {
		job, index = before, n
	}
	key, err := a.JobKey(job)
	if err != nil {
		return nil, WithHint(fmt.Errorf("there is no allocation or job %q", name), JobsHint)
	}
	j, err := cl.Job(ctx, key)
	if client.IsNotFound(err) {
		return nil, a.unknownTarget(ctx, cl, name, key)
	}
	if err != nil {
		return nil, err
	}
	if index >= j.Count {
		return nil, Failure(fmt.Errorf("job %s has no member %d: it has %d, counted from 0", key, index, j.Count))
	}
	al, err := a.startedAlloc(ctx, cl, key, j, index)
	if err != nil {
		return nil, err
	}
	return &Target{name, muster.AllocID(al.ID), al}, nil
}

// startWait is how long a command waits for a member that is about to start, and startLook how
// often it looks: `muster run --detach` answers before its members run, and whoever enters them
// next should not have to try.
const (
	// startWait is how long a command waits for a member that is about to start, startLook how
	// often it looks: `muster run --detach` answers before its members run.
	startWait = 30 * time.Second
	startLook = 50 * time.Millisecond
)

// startedAlloc is memberAlloc, but it waits up to StartWait for a member that has not started yet.
// It says so after a second: shorter waits are not worth a line.
func (a *App) startedAlloc(ctx context.Context, cl *client.Client, key muster.JobKey, j *api.Job, index int) (*api.Alloc, error) {
	told := false
	for began := time.Now(); ; {
		al, err := memberAlloc(ctx, cl, key, j, index)
		var early *notPlaced
		starts := errors.As(err, &early) ||
			err == nil && (al.Status == string(muster.AllocPlaced) || al.Status == string(muster.AllocStarting))
		if !starts || time.Since(began) >= a.StartWait {
			return al, err
		}
		if !told && time.Since(began) > time.Second {
			told = true
			_, _ = fmt.Fprintf(a.Stderr, "muster: waiting for job %s to start\n", key)
		}
		if !wait.For(ctx, startLook) {
			return nil, ctx.Err()
		}
		if j, err = cl.Job(ctx, key); err != nil {
			return nil, err
		}
	}
}

// notPlaced says that no member has been placed yet. It is told apart from other errors, because to
// wait helps.
type notPlaced struct{ error }

// memberAlloc is the allocation of a job's member that a command can be about. Of one member it is
// the newest. Of a job it is the only one that lives, or the newest of its only member; if more
// live, the user has to name one.
func memberAlloc(ctx context.Context, cl *client.Client, key muster.JobKey, j *api.Job, index int) (*api.Alloc, error) {
	q := client.AllocQuery{}
	if index >= 0 {
		q.Index = &index
	}
	var newest *api.Alloc
	live := map[int]*api.Alloc{}
	for al, err := range cl.AllJobAllocs(ctx, key, q) {
		if err != nil {
			return nil, err
		}
		if al.Version != j.Version || index >= 0 && al.Index != index {
			continue
		}
		if newest == nil || al.Placed.After(newest.Placed) || al.Placed.Equal(newest.Placed) && al.Attempt > newest.Attempt {
			newest = &al
		}
		if was := live[al.Index]; al.Status != string(muster.AllocEnded) && (was == nil || was.Attempt < al.Attempt) {
			live[al.Index] = &al
		}
	}
	switch {
	case len(live) == 1:
		for _, al := range live {
			return al, nil
		}
	case len(live) > 1:
		return nil, Failure(fmt.Errorf("%d members of job %s run; name one: %s", len(live), key, memberNames(key, live)))
	case newest == nil && j.Stage == string(muster.JobEnded):
		return nil, Failure(fmt.Errorf("job %s has ended: %s%s", key, j.Outcome, term.SuffixIf(j.Reason != "", ": "+j.Reason)))
	case newest == nil:
		return nil, &notPlaced{fmt.Errorf("no member of job %s has been placed yet%s; `muster job show %s` tells more", key, term.SuffixIf(j.Waits != "", ": "+j.Waits), key)}
	}
	// It has ended. Whoever asks says so, with how it ended.
	return newest, nil
}

// memberNames are names of members as users write them: the first few and the last, for a job may
// have thousands.
func memberNames(key muster.JobKey, live map[int]*api.Alloc) string {
	var indexes []int
	for i := range live {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	const most = 8
	var names []string
	for _, i := range indexes[:min(len(indexes), most)] {
		names = append(names, fmt.Sprintf("%s/%d", key, i))
	}
	text := strings.Join(names, ", ")
	if len(indexes) > most {
		text += fmt.Sprintf(" … %s/%d", key, indexes[len(indexes)-1])
	}
	return text
}

// unknownTarget says that there is no such allocation or job, and what is named nearly so. The
// names of others are only a hint, so an error on the way to them is none of the command.
func (a *App) unknownTarget(ctx context.Context, cl *client.Client, name string, key muster.JobKey) error {
	err := fmt.Errorf("there is no allocation or job %s", name)
	var known []string
	for j, e := range cl.AllJobs(ctx, client.JobQuery{}) {
		if e != nil || len(known) >= client.MaxPage {
			break // it is only a hint
		}
		known = append(known, JobKeyOf(j.Namespace, j.Name).String())
	}
	for al, e := range cl.AllAllocs(ctx, client.AllocQuery{Live: true}) {
		if e != nil || len(known) >= 2*client.MaxPage {
			break
		}
		known = append(known, al.ID)
	}
	for _, asked := range []string{name, key.String(), key.Name} {
		if near := nearest(asked, known); near != "" {
			return Failure(WithHint(err, fmt.Sprintf("did you mean %s?", near)))
		}
	}
	return Failure(WithHint(err, JobsHint))
}

// SplitMember takes JOB/INDEX apart. ok is false if there is no index at the end.
func SplitMember(name string) (job string, index int, ok bool) {
	before, last, ok := cutLast(name, "/")
	if !ok {
		return name, 0, false
	}
	n, err := strconv.Atoi(last)
	return before, n, err == nil && n >= 0
}

// CheckRunning refuses an allocation that does not run, and says how it stands: how it ended, or
// what its start is at. It judges by what is known of it already.
func (t *Target) CheckRunning(now time.Time) error {
	al := t.Alloc
	if al == nil {
		return nil
	}
	name := t.Describe()
	switch al.Status {
	case string(muster.AllocEnded):
		how := al.Outcome
		if why := AllocReason(al); why != "" && why != al.Outcome && al.Outcome != string(muster.OutcomeSucceeded) {
			how += ": " + why
		}
		when := ""
		if al.Ended != nil {
			when = fmt.Sprintf(" %s ago", term.Ago(al.Ended, now))
		}
		hint := fmt.Sprintf("`muster job logs %s` shows what it printed", JobKeyOf(al.Namespace, al.Job))
		if env, is := JobKeyOf(al.Namespace, al.Job).Environment(); is {
			hint = fmt.Sprintf("`muster claim %s` claims another runner", EnvironmentName(al.Namespace, env))
		}
		return Failure(WithHint(fmt.Errorf("%s has ended%s: %s", name, when, how), hint))
	case string(muster.AllocPlaced), string(muster.AllocStarting):
		return Failure(fmt.Errorf("%s has not started yet: it is %s%s; try again when it runs", name, al.Status, term.SuffixIf(al.Detail != "", ": "+al.Detail)))
	}
	return nil
}

// Describe names the allocation for people: as they wrote it, with its id.
func (t *Target) Describe() string {
	if t.Alloc == nil || t.Name == string(t.ID) {
		return "allocation " + string(t.ID)
	}
	return fmt.Sprintf("%s (allocation %s)", t.Name, t.ID)
}

// Explain makes an error about the allocation say what is the matter with it. The allocation is
// read again for that: it may have ended since it was found, and "it has ended: exit code 1" helps
// where "it does not run" does not. Other errors stay as they are.
func (t *Target) Explain(ctx context.Context, cl *client.Client, err error) error {
	code := client.Code(err)
	if p := (*api.Problem)(nil); errors.As(err, &p) && len(p.Errors) == 1 && p.Errors[0].Location == "query.path" {
		return fmt.Errorf("%s: %w", t.Name, err) // the problem names the path alone
	}
	if code != api.CodeEnded && code != api.CodeNotRunning && !client.IsGone(err) {
		return err
	}
	al, e := cl.Alloc(ctx, t.ID)
	if e != nil {
		return err
	}
	now := &Target{t.Name, t.ID, al}
	if e := now.CheckRunning(time.Now()); e != nil {
		return e
	}
	return err
}

// FindRunning connects, finds an allocation by name, and refuses one that does not run.
func (a *App) FindRunning(ctx context.Context, name string) (*client.Client, *Target, error) {
	cl, err := a.Connect()
	if err != nil {
		return nil, nil, err
	}
	t, err := a.FindTarget(ctx, cl, name)
	if err != nil {
		return nil, nil, err
	}
	if err := t.CheckRunning(time.Now()); err != nil {
		return nil, nil, err
	}
	return cl, t, nil
}

// ErrNoAlloc says that the allocation was left out. The example shows a right command line.
func ErrNoAlloc(example string) error {
	return Usage(errors.New("which allocation? name it, or its job, as in `" + example + "`"))
}
