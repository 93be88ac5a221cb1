package reach

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/remote/remotetest"
	"github.com/musterhq/muster/internal/testwait"
)

// newJumpRig is a rig whose host is reached through a bastion with these lines of configuration.
func newJumpRig(t *testing.T, lines ...string) (*rig, *remotetest.Host) {
	r := newRig(t)
	b := remotetest.SSHD(t, append(lines, "AllowStreamLocalForwarding no")...)
	r.cloud.access.Jump = &cloud.Jump{Address: b.Address, User: b.User, KeyFile: b.KeyFile, HostKeys: []string{b.HostKey}}
	// The bastion ends before the host is cleared.
	t.Cleanup(func() { r.cloud.access.Jump = nil })
	return r, b
}

// Everything that a node needs goes through its bastion: the probe, the program, the agent, and
// bulk. The connection to the bastion is made anew when it is lost, and the agent goes on meanwhile.
func TestThroughBastion(t *testing.T) {
	r, b := newJumpRig(t)
	r.probe = Probe{Command: `test -n "$SSH_CONNECTION"`}
	r.start()
	was := r.serving()
	bulk, err := r.reach.DialBulk(t.Context(), r.node)
	if err != nil {
		t.Fatal(err)
	}
	_ = bulk.Close()
	if have, _, err := r.reach.Measure(t.Context(), r.cloud.access); err != nil || have.CPU < 1000 {
		t.Errorf("measured %s, %v", have, err)
	}
	name := jumpPrefix + r.cloud.access.Jump.Name()
	node, err := r.reach.conn(t.Context(), r.node, r.cloud)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := r.reach.pool.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	shared.Close()
	<-node.Done() // it had no other way
	for {
		h, err := r.hello()
		if err == nil {
			if h.Run != was.Run {
				t.Error("another agent")
			}
			break
		}
		if !muster.IsKind(err, muster.FaultUnavailable) {
			t.Fatal(err)
		}
	}
	// Without the bastion there is no way, and the error says which host is missing.
	b.Stop()
	if shared, err = r.reach.pool.Get(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if node, err = r.reach.conn(t.Context(), r.node, r.cloud); err != nil {
		t.Fatal(err)
	}
	shared.Close()
	<-node.Done()
	// The first errors may be those of the connection that was lost.
	testwait.Until(t, "the error names the bastion", func() bool {
		_, err := r.hello()
		if !muster.IsKind(err, muster.FaultUnavailable) {
			t.Fatalf("the bastion is gone: %v", err)
		}
		return strings.Contains(err.Error(), "bastion "+b.User+"@"+b.Address)
	})
	// The last node behind it takes the connection along.
	r.reach.Leave(r.node.ID)
	if _, err := r.reach.pool.Get(t.Context(), name); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("the bastion is still in the pool: %v", err)
	}
}

// A node behind a bastion is cleared through it, by a connection of its own.
func TestClearThroughBastion(t *testing.T) {
	r, _ := newJumpRig(t)
	r.start()
	if err := r.reach.Clear(t.Context(), r.cloud.access, r.node.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hello(); err == nil {
		t.Error("the agent still answers")
	}
}

// Errors tell a bastion that refuses from a host that does.
func TestBastionRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lines  []string
		change func(a *cloud.Access)
		kind   muster.FaultKind
		want   func(r *rig, b *remotetest.Host) string
	}{
		{"key of the bastion", nil, func(a *cloud.Access) { a.Jump.HostKeys = a.HostKeys }, muster.FaultAuth,
			func(_ *rig, b *remotetest.Host) string { return "bastion " + b.User + "@" + b.Address + ": " }},
		{"login on the bastion", nil, func(a *cloud.Access) { a.Jump.KeyFile = "" }, muster.FaultAuth, // that of the host, which it does not know
			func(_ *rig, b *remotetest.Host) string { return "host " + b.Address + " does not let " }},
		{"forwarding", []string{"AllowTcpForwarding no"}, func(*cloud.Access) {}, muster.FaultUnavailable,
			func(r *rig, b *remotetest.Host) string { return "host " + b.Address + ": connect to " + r.host.Address }},
		{"key of the host", nil, func(a *cloud.Access) { a.HostKeys = a.Jump.HostKeys }, muster.FaultAuth,
			func(r *rig, _ *remotetest.Host) string { return r.host.Address }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, b := newJumpRig(t, tt.lines...)
			right := r.cloud.access.HostKeys
			t.Cleanup(func() { r.cloud.access.HostKeys = right })
			tt.change(&r.cloud.access)
			err := r.reach.StartAgent(t.Context(), r.node)
			if want := tt.want(r, b); !muster.IsKind(err, tt.kind) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant a %s with %q", err, tt.kind, want)
			}
			if named := strings.Contains(err.Error(), "bastion "); named != (tt.name != "key of the host") {
				t.Errorf("names the bastion: %v: %v", named, err)
			}
		})
	}
}
