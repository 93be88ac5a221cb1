package clouds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/servertest"
	"github.com/musterhq/muster/internal/wait"
)

// trio is a cluster of three servers on one cloud.
type trio struct {
	*world
	all  []*servertest.Server
	apis []string
	// links are their connections to each other.
	links *links
	// client uses any of them.
	client *client.Client
}

// serveThree starts three servers: the first founds the cluster, the others join.
func serveThree(t *testing.T, c *stand) *trio {
	t.Helper()
	program, err := filepath.Abs("../../bin/muster")
	if err != nil {
		t.Fatal(err)
	}
	out := &trio{world: &world{t: t, c: c, dir: t.TempDir()}}
	shared := t.TempDir()
	out.links = newLinks(t, func(i int) int {
		if i >= len(out.all) {
			return 0
		}
		return out.all[i].PID()
	})
	peers := ""
	for i, name := range []string{"a", "b", "c"} {
		address, own, listen := servertest.FreeAddress(t), servertest.FreeAddress(t), servertest.FreeAddress(t)
		out.links.serve(i, address, own)
		args := []string{"--bootstrap"}
		if i == 0 {
			peers = address
		} else {
			token := strings.TrimSpace(firstLine(out.succeeds("servers", "join-token")))
			args = []string{"--join", peers, "--token", token}
		}
		text := fmt.Sprintf("cluster: {name: %s, address: %q, listen: %q, api: %q}\nblob: {url: %q}\n", name, address, own, listen, "file://"+shared) +
			"providers:\n" + c.provider("cloud", c.api) + "pools:\n" + fmt.Sprintf(pool, 8, "5s", "1m", "5s", "") + "\n"
		s := servertest.StartWith(t, program, servertest.Options{Text: text, Listen: listen, Args: args})
		out.all, out.apis = append(out.all, s), append(out.apis, listen)
		if i == 0 {
			out.Server = s
		}
	}
	token, err := os.ReadFile(filepath.Join(out.all[2].DataDir(), "token"))
	if err != nil {
		t.Fatal(err)
	}
	out.client, err = client.New(client.Config{Address: strings.Join(out.apis, ","), Token: muster.NewSecret(strings.TrimSpace(string(token))), RetryFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	out.Until("all three vote", func() bool { return out.voters() == 3 })
	return out
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// voters are how many servers vote, the leader included.
func (w *trio) voters() int {
	l, err := w.client.Servers(w.t.Context(), false)
	if err != nil {
		return 0
	}
	n := 0
	for _, s := range l.Servers {
		if s.Role == api.RoleVoter || s.Role == api.RoleLeader {
			n++
		}
	}
	return n
}

// leader is the server that leads, by its place; -1 if none says so.
func (w *trio) leader() int {
	for i, s := range w.all {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		info, err := s.Client.Patient(-1).Server(ctx)
		cancel()
		if err == nil && info.Leader {
			return i
		}
	}
	return -1
}

// record is what clients have seen: what was acknowledged, and when.
type record struct {
	mu       sync.Mutex
	jobs     []string
	claims   []muster.ClaimID
	acks     []time.Time
	problems []error
}

func (r *record) ack(job string, claim muster.ClaimID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks = append(r.acks, time.Now())
	if job != "" {
		r.jobs = append(r.jobs, job)
	}
	if claim != "" {
		r.claims = append(r.claims, claim)
	}
}

func (r *record) wrong(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, err)
}

// count is how many requests were acknowledged so far.
func (r *record) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acks)
}

// submitJobs submits jobs one after the other until ctx ends. Each job notes outside of its sandbox that it ran.
func (w *trio) submitJobs(ctx context.Context, by int, r *record) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("j%d-%d", by, i)
		script := fmt.Sprintf("echo start %s >> %s/ran; sleep 0.1; echo end %s >> %s/ran", name, w.dir, name, w.dir)
		spec := api.JobSpec{Name: name, Template: api.Template{Command: []string{"sh", "-c", script}, Resources: api.ResourcesSpec{CPU: 0.1, Memory: 16 << 20}}}
		if _, err := w.client.Submit(w.t.Context(), api.JobSubmission{Spec: spec}, "key-"+name); err != nil {
			r.wrong(fmt.Errorf("submit %s: %w", name, err))
			return
		}
		r.ack(name, "")
		wait.For(ctx, 200*time.Millisecond)
	}
}

// useRunners claims a runner, runs a command in it and releases it, until ctx ends. An execution may be cut off
// by a server that dies; what was acknowledged may not be lost.
func (w *trio) useRunners(ctx context.Context, r *record) {
	for i := 0; ctx.Err() == nil; i++ {
		c, err := w.client.Claim(w.t.Context(), api.ClaimRequest{Environment: "shell", Wait: api.Duration(30 * time.Second)}, fmt.Sprint("claim-", i))
		if err != nil {
			r.wrong(fmt.Errorf("claim %d: %w", i, err))
			return
		}
		runner := muster.AllocID(c.Runner)
		if _, err := w.client.RunExec(w.t.Context(), runner, api.ExecRequest{Command: []string{"true"}}); client.IsNotFound(err) {
			r.wrong(fmt.Errorf("execution in runner %s of claim %s, which was acknowledged: %w", runner, c.ID, err))
		}
		if err := w.client.Release(w.t.Context(), runner); err != nil {
			r.wrong(fmt.Errorf("release of %s: %w", runner, err))
			return
		}
		r.ack("", muster.ClaimID(c.ID))
		wait.For(ctx, 100*time.Millisecond)
	}
}

// fault does something bad to a server, and puts it right again.
func (w *trio) fault(rng *rand.Rand) (what string) {
	i := w.leader()
	if i < 0 || rng.IntN(4) == 0 {
		i = rng.IntN(3)
	}
	s := w.all[i]
	switch rng.IntN(6) {
	case 5:
		w.links.set(func() { w.links.delay = 500 * time.Millisecond })
		wait.For(w.t.Context(), 5*time.Second)
		w.links.heal()
		return "500 ms of latency for 5 s"
	case 4:
		w.links.cutOff(i, false)
		wait.For(w.t.Context(), 5*time.Second)
		w.links.heal()
		return fmt.Sprintf("server %d not heard by the others for 5 s", i)
	case 3:
		w.links.cutOff(i, true)
		wait.For(w.t.Context(), 5*time.Second)
		w.links.heal()
		return fmt.Sprintf("server %d cut off for 5 s", i)
	case 0:
		s.Kill()
		s.Again()
		return fmt.Sprintf("server %d killed", i)
	case 1:
		s.Signal(syscall.SIGSTOP)
		wait.For(w.t.Context(), 4*time.Second)
		s.Signal(syscall.SIGCONT)
		return fmt.Sprintf("server %d stopped for 4 s", i)
	}
	s.Signal(syscall.SIGTERM)
	s.Kill()
	s.Again()
	return fmt.Sprintf("server %d ended and started again", i)
}

// TestThreeServers has clients submit, claim and run while servers die and freeze. Nothing that was
// acknowledged is lost, and nothing runs twice.
func TestThreeServers(t *testing.T) {
	need(t)
	w := serveThree(t, openEC2(t, ""))
	warm := 2
	if _, err := w.client.SetEnvironment(t.Context(), api.EnvironmentSetting{Spec: api.EnvironmentSpec{Name: "shell", Warm: api.WarmSpec{Min: &warm}, Template: api.Template{Command: []string{"sleep", "infinity"}, Resources: api.ResourcesSpec{CPU: 0.1, Memory: 16 << 20}}}}); err != nil {
		t.Fatal(err)
	}
	r, rng := &record{}, chance(t)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 2 {
		clients.Go(func() { w.submitJobs(ctx, i, r) })
	}
	clients.Go(func() { w.useRunners(ctx, r) })
	w.Until("the first requests are answered", func() bool { return r.count() > 5 })
	faults := 4
	if *full {
		faults = 20
	}
	var outages []time.Duration
	for range faults {
		began, before := time.Now(), r.count()
		what := w.fault(rng)
		w.Until("requests are answered after "+what, func() bool { return r.count() > before+3 })
		gap := r.longestGap(began)
		outages = append(outages, gap)
		t.Logf("%s: at most %s between two answers", what, gap.Round(10*time.Millisecond))
	}
	stop()
	clients.Wait()
	slices.Sort(outages)
	t.Logf("%d jobs, %d claims; the longest time between two answers: median %s, worst %s", len(r.jobs), len(r.claims), outages[len(outages)/2].Round(10*time.Millisecond), outages[len(outages)-1].Round(10*time.Millisecond))
	for _, err := range r.problems {
		t.Error(err)
	}
	w.checkRecord(r)
	if err := w.client.DeleteEnvironment(t.Context(), string(muster.DefaultNamespace), "shell", true); err != nil {
		t.Fatal(err)
	}
	w.step("nothing is left", w.empty)
}

// longestGap is the longest time between two answers since a time.
func (r *record) longestGap(since time.Time) (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := since
	for _, at := range r.acks {
		if at.Before(since) {
			continue
		}
		longest = max(longest, at.Sub(last))
		last = at
	}
	return longest
}

// checkRecord checks that every server has what was acknowledged, that each job ran once, and that the events
// of all servers are the same.
func (w *trio) checkRecord(r *record) {
	w.t.Helper()
	for _, name := range r.jobs {
		w.Until("job "+name+" has ended", func() bool {
			j, err := w.client.Job(w.t.Context(), muster.JobKey{Namespace: muster.DefaultNamespace, Name: name})
			if client.IsNotFound(err) {
				w.t.Fatalf("job %s was acknowledged and is not there", name)
			}
			if err == nil && j.Stage == string(muster.JobEnded) && j.Outcome != string(muster.JobSucceeded) {
				w.t.Fatalf("job %s: %s: %s", name, j.Outcome, j.Reason)
			}
			return err == nil && j.Stage == string(muster.JobEnded)
		})
	}
	b, err := os.ReadFile(filepath.Join(w.dir, "ran"))
	if err != nil {
		w.t.Fatal(err)
	}
	ran := map[string]int{}
	for line := range strings.Lines(string(b)) {
		ran[strings.TrimSpace(line)]++
	}
	for _, name := range r.jobs {
		if starts, ends := ran["start "+name], ran["end "+name]; starts != 1 || ends != 1 {
			w.t.Errorf("job %s started %d times and ended %d times", name, starts, ends)
		}
	}
	held := map[string]bool{}
	for c, err := range w.client.Claims(w.t.Context(), muster.ClaimHeld) {
		if err != nil {
			w.t.Fatal(err)
		}
		held[c.ID] = true
	}
	for _, id := range r.claims {
		if held[string(id)] {
			w.t.Errorf("claim %s was released and is held", id)
		}
	}
	var first []string
	for i, s := range w.all {
		ids, err := events(w.t.Context(), s.Client)
		if err != nil {
			w.t.Fatal(err)
		}
		for k := 1; k < len(ids); k++ {
			if !before(ids[k-1], ids[k]) {
				w.t.Errorf("server %d: event %s comes after %s", i, ids[k], ids[k-1])
			}
		}
		if i == 0 {
			first = ids
		} else if id := difference(first, ids); id != "" {
			w.t.Errorf("event %s is on one of the servers 0 and %d only", id, i)
		}
	}
}

// events are the ids of all events that a server keeps.
func events(ctx context.Context, c *client.Client) (ids []string, err error) {
	for e, err := range c.Events(ctx, client.EventQuery{After: client.Oldest, Once: true}) {
		if err != nil {
			return ids, err
		}
		ids = append(ids, e.ID)
	}
	return ids, nil
}

// before reports whether an event comes before another one, by their ids: an index of the log, and a place
// in its entry.
func before(a, b string) bool {
	i, j := place(a), place(b)
	return i[0] < j[0] || i[0] == j[0] && i[1] < j[1]
}

func place(id string) (at [2]uint64) {
	_, _ = fmt.Sscanf(id, "%d.%d", &at[0], &at[1]) // an id without a place has the place 0
	return at
}

// difference is the first event of one list that the other one lacks, between what both keep; "" if there is
// none.
func difference(a, b []string) string {
	if len(a) == 0 || len(b) == 0 {
		return ""
	}
	for _, lists := range [][2][]string{{a, b}, {b, a}} {
		has := map[string]bool{}
		for _, id := range lists[1] {
			has[id] = true
		}
		for _, id := range lists[0] {
			if !has[id] && !before(id, lists[1][0]) && !before(lists[1][len(lists[1])-1], id) {
				return id
			}
		}
	}
	return ""
}
