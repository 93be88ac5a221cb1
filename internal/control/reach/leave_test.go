package reach

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/state"
)

// slowAccess is a provider that answers Access when it is told to, as one that runs a program for it.
type slowAccess struct {
	cloud.Provider
	access cloud.Access
	asked  chan struct{}
	answer chan struct{}
}

func (s *slowAccess) Access(context.Context, muster.InstanceID) (cloud.Access, error) {
	s.asked <- struct{}{}
	<-s.answer
	return s.access, nil
}

// A request that is under way when its node is left must not put the host back: it would be dialled for ever.
func TestDialAfterLeaveKeepsNoHost(t *testing.T) {
	private, public, err := remote.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(private.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &slowAccess{asked: make(chan struct{}), answer: make(chan struct{}),
		access: cloud.Access{Address: "127.0.0.1:1", User: "root", KeyFile: keyFile, HostKeys: []string{public}}}
	r, err := New(Config{Provider: func(muster.ProviderName) cloud.Provider { return p }, Programs: &Programs{}, Cluster: func() string { return "c1" }})
	if err != nil {
		t.Fatal(err)
	}
	node := &state.Node{ID: "n1", Instance: "i1", Joined: 1, Stage: muster.NodeServing, Offering: muster.Offering{Provider: "p"}}
	for _, c := range []struct {
		name string
		call func(ctx context.Context) error
	}{
		{"dial", func(ctx context.Context) error { _, err := r.Dial(ctx, node); return err }},
		{"bulk", func(ctx context.Context) error { _, err := r.DialBulk(ctx, node); return err }},
		{"start", func(ctx context.Context) error { return r.StartAgent(ctx, node) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.Enter("n1")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.call(ctx) }()
			<-p.asked
			r.Leave("n1")
			p.answer <- struct{}{}
			if err := <-done; !muster.IsKind(err, muster.FaultUnavailable) {
				t.Errorf("after it was left: %v", err)
			}
			if _, err := r.pool.Get(ctx, "n1"); !muster.IsKind(err, muster.FaultNotFound) {
				t.Errorf("the pool still dials it: %v", err)
			}
			if r.has("n1") {
				t.Error("the node is still known")
			}
		})
	}
}
