package link

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestTunnel(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.submit("j", spec("sleep 1h"))
		id := r.place("j", "n1")[0]
		r.until("runs", time.Minute, allocIs(id, muster.AllocRunning))
		a := r.log.Latest().Alloc(id)
		ctx, cancel := context.WithCancel(context.Background())
		tunnel, err := r.link.Tunnel(ctx, a, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tunnel, "echo"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(tunnel, b); err != nil || string(b) != "echo" {
			t.Errorf("%q %v", b, err)
		}
		if s, err := r.link.AllocStats(ctx, a); err != nil || s.CPUMicros != 1000 {
			t.Errorf("%+v %v", s, err)
		}
		cancel()
		if _, err := tunnel.Read(b); err != context.Canceled {
			t.Errorf("%v", err)
		}

		// The node is cut off, then ends it.
		n.Cut(true)
		_, err = r.link.Tunnel(context.Background(), a, nil)
		if want := fmt.Sprintf("allocation %s on node n1 cannot be reached now (see `muster node show n1`): ", id); !muster.IsKind(err, muster.FaultUnavailable) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v", err)
		}
		n.Cut(false)
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "j"}})
		r.until("ended", time.Minute, allocIs(id, muster.AllocEnded))
		for what, err := range map[string]error{
			"before": func() error { _, err := r.link.Tunnel(context.Background(), a, nil); return err }(), // the row from before: the agent tells
			"after":  func() error { _, err := r.link.Tunnel(context.Background(), r.log.Latest().Alloc(id), nil); return err }(),
			"stats":  func() error { _, err := r.link.AllocStats(context.Background(), a); return err }(),
		} {
			if !muster.IsKind(err, muster.FaultTooOld) || !strings.Contains(err.Error(), "stopped") {
				t.Errorf("%s: %v", what, err)
			}
		}
		gone := *a
		gone.Node = "n9"
		if _, err := r.link.Tunnel(context.Background(), &gone, nil); !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "n9") {
			t.Errorf("%v", err)
		}
	})
}

// TestSenselessAnswersOfAnAgent: what an agent answers out of place is a failure of its node, which is named, and no defect of the server.
func TestSenselessAnswersOfAnAgent(t *testing.T) {
	for name, lie := range map[string]http.HandlerFunc{
		"no connection": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"another upgrade": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "h2c")
			w.WriteHeader(http.StatusSwitchingProtocols)
		},
		"its own defect":        func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "panic", http.StatusInternalServerError) },
		"a teapot":              func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"a redirect to nowhere": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) },
		"a refusal of a set": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":"other-cluster","message":"it obeys another"}`)
		},
		"an impossible offset": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(wire.HeaderOutputStart, "-1") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.boot("n1", 4, func(c *linktest.Config) { c.LieInside = lie })
				r.start()
				r.until("serving", time.Minute, serving("n1"))
				r.submit("j", spec("sleep 1h"))
				id := r.place("j", "n1")[0]
				r.until("runs", time.Minute, allocIs(id, muster.AllocRunning))
				a, ctx := r.log.Latest().Alloc(id), context.Background()
				for what, ask := range map[string]func() error{
					"tunnel": func() error { _, err := r.link.Tunnel(ctx, a, nil); return err },
					"stats":  func() error { _, err := r.link.AllocStats(ctx, a); return err },
					"images": func() error { _, err := r.link.Images(ctx, "n1"); return err },
					"prune":  func() error { _, err := r.link.PruneImages(ctx, "n1", true); return err },
					"pull": func() error {
						for _, err := range r.link.PullImage(ctx, "n1", "a:b", "") {
							if err != nil {
								return err
							}
						}
						return nil
					},
					"output": func() error {
						in, _, err := r.link.OpenOutput(ctx, a, wire.Stdout, 0, false)
						if err == nil {
							_ = in.Close()
						}
						return err
					},
				} {
					err := ask()
					if err == nil && what != "tunnel" {
						continue // an empty answer is one to some of them
					}
					if !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "node n1") {
						t.Errorf("%s: %s: %v", what, muster.KindOf(err), err)
					}
				}
			})
		})
	}
}

// TestTunnelBeforeStart: what is true of an allocation that does not run yet is told.
func TestTunnelBeforeStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		digest := "sha256:" + strings.Repeat("0", 64)
		r.submit("j", spec("sleep 1h", func(s *api.JobSpec) { s.Inputs = []api.InputSpec{{Path: "a", Digest: digest}} }))
		id := r.place("j", "n1")[0]
		synctest.Wait()
		time.Sleep(time.Second)
		a := r.log.Latest().Alloc(id)
		if a.Status == muster.AllocRunning || a.Status == muster.AllocEnded {
			t.Fatalf("%s", a.Status)
		}
		if _, err := r.link.Tunnel(context.Background(), a, nil); !muster.IsKind(err, muster.FaultConflict) || !strings.Contains(err.Error(), "is starting on node n1") {
			t.Errorf("%v", err)
		}
	})
}

// slowGrants make grants that take a while.
type slowGrants struct {
	mu      sync.Mutex
	asked   map[string]int
	refused []string
	now     int
	most    int
}

func (g *slowGrants) Refused(ref string, _ muster.Namespace, authorization string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = append(g.refused, ref+" "+authorization)
}

// Scope divides images by namespaces whose name begins with divided/.
func (*slowGrants) Scope(ref string, ns muster.Namespace) string {
	if !strings.HasPrefix(ref, "divided/") {
		return ""
	}
	return "scope of " + string(ns)
}

func (*slowGrants) FullName(ref string) string { return strings.TrimPrefix(ref, "hub/") }

func (g *slowGrants) Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant {
	g.mu.Lock()
	g.asked[ref]++
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	wait.For(ctx, 7*time.Second) // longer than a heartbeat: it is asked for again meanwhile
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
	if strings.HasPrefix(ref, "bad") {
		return wire.PullGrant{Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImageNotFound, Message: "no"}}
	}
	return wire.PullGrant{Authorization: "Bearer " + wire.GrantNeed(ref, ns), Scope: g.Scope(ref, ns)}
}

func TestGrants(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := &slowGrants{asked: map[string]int{}}
		r.config.Grants = g
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.use("n1", "a", "bad", "late")
		for i := range 3 * grantsAtOnce {
			r.use("n1", "many-"+strings.Repeat("x", i+1))
		}
		r.until("serving", time.Minute, serving("n1"))
		n.NeedGrants("a", "a", "", strings.Repeat("x", maxNeed+1))
		n.NeedGrants("bad")
		time.Sleep(30 * time.Second)
		given := map[string]wire.PullGrant{}
		for _, one := range n.Grants() {
			given[one.Ref] = one
		}
		if len(n.Grants()) != 2 || given["a"].Authorization != "Bearer a" || given["bad"].Failure == nil {
			t.Errorf("%+v", n.Grants())
		}
		if g.asked["a"] != 1 || g.asked["bad"] != 1 || len(g.asked) != 2 {
			t.Errorf("%v", g.asked)
		}
		// Many at once are made a bounded number at a time, and all of them.
		for i := range 3 * grantsAtOnce {
			n.NeedGrants("many-" + strings.Repeat("x", i+1))
		}
		time.Sleep(2 * time.Minute)
		clear(given)
		for _, one := range n.Grants() {
			given[one.Ref] = one // one that was asked for again while it was handed over may come twice
		}
		if len(given) != 2+3*grantsAtOnce || g.most > grantsAtOnce {
			t.Errorf("%d grants, %d at once", len(given), g.most)
		}
		// One that could not be handed over is made again.
		n.NeedGrants("late")
		synctest.Wait()
		n.Cut(true)
		time.Sleep(10 * time.Second)
		n.Cut(false)
		time.Sleep(time.Minute)
		all := n.Grants()
		if all[len(all)-1].Ref != "late" {
			t.Errorf("%+v", all[len(all)-1])
		}
		if r.link.Stats().Grants == 0 {
			t.Error("not counted")
		}
	})
}

// use places an allocation of each image, which runs until the test ends.
func (r *rig) use(node muster.NodeID, images ...string) {
	r.t.Helper()
	for _, image := range images {
		job := fmt.Sprintf("j%d", r.log.Latest().LiveAllocCount())
		r.submit(job, spec("sleep 1000h", func(s *api.JobSpec) {
			s.Image, s.Resources.CPU = image, 0.001
		}))
		r.place(job, node)
	}
}

// TestGrantsOnlyForUse: a node gets rights to pull only what the server has it run or pull.
func TestGrantsOnlyForUse(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := &slowGrants{asked: map[string]int{}}
		r.config.Grants = g
		n, other := r.boot("n1", 4), r.boot("n2", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.until("serving", time.Minute, serving("n2"))
		r.use("n1", "app")
		r.use("n2", "secret")
		n.NeedGrants("hub/app", "secret", "pulled")
		other.NeedGrants("secret")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		given := map[string]wire.PullGrant{}
		for _, one := range n.Grants() {
			given[one.Ref] = one
		}
		if given["hub/app"].Authorization != "Bearer hub/app" {
			t.Errorf("by its full name: %+v", given["hub/app"])
		}
		for _, ref := range []string{"secret", "pulled"} {
			if f := given[ref].Failure; f == nil || f.Class != muster.FailureUser || !strings.Contains(f.Message, "no live allocation on node n1") || given[ref].Authorization != "" {
				t.Errorf("%s: %+v", ref, given[ref])
			}
		}
		if all := other.Grants(); len(all) != 1 || all[0].Authorization != "Bearer secret" || g.asked["secret"] != 1 || g.asked["pulled"] != 0 {
			t.Errorf("%+v, asked %v", all, g.asked)
		}
		// A pull under way is a use, until it is over; so is an allocation until it has ended.
		nl := r.link.node("n1")
		done := nl.pulls.Ask("pulled")
		if !nl.mayPull("hub/pulled", "") {
			t.Error("not for a pull under way")
		}
		done()
		if nl.mayPull("hub/pulled", "") || len(nl.pulls.Asked()) != 0 {
			t.Error("for a pull that is over")
		}
		for range r.link.PullImage(context.Background(), "n1", "again", "") {
			if !nl.mayPull("hub/again", "") {
				t.Error("not for a pull that the server asked for")
			}
		}
		if nl.mayPull("hub/again", "") {
			t.Error("for a pull of the server that is over")
		}
		id := muster.AllocID("")
		r.log.Latest().NodeAllocs("n1", func(a *state.Alloc) bool { id = a.ID; return true })
		r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}}})
		if nl.mayPull("hub/app", "") {
			t.Error("for an allocation that has ended")
		}
	})
}

// TestGrantsOfNamespaces: where credentials depend on the namespace, a node gets those of namespaces
// that have a use for the image there, and of no others; its agent is told for whom it pulls.
func TestGrantsOfNamespaces(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.config.Grants = &slowGrants{asked: map[string]int{}}
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.use("n1", "divided/app", "plain")
		n.NeedGrants("divided/app default", "divided/app web", "divided/app", "plain")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		given := map[string]wire.PullGrant{}
		for _, g := range n.Grants() {
			given[wire.GrantNeed(g.Ref, g.Namespace)] = g
		}
		if g := given["divided/app default"]; g.Authorization != "Bearer divided/app default" || g.Scope != "scope of default" {
			t.Errorf("%+v", g)
		}
		if g := given["divided/app web"]; g.Failure == nil || g.Authorization != "" {
			t.Errorf("no member of web is here: %+v", g)
		}
		// Who names no namespace gets what is for all.
		if g := given["divided/app"]; g.Authorization != "Bearer divided/app" {
			t.Errorf("%+v", g)
		}
		pullers := map[string]wire.Puller{}
		for _, set := range n.Sets() {
			for i := range set.Allocs {
				if spec := set.Allocs[i].Spec; spec != nil {
					pullers[spec.Image] = spec.Puller()
				}
			}
		}
		want := map[string]wire.Puller{"plain": {}, "divided/app": {Namespace: "default", Scope: "scope of default"}}
		if !maps.Equal(pullers, want) {
			t.Errorf("%+v, want %+v", pullers, want)
		}
		nl := r.link.node("n1")
		for range r.link.PullImage(context.Background(), "n1", "divided/again", "web") {
			if !nl.mayPull("divided/again", "web") || nl.mayPull("divided/again", "default") || nl.mayPull("divided/again", "") {
				t.Error("a pull for web is one for others")
			}
		}
	})
}

// TestGrantAskedForAgain: what a node comes back for is not given again.
func TestGrantAskedForAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := &slowGrants{asked: map[string]int{}}
		r.config.Grants = g
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.use("n1", "a")
		n.NeedGrants("a")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(g.refused) != 0 || g.asked["a"] != 1 {
			t.Fatalf("%v %v", g.refused, g.asked)
		}
		s := newSession(r.link.node("n1"), "")
		if err := s.grantOne(context.Background(), "a"); err != nil || len(g.refused) != 1 || g.refused[0] != "a Bearer a" || g.asked["a"] != 2 {
			t.Errorf("%v: %v %v", err, g.refused, g.asked)
		}
	})
}

func TestNodeImages(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 4)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		var last wire.PullProgress
		for p, err := range r.link.PullImage(context.Background(), "n1", "a:b", "") {
			if err != nil {
				t.Fatal(err)
			}
			last = p
		}
		if last.Digest != "sha256:a:b" {
			t.Errorf("%+v", last)
		}
		if l, err := r.link.Images(context.Background(), "n1"); err != nil || len(l.Images) != 1 || l.Images[0].Ref != "a:b" {
			t.Errorf("%+v %v", l, err)
		}
		if p, err := r.link.PruneImages(context.Background(), "n1", true); err != nil || p.Freed != 1 {
			t.Errorf("%+v %v", p, err)
		}
		for _, err := range r.link.PullImage(context.Background(), "n9", "a", "") {
			if !muster.IsKind(err, muster.FaultUnavailable) {
				t.Errorf("%v", err)
			}
		}
		if _, err := r.link.Images(context.Background(), "n9"); !muster.IsKind(err, muster.FaultUnavailable) {
			t.Errorf("%v", err)
		}
		if _, err := r.link.PruneImages(context.Background(), "n9", false); !muster.IsKind(err, muster.FaultUnavailable) {
			t.Errorf("%v", err)
		}
	})
}
