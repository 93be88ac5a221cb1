// Package clouds tests a real server on each cloud that it has a driver for, by one scenario: a check
// of the provider, jobs, a kill of the server within a call, a notice, lost contact of so many nodes
// that the breaker trips, and nothing left in the end, by the books of the cloud itself.
//
// Clouds are stand-ins whose machines are network namespaces of this host, or machines of QEMU. make
// e2e-clouds runs all of it, make e2e-clouds-short what fits into two minutes.
package clouds

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/servertest"
)

var (
	enabled = flag.Bool("clouds.run", false, "run the tests; they make network namespaces and need root (make e2e-clouds)")
	full    = flag.Bool("clouds.full", false, "run all clouds and all faults, and not only what fits into two minutes")
	seed    = flag.Uint64("clouds.seed", uint64(time.Now().UnixNano()), "which call the server is killed at")
)

// table has a row for each cloud.
var table = []cloud{
	{name: "ec2", open: openEC2, short: true},
	{name: "hetzner", open: openHetzner, short: true},
	{name: "openstack", open: openOpenStack, short: true, brief: true},
	{name: "gce", open: openGCE, short: true, brief: true},
	{name: "azure", open: openAzure, short: true, brief: true},
	{name: "qemu", open: openQemu, alone: true},
}

// need skips a test where its machines cannot be made.
func need(t *testing.T) {
	t.Helper()
	if !*enabled {
		t.Skip("run by make e2e-clouds")
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"/usr/sbin/sshd", "ip", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
}

// needFull skips what the short form has no time for.
func needFull(t *testing.T) {
	t.Helper()
	if need(t); !*full {
		t.Skip("not in the short form")
	}
}

// chance is the test's own stream of chance. The seed is printed when the test fails.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-clouds.seed %d", *seed)
		}
	})
	var about uint64
	for _, b := range []byte(t.Name()) {
		about = about*31 + uint64(b)
	}
	return rand.New(rand.NewPCG(*seed, about))
}

// world is a server on a cloud.
type world struct {
	*servertest.Server
	t *testing.T
	c *stand
	g *gate
	// dir is where jobs write what they did. Machines in namespaces share this host's files.
	dir string
}

// pool is the only pool. Nodes without work are ended at once.
const pool = "- {name: main, provider: cloud, max: %d, grace: %s, boot_timeout: %s, idle_timeout: %s, price_factor: 4%s}"

// serve starts a server on a cloud.
func serve(t *testing.T, c *stand, idle string) *world {
	t.Helper()
	return serveWith(t, c, idle, nil)
}

// serveWith is serve with something in the data directory before the server starts.
func serveWith(t *testing.T, c *stand, idle string, prepare func(*servertest.Server)) *world {
	t.Helper()
	program, err := filepath.Abs("../../bin/muster")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, c: c, dir: t.TempDir()}
	if c.api != "" {
		w.g = newGate(t, c.api)
	}
	var env []string
	if c.env != nil {
		env = c.env(w.address())
	}
	w.Server = servertest.StartWith(t, program, servertest.Options{Text: w.config(idle), Env: env, Prepare: prepare})
	if c.placed != nil {
		c.placed(w)
	}
	return w
}

// config is the configuration of the server, by which a machine without work stays for a time.
func (w *world) config(idle string) string {
	c := w.c
	return "providers:\n" + c.provider("cloud", w.address()) +
		"pools:\n" + fmt.Sprintf(pool, cmp.Or(c.most, 8), cmp.Or(c.grace, "5s"), cmp.Or(c.boot, "1m"), idle, c.pool) + "\n" + c.pools
}

// address is that of the gate before the cloud's API; empty without one.
func (w *world) address() string {
	if w.g == nil {
		return ""
	}
	return w.g.URL
}

// succeeds runs a command of the CLI that must succeed.
func (w *world) succeeds(args ...string) string {
	w.t.Helper()
	out, status := w.Run(args...)
	if status != 0 {
		w.t.Fatalf("muster %s: exit %d\n%s", strings.Join(args, " "), status, out)
	}
	return out
}

// submit submits a job of a shell's commands. The server may be killed meanwhile: it is told again
// until it has the job.
func (w *world) submit(name string, count int, script string, more ...string) error {
	args := append([]string{"run", "--detach", "--name", name, "--count", fmt.Sprint(count), "--memory", "64MiB"}, more...)
	args = append(args, "--", "sh", "-c", script)
	for ctx := w.t.Context(); ctx.Err() == nil; {
		out, err := w.Command(args...).CombinedOutput()
		if err == nil || strings.Contains(string(out), "exists") {
			return nil
		}
		if !strings.Contains(string(out), "reach") && !strings.Contains(string(out), "server") {
			return fmt.Errorf("muster %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return context.Canceled
}

func (w *world) job(name string) (*api.Job, error) {
	return w.Client.Job(w.t.Context(), muster.JobKey{Namespace: muster.DefaultNamespace, Name: name})
}

// ended waits until jobs have succeeded, and checks that each ended once.
func (w *world) ended(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.Until("job "+name+" has ended", func() bool {
			j, err := w.job(name)
			if err == nil && j.Stage == string(muster.JobEnded) && j.Outcome != "succeeded" {
				w.t.Fatalf("job %s: %s", name, j.Outcome)
			}
			return err == nil && j.Stage == string(muster.JobEnded)
		})
		out := w.succeeds("events", "--json", "--job", name)
		if n := strings.Count(out, `"job.ended"`); n != 1 {
			w.t.Errorf("job %s ended %d times:\n%s", name, n, out)
		}
	}
}

// running are the nodes on which members of a job run, by the index of the member.
func (w *world) running(job string) map[int]api.Node {
	w.t.Helper()
	out := map[int]api.Node{}
	key := muster.JobKey{Namespace: muster.DefaultNamespace, Name: job}
	for a, err := range w.Client.AllJobAllocs(w.t.Context(), key, client.AllocQuery{}) {
		if err != nil {
			return nil // the server is being started again
		}
		if a.Status != string(muster.AllocRunning) || a.Unreachable {
			continue
		}
		n, err := w.Client.Node(w.t.Context(), muster.NodeID(a.Node))
		if err != nil {
			return nil
		}
		out[a.Index] = *n
	}
	return out
}

// empty waits until the cloud has nothing that costs, by its own books, and checks that no token has
// made two machines.
func (w *world) empty() {
	w.t.Helper()
	var b books
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("the books: %+v", b)
		}
	})
	w.Until("the books are empty", func() bool { b = w.c.books(w.t); return b.empty() })
	w.tokens(b)
}

func (w *world) tokens(b books) {
	w.t.Helper()
	for token, ids := range b.byToken {
		if token == "" || len(ids) > 1 {
			w.t.Errorf("token %q has made %v", token, ids)
		}
	}
}

// killed kills the server at the nth call, and starts it again once that has happened.
func (w *world) killed(n int, counts func(*http.Request, []byte) bool, answered bool, meanwhile func() error) {
	w.t.Helper()
	done := w.g.at(n, counts, answered, w.Kill)
	failed := make(chan error, 1)
	go func() { failed <- meanwhile() }()
	select {
	case <-done:
	case <-time.After(time.Until(deadline(w.t))):
		w.t.Fatalf("call %d never came", n)
	}
	w.Again()
	if err := <-failed; err != nil {
		w.t.Fatal(err)
	}
}

func deadline(t *testing.T) time.Time {
	at, _ := t.Deadline()
	return at.Add(-15 * time.Second)
}

// jobs are submitted in the scenario, fewJobs where it is brief.
const jobs, fewJobs = 20, 8

// TestScenario is the one scenario, on each cloud.
func TestScenario(t *testing.T) {
	need(t)
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			if !row.short && !*full {
				t.Skip("not in the short form")
			}
			if !row.alone {
				t.Parallel()
			}
			c := row.open(t, "")
			w := serve(t, c, cmp.Or(c.idle, "1s"))
			rng := chance(t)
			w.step("the check of the provider", w.check)
			brief, n := row.brief && !*full, jobs
			if brief {
				n = fewJobs
			}
			w.step(fmt.Sprint(n, " jobs and two kills"), func() { w.manyJobs(n, rng) })
			if w.c.oci {
				w.step("a container", w.container)
			}
			if w.c.take != nil {
				w.step("two markets and a notice", w.markets)
			}
			if brief {
				t.Log("no breaker in the short form of this cloud")
			} else {
				w.step("the breaker", w.breaker)
			}
			if w.g == nil {
				w.step("a kill within a destroy", w.killedWhileDestroying)
			}
			w.step("nothing is left", w.empty)
		})
	}
}

// step is a part of the scenario. What it took is printed with -v.
func (w *world) step(what string, do func()) {
	w.t.Helper()
	began := time.Now()
	do()
	w.t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
}

// check is `provider check`: it makes one machine and ends it.
func (w *world) check() {
	w.t.Helper()
	if out := w.succeeds("provider", "check", "cloud", "--timeout", cmp.Or(w.c.boot, "10m")); !strings.Contains(out, "provider cloud works") {
		w.t.Errorf("%s", out)
	}
	w.empty()
}

// manyJobs submits jobs while the server is killed twice: at a call that changes something, after
// the cloud has done it, and at any call, before the cloud gets it.
func (w *world) manyJobs(jobs int, rng *rand.Rand) {
	w.t.Helper()
	var names []string
	for i := range jobs {
		names = append(names, fmt.Sprint("job", i))
	}
	all := func() error {
		var wg sync.WaitGroup
		failed := make([]error, len(names))
		turn := make(chan struct{}, 2) // each is a process, and so is the server
		for i, name := range names {
			turn <- struct{}{}
			wg.Go(func() {
				failed[i] = w.submit(name, 1, "sleep 1", "--cpu", cmp.Or(w.c.jobCPU, "1"))
				<-turn
			})
		}
		wg.Wait()
		for _, err := range failed {
			if err != nil {
				return err
			}
		}
		return nil
	}
	nothing := func() error { return nil }
	if w.g == nil {
		w.killsBetweenSteps(rng, names, all)
	} else {
		w.killed(1+rng.IntN(3), w.c.changes, true, all)
		w.killed(1+rng.IntN(6), anyCall, false, nothing)
	}
	w.ended(names...)
	if w.c.idle == "" {
		w.empty()
	}
}

// killsBetweenSteps kills the server of a cloud without calls twice: within a create, after a drawn
// step of it, and after a drawn number of jobs.
func (w *world) killsBetweenSteps(rng *rand.Rand, names []string, submit func() error) {
	w.t.Helper()
	failed := make(chan error, 1)
	go func() { failed <- submit() }()
	step := w.c.creating[rng.IntN(len(w.c.creating))]
	w.killedWhen(step.what, step.now)
	if err := <-failed; err != nil {
		w.t.Fatal(err)
	}
	n := 1 + rng.IntN(len(names)/2)
	w.killedWhen(fmt.Sprint(n, " jobs have ended"), func() bool {
		ended := 0
		for _, name := range names {
			if j, err := w.job(name); err == nil && j.Stage == string(muster.JobEnded) {
				ended++
			}
		}
		return ended >= n
	})
}

// killedWhen kills the server as soon as something holds, and starts it again.
func (w *world) killedWhen(what string, holds func() bool) {
	w.t.Helper()
	w.Until(what, holds)
	w.Kill()
	w.t.Logf("killed: %s", what)
	w.Again()
}

// killedWhileDestroying has machines without work end at once, and kills the server when the first goes.
func (w *world) killedWhileDestroying() {
	w.t.Helper()
	there := w.c.books(w.t).machines
	w.Reload(w.config("1s"))
	w.killedWhen("a machine is being destroyed", func() bool {
		now := w.c.books(w.t).machines
		return len(now) == 0 || slices.ContainsFunc(there, func(id string) bool { return !slices.Contains(now, id) })
	})
}

// stays runs until its machine is lost, and its next attempt succeeds at once.
const stays = "test $MUSTER_ATTEMPT -gt 1 || sleep 600"

// allocs are all attempts of a job's members.
func (w *world) allocs(job string) []api.Alloc {
	w.t.Helper()
	var out []api.Alloc
	key := muster.JobKey{Namespace: muster.DefaultNamespace, Name: job}
	for a, err := range w.Client.AllJobAllocs(w.t.Context(), key, client.AllocQuery{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// elsewhere waits until a job has succeeded, and checks that no member did so on a machine that was
// lost.
func (w *world) elsewhere(job string, lost map[int]api.Node) {
	w.t.Helper()
	w.ended(job)
	for _, a := range w.allocs(job) {
		if a.Outcome == "succeeded" && a.Node == lost[a.Index].ID {
			w.t.Errorf("member %d of %s has succeeded on node %s, which was lost", a.Index, job, a.Node)
		}
	}
}

// markets has work in both markets, and the cloud takes the spot machine back after a notice: its work
// runs again elsewhere, and nothing is lost.
func (w *world) markets() {
	w.t.Helper()
	spot, onDemand := string(muster.Spot), string(muster.OnDemand)
	if err := w.submit(onDemand, 1, "true", "--constraint", "market="+onDemand); err != nil {
		w.t.Fatal(err)
	}
	if err := w.submit(spot, 1, stays, "--constraint", "market="+spot); err != nil {
		w.t.Fatal(err)
	}
	w.Until("the spot machine has work", func() bool { return len(w.running(spot)) == 1 })
	was := w.running(spot)
	if !w.c.take(was[0].Instance, 10*time.Second) {
		w.t.Fatalf("the cloud does not know instance %s", was[0].Instance)
	}
	w.Until("the notice is known", func() bool {
		n, err := w.Client.Node(w.t.Context(), muster.NodeID(was[0].ID))
		return err == nil && n.Stage != string(muster.NodeServing) && strings.Contains(n.Reason, "notice")
	})
	w.elsewhere(spot, was)
	w.ended(onDemand)
}

// unexplained is how many nodes that are out of contact a pool of so few gives up before its breaker
// trips.
const unexplained = 3

// breaker cuts so many nodes off that the breaker trips. Nothing more is destroyed until the pool is
// resumed; then the work runs on other machines.
func (w *world) breaker() {
	w.t.Helper()
	breakers := cmp.Or(w.c.breakers, 5)
	// A machine of two cores has room for one member.
	if err := w.submit("broken", breakers, stays, "--cpu", "1.5"); err != nil {
		w.t.Fatal(err)
	}
	w.Until("all members run", func() bool { return len(w.running("broken")) == breakers })
	was := w.running("broken")
	var cut []string
	for _, n := range was {
		cut = append(cut, n.Instance)
	}
	for _, id := range cut {
		w.c.cut(w.t, id, true)
	}
	w.Until("the breaker has tripped", func() bool {
		p, err := w.Client.Pool(w.t.Context(), "main")
		return err == nil && p.Breaker.Tripped != nil
	})
	there := w.c.books(w.t).machines
	kept := slices.DeleteFunc(slices.Clone(cut), func(id string) bool { return !slices.Contains(there, id) })
	if len(kept) < breakers-unexplained {
		w.t.Errorf("of %v, which lost contact, only %v are there although the breaker has tripped", cut, kept)
	}
	w.succeeds("pool", "resume", "main", "--reason", "the network is broken")
	w.elsewhere("broken", was)
}
