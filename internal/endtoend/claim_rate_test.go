package endtoend

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/httpapi"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
)

var claimsFor = flag.Duration("endtoend.claims", 10*time.Second, "how long BenchmarkRunnerRate claims at its rate")

// stockroom is the part of a server that hands out runners, with the real log, over HTTP, and a node without sandboxes: what is wanted is
// placed and runs at once, and what is told to stop ends at once. Everything that a claim leaves in the log with
// real sandboxes is there as well.
type stockroom struct {
	*state.State
	log     *raftlog.Log
	runners *runners.Runners
	cl      *client.Client
}

func (s *stockroom) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	p, err := s.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	r, err := s.log.Propose(ctx, p)
	return r.Index, r.Value, err
}

func (s *stockroom) Snapshot() (raftlog.Image, error) { return s.Image(), nil }

// handsOut is runners.Runners as the service takes it.
type handsOut struct{ *runners.Runners }

func (h handsOut) Claim(ctx context.Context, r claim.Request) (*state.Claim, error) {
	return h.Runners.Claim(ctx, runners.Request(r))
}

func newStockroom(b *testing.B, warm int) *stockroom {
	b.Helper()
	fail := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	st, err := state.New(1 << 16)
	fail(err)
	s := &stockroom{State: st}
	s.log, err = raftlog.Open(raftlog.Config{Dir: b.TempDir(), Machine: s, LowWater: func(uint64) uint64 { return 0 }})
	fail(err)
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	leading := make(chan struct{})
	g.Go(func() error { return s.log.Run(ctx) })
	g.Go(func() error {
		return s.log.Lead(ctx, func(ctx context.Context, _ uint64) error {
			close(leading)
			<-ctx.Done()
			return nil
		})
	})
	<-leading
	spec := &api.EnvironmentSpec{Name: "e", Warm: api.WarmSpec{Target: &warm, Min: &warm}, Template: api.Template{Resources: api.ResourcesSpec{CPU: 0.001, Memory: 1 << 20}}}
	spec.Defaults()
	room := muster.Resources{CPU: 1 << 40, Memory: 1 << 55, Disk: 1 << 55}
	for _, f := range []state.Fact{
		&state.TermBegan{Term: 1, Cluster: "c1"},
		&state.NodeLaunching{ID: "n", Token: "t", Offering: muster.Offering{Capacity: room}},
		&state.NodeLaunched{ID: "n", Instance: "i"}, &state.NodeJoined{ID: "n", Capacity: room},
		&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: spec},
	} {
		_, _, err := s.Propose(ctx, f)
		fail(err)
	}
	s.runners, err = runners.New(runners.Config{State: st, Proposer: s, Keep: 5 * time.Second})
	fail(err)
	g.Go(func() error { return s.runners.Run(ctx) })
	g.Go(func() error { s.node(ctx); return nil })

	blobs, err := blob.New(blob.Config{Dir: b.TempDir()})
	fail(err)
	token := muster.NewSecret("a token")
	claims, err := claim.New(claim.Config{State: st, Proposer: s, Runners: func() claim.Runners { return handsOut{s.runners} }, Key: muster.NewSecret("a key")})
	fail(err)
	in, err := inside.New(inside.Config{State: st, Store: blobs, Claims: claims, Link: func() (inside.Link, error) {
		return nil, muster.Faultf(muster.FaultNotFound, "there is none")
	}})
	fail(err)
	sub, err := submit.New(submit.Config{State: st, Proposer: s, Uploads: blobs, Fits: func(*api.JobSpec, *state.Snapshot) (bool, string) { return true, "" }})
	fail(err)
	op, err := operate.New(operate.Config{State: st, Proposer: s, Link: func() (operate.Link, error) { return nil, muster.Faultf(muster.FaultNotFound, "there is none") }})
	fail(err)
	d, err := door.New(door.Config{State: st, Claims: claims, Token: token})
	fail(err)
	a, err := httpapi.New(httpapi.Config{
		State: st, Inside: in, Claims: claims, Door: d, Submit: sub, Operate: op, Loops: func() explain.Loops { return operate.Idle{} },
		Backup: func(context.Context, io.Writer) error { return nil }, Ready: func() error { return nil },
		Metrics: metrics.New(metrics.Config{State: st, Version: "bench"}),
	})
	fail(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	srv := &http.Server{Handler: a.Handler()}
	g.Go(func() error { _ = srv.Serve(l); return nil })
	s.cl, err = client.New(client.Config{Address: "http://" + l.Addr().String(), Token: token})
	fail(err)
	b.Cleanup(func() {
		_ = srv.Close()
		cancel()
		if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		_ = s.log.Close()
		_ = blobs.Close()
	})
	for s.Latest().JobByUID("u").Env.Warm < warm {
		<-time.After(time.Millisecond)
	}
	return s
}

// node does what nodes do, at once.
func (s *stockroom) node(ctx context.Context) {
	for ctx.Err() == nil {
		snap := s.Latest()
		j := snap.JobByUID("u")
		plan, report := &state.PlanCommitted{}, &state.AllocsReported{Node: "n"}
		for i := j.NextIndex; i < j.Count() && len(plan.Placements) < 500; i++ {
			plan.Placements = append(plan.Placements, state.Placement{UID: "u", Version: j.Version, Index: i, Attempt: 1, Node: "n"})
			report.Allocs = append(report.Allocs, state.AllocUpdate{ID: muster.NewAllocID("u", i, 1), Status: muster.AllocRunning})
		}
		snap.NodeAllocs("n", func(a *state.Alloc) bool {
			if a.Desired == muster.AllocStop {
				report.Allocs = append(report.Allocs, state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Output: &state.Output{Stage: state.OutputComplete}})
			}
			return true
		})
		if len(plan.Placements) > 0 {
			_, _, _ = s.Propose(ctx, plan)
		}
		if len(report.Allocs) > 0 {
			_, _, _ = s.Propose(ctx, report)
			continue
		}
		_ = s.Feed().Wait(ctx, snap.Index())
	}
}

// BenchmarkRunnerRate is 1,000 claims each second over HTTP, each given back after it was made, without sandboxes and with all that is
// durable; then as many as 64 clients make without a pause. The log alone is beside it in the same run: a proposal of its own after
// another, each after its fsync. Target: p50 below 2 ms, p99 below 20 ms.
func BenchmarkRunnerRate(b *testing.B) {
	const warm, perSecond, clients = 500, 1000, 64
	s := newStockroom(b, warm)
	ctx := context.Background()
	one := func() (time.Duration, bool) {
		began := time.Now()
		c, err := s.cl.Claim(ctx, api.ClaimRequest{Environment: "e", Wait: api.Duration(10 * time.Second)}, "")
		took := time.Since(began)
		if err != nil {
			b.Error(err)
			return took, false
		}
		if err := s.cl.Release(ctx, muster.AllocID(c.Runner)); err != nil {
			b.Error(err)
		}
		return took, true
	}
	measure := func(b *testing.B, next func() bool) {
		var mu sync.Mutex
		var all []time.Duration
		var wg sync.WaitGroup
		began := time.Now()
		for range clients {
			wg.Go(func() {
				for next() {
					took, ok := one()
					if !ok {
						return
					}
					mu.Lock()
					all = append(all, took)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(len(all))/time.Since(began).Seconds(), "claims-per-s")
		spread(b, "claim", all)
	}
	b.Run("1000-per-s", func(b *testing.B) {
		for range b.N {
			end := time.Now().Add(*claimsFor)
			var made atomic.Int64
			start := time.Now()
			measure(b, func() bool {
				n := made.Add(1)
				<-time.After(time.Until(start.Add(time.Duration(n) * time.Second / perSecond)))
				return time.Now().Before(end)
			})
		}
	})
	b.Run("peak", func(b *testing.B) {
		for range b.N {
			end := time.Now().Add(*claimsFor / 4)
			measure(b, func() bool { return time.Now().Before(end) })
		}
	})
	b.Run("log-alone", func(b *testing.B) {
		var all []time.Duration
		for range b.N {
			for range 300 {
				began := time.Now()
				if _, _, err := s.Propose(ctx, &state.ClaimsTouched{}); err != nil {
					b.Fatal(err)
				}
				all = append(all, time.Since(began))
			}
		}
		spread(b, "fact", all)
	})
	if err := s.Latest().Check(); err != nil {
		b.Fatal(err)
	}
}
