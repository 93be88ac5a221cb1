package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkScrape measures one scrape of the loops' metrics with links to 1,000 nodes.
func BenchmarkScrape(b *testing.B) {
	const nodes = 1000
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	log, err := linktest.NewLedger("c1")
	must(err)
	for i := range nodes {
		id := muster.NodeID(fmt.Sprintf("n%04d", i))
		for _, f := range []state.Fact{
			&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o"}},
			&state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)},
			&state.NodeJoined{ID: id},
		} {
			_, _, err := log.Propose(context.Background(), f)
			must(err)
		}
	}
	l := &loops{}
	l.broker, err = broker.New(broker.Config{State: log, Proposer: log})
	must(err)
	l.apply, err = apply.New(apply.Config{Snapshots: log, Proposer: log, Deliveries: l.broker})
	must(err)
	l.schedule, err = schedule.New(schedule.Config{State: log, Queue: l.broker, Submit: l.apply})
	must(err)
	l.fleet, err = fleet.New(fleet.Config{State: log, Proposer: log, Clock: log.Now})
	must(err)
	// The links exist without contact. They cost a scrape the same as those in contact.
	l.link, err = link.New(link.Config{State: log, Proposer: log, Blobs: &linktest.Blobs{}, Clock: log.Now,
		Dial: func(context.Context, *state.Node) (net.Conn, error) { return nil, errors.New("not reachable") }})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.link.Run(ctx) }()
	for l.link.Stats().Nodes < nodes {
		runtime.Gosched()
	}
	s := &loopStats{}
	s.set(l)
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(s, log, log.Now, nil))
	for b.Loop() {
		_, err := r.Gather()
		must(err)
	}
	cancel()
	must(<-done)
}
