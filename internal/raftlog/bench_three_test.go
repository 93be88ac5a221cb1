package raftlog

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/testwait"
)

// Proposals to three servers beside one, and beside bare hashicorp/raft on three over the same TLS and the
// same kind of log. All three share this machine's processors and its disk, which real ones do not.
//
//	go test -run xxx -bench Three -benchtime 2s ./internal/raftlog
func BenchmarkThree(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("one/proposers=%d", n), func(b *testing.B) { benchMuster(b, n) })
		b.Run(fmt.Sprintf("three/proposers=%d", n), func(b *testing.B) { benchThree(b, n) })
		b.Run(fmt.Sprintf("bare-three/proposers=%d", n), func(b *testing.B) { benchBareThree(b, n) })
	}
}

func benchThree(b *testing.B, proposers int) {
	ps := three(b, func(p *peer) Config {
		return Config{Dir: p.dir, Machine: blank{}, LowWater: func(uint64) uint64 { return 0 }}
	})
	leader := leaderOf(b, ps)
	before := leader.Applied()
	spread(b, proposers, func(p []byte) error {
		_, err := leader.Propose(context.Background(), p)
		return err
	})
	b.ReportMetric(float64(b.N)/float64(leader.Applied()-before), "proposals/entry")
}

// Reads that must not be stale, beside proposals.
func BenchmarkReadIndex(b *testing.B) {
	ps := three(b, func(p *peer) Config {
		return Config{Dir: p.dir, Machine: blank{}, LowWater: func(uint64) uint64 { return 0 }}
	})
	leader := leaderOf(b, ps)
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("readers=%d", n), func(b *testing.B) {
			spread(b, n, func([]byte) error {
				_, err := leader.ReadIndex(context.Background())
				return err
			})
		})
	}
}

func benchBareThree(b *testing.B, proposers int) {
	a := authority(b)
	var servers []raft.Server
	var listeners []net.Listener
	for i := range 3 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		listeners = append(listeners, ln)
		servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprintf("s-%d", i)), Address: raft.ServerAddress(ln.Addr().String())})
	}
	var rs []*raft.Raft
	for i := range 3 {
		identity, err := peers.NewIdentity(a, string(servers[i].ID), time.Now())
		if err != nil {
			b.Fatal(err)
		}
		node := peers.New(peers.Config{Identity: identity, Listener: listeners[i], Address: string(servers[i].Address)})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- node.Run(ctx) }()
		w, err := wal.Open(b.TempDir(), wal.WithLogger(hclog.NewNullLogger()))
		if err != nil {
			b.Fatal(err)
		}
		conf := raft.DefaultConfig()
		conf.LocalID, conf.Logger = servers[i].ID, hclog.NewNullLogger()
		snaps := raft.NewInmemSnapshotStore()
		transport := NewTransport(node.Log(), nil)
		if err := raft.BootstrapCluster(conf, w, w, snaps, transport, raft.Configuration{Servers: servers}); err != nil {
			b.Fatal(err)
		}
		r, err := raft.NewRaft(conf, nothing{}, w, w, snaps, transport)
		if err != nil {
			b.Fatal(err)
		}
		rs = append(rs, r)
		b.Cleanup(func() {
			_ = r.Shutdown().Error()
			cancel()
			<-done
			_ = w.Close()
		})
	}
	var leader *raft.Raft
	testwait.Until(b, "one leads", func() bool {
		for _, r := range rs {
			if r.State() == raft.Leader && r.Barrier(0).Error() == nil {
				leader = r
				return true
			}
		}
		return false
	})
	spread(b, proposers, func(p []byte) error { return leader.Apply(p, 0).Error() })
}
