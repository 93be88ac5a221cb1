package check_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/check"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fake cloud whose instances are nodes in memory.
type rig struct {
	t       *testing.T
	cloud   *fake.Cloud
	boots   bool         // agents of new instances can be started
	dead    bool         // and are not, whatever is done
	dials   func() error // what keeps a node from being reached; nil for nothing
	boot    cloud.Boot   // what an instance gets for its first start
	bootErr error
	keys    []string // the host keys by which it was dialled, and the user data that it has
	says    []string
	// shelters are the tokens that were sheltered, and with what end.
	shelters  []string
	noShelter error

	mu    sync.Mutex
	nodes map[muster.NodeID]*linktest.Node
}

func inBubble(t *testing.T, fn func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, boots: true, nodes: map[muster.NodeID]*linktest.Node{}}
		offer := func(name string, price muster.Price, available bool) muster.Offering {
			return muster.Offering{Provider: "fake", Name: muster.OfferingName(name), Market: muster.OnDemand, Price: price, Available: available,
				Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}}
		}
		r.cloud = fake.New(fake.Config{
			Offerings: []muster.Offering{offer("dear", 3e6, true), offer("cheap", 1e6, true), offer("none", 1, false)},
			Created:   r.created, Destroyed: r.destroyed,
		})
		defer func() {
			for _, n := range r.nodes {
				n.Destroy()
			}
		}()
		fn(r)
	})
}

func (r *rig) created(in cloud.Instance) {
	n := linktest.NewNode(linktest.Config{ID: in.Tags.Node, Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}})
	r.mu.Lock()
	r.nodes[in.Tags.Node] = n
	r.mu.Unlock()
	if r.boots && !r.dead {
		_ = n.Start()
	}
}

func (r *rig) destroyed(in cloud.Instance) {
	r.mu.Lock()
	n := r.nodes[in.Tags.Node]
	r.mu.Unlock()
	if n != nil {
		n.Destroy()
	}
}

func (r *rig) node(id muster.NodeID) *linktest.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[id]
}

func (r *rig) check(ctx context.Context, want check.Want) error {
	if want.Timeout == 0 {
		want.Timeout = time.Minute
	}
	return check.Run(ctx, check.Config{
		Name: "fake", Provider: r.cloud.Owner("c1"),
		Boot: func(muster.Token) (cloud.Boot, error) { return r.boot, r.bootErr },
		Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) {
			r.keys = append(r.keys, n.HostKey+" of "+r.cloud.Boot(n.Instance).UserData.Reveal())
			if r.dials != nil {
				if err := r.dials(); err != nil {
					return nil, err
				}
			}
			if m := r.node(n.ID); m != nil {
				return m.Dial(ctx)
			}
			return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
		},
		StartAgent: func(_ context.Context, n *state.Node) error {
			if r.dead {
				return errors.New("muster-node: exit status 1: GLIBC_2.34 not found")
			}
			return r.node(n.ID).Start()
		},
		Fence: func() wire.Fence { return wire.Fence{Cluster: "c1", Epoch: 1, Term: 1, Index: 1} },
		Say:   func(step, text string) { r.says = append(r.says, step+" "+text) },
		Shelter: func(_ context.Context, _ muster.Token, most time.Duration) (func(bool), error) {
			if r.noShelter != nil {
				return nil, r.noShelter
			}
			if most < want.Timeout+time.Minute {
				r.t.Errorf("the shelter lasts for %s, the check for %s and its destroy", most, want.Timeout)
			}
			i := len(r.shelters)
			r.shelters = append(r.shelters, "open")
			return func(destroyed bool) { r.shelters[i] = fmt.Sprint("destroyed ", destroyed) }, nil
		},
	}, want)
}

// told fails the test unless the error says all of it, or there is none and nothing is wanted.
func (r *rig) told(err error, want ...string) {
	r.t.Helper()
	if (err == nil) != (len(want) == 0) {
		r.t.Errorf("error %v", err)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// clean fails the test unless everything was destroyed.
func (r *rig) clean(shelter string) {
	r.t.Helper()
	if left := r.cloud.Instances(); len(left) > 0 {
		r.t.Errorf("left: %v", left)
	}
	if !slices.Equal(r.shelters, []string{shelter}) {
		r.t.Errorf("shelters: %v", r.shelters)
	}
}

func (r *rig) said(want string) {
	r.t.Helper()
	if !slices.ContainsFunc(r.says, func(s string) bool { return strings.Contains(s, want) }) {
		r.t.Errorf("nothing says %q:\n%s", want, strings.Join(r.says, "\n"))
	}
}

func TestCheckPasses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.told(r.check(context.Background(), check.Want{Command: strings.Fields("print hello ; true")}))
		r.clean("destroyed true")
		for _, s := range []string{"offers 3 offerings; trying cheap, 2 cpu", "create instance i-", "boot its agent (test) answers", "run \"print hello ; true\" succeeded in", "hello", "destroy instance i-"} {
			r.said(s)
		}
	})
}

// An instance of a cloud has no other way to its keys than the user data: without it the check could
// only fail.
func TestCheckGivesTheInstanceItsKeys(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot = cloud.Boot{HostKey: "ssh-ed25519 AAAA", UserData: muster.NewSecret("#cloud-config")}
		if err := r.check(r.t.Context(), check.Want{Command: strings.Fields("true")}); err != nil {
			t.Fatal(err)
		}
		if len(r.keys) == 0 || slices.ContainsFunc(r.keys, func(k string) bool { return k != "ssh-ed25519 AAAA of #cloud-config" }) {
			t.Errorf("dialled by the host keys %q", r.keys)
		}
	})
	inBubble(t, func(r *rig) {
		r.bootErr = errors.New("the key file is unreadable")
		if err := r.check(r.t.Context(), check.Want{Command: strings.Fields("true")}); err == nil || !strings.Contains(err.Error(), "unreadable") {
			t.Error(err)
		}
		if n := len(r.cloud.Instances()); n != 0 {
			t.Errorf("%d instances", n)
		}
	})
}

func TestCheckStartsTheAgent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boots = false
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}, Offering: "dear"}))
		r.clean("destroyed true")
		r.said("trying dear")
	})
}

func TestCheckWhoseBootFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.dead = true
		began := time.Now()
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}), "did not come into service within 1m", "it took longer than 1m0s", "GLIBC_2.34 not found")
		if took := time.Since(began); took < time.Minute || took > 2*time.Minute {
			t.Errorf("it took %s", took)
		}
		r.clean("destroyed true")
		r.said("boot not yet: its agent could not be started: muster-node: exit status 1")
	})
}

func TestCheckWhoseCommandFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.told(r.check(context.Background(), check.Want{Command: strings.Fields("warn no-such-disk ; exit 3")}), `"warn no-such-disk ; exit 3" failed`, "code 3", "its stderr: no-such-disk")
		r.clean("destroyed true")
	})
	inBubble(t, func(r *rig) {
		r.told(r.check(context.Background(), check.Want{Command: []string{"hang"}}), "did not end", "it took longer than 1m0s")
		r.clean("destroyed true")
	})
}

func TestCheckWhoseProviderFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.cloud.SetFaults(fake.Faults{Create: func(cloud.Intent) error {
			return muster.Faultf(muster.FaultAuth, "UnauthorizedOperation: no ec2:RunInstances")
		}})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}), "no instance was made (auth)", "no ec2:RunInstances")
		r.clean("destroyed true")
	})
	inBubble(t, func(r *rig) { // made, and the answer lost: it is found by its token
		r.cloud.SetFaults(fake.Faults{Lost: func(cloud.Intent) error { return muster.Faultf(muster.FaultAmbiguous, "the connection broke") }})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}), "no instance was made (ambiguous)", "the connection broke")
		r.clean("destroyed true")
		if c := r.cloud.Calls(); c.Destroy == 0 {
			t.Error("nothing was destroyed")
		}
	})
	inBubble(t, func(r *rig) {
		r.told(r.check(context.Background(), check.Want{Offering: "huge"}), "it has no offering huge")
		if c := r.cloud.Calls(); c.Create != 0 {
			t.Error("something was launched")
		}
	})
}

func TestCheckWhoseDestroyFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		tries := 0
		r.cloud.SetFaults(fake.Faults{Destroy: func(muster.InstanceID) error {
			if tries++; tries < 4 {
				return errors.New("not now")
			}
			return nil
		}})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}))
		r.clean("destroyed true")
	})
	inBubble(t, func(r *rig) { // never: the fleet is left to it, and the user is told
		r.cloud.SetFaults(fake.Faults{Destroy: func(muster.InstanceID) error { return errors.New("not now") }})
		r.told(r.check(context.Background(), check.Want{Command: []string{"exit", "3"}}), "code 3", "was not destroyed within 2m", "not now")
		if !slices.Equal(r.shelters, []string{"destroyed false"}) {
			t.Errorf("shelters: %v", r.shelters)
		}
	})
}

// Without a shelter nothing is created: the fleet would destroy it under the check.
func TestCheckNeedsItsShelter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.noShelter = errors.New("the log takes nothing")
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}), "no instance was asked for", "the log takes nothing")
		if c := r.cloud.Calls(); c.Create != 0 {
			t.Error("something was launched")
		}
	})
}

func TestCancelledCheckDestroysItsInstance(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(5*time.Second, cancel)
		r.told(r.check(ctx, check.Want{Command: []string{"hang"}}), "the check was broken off")
		r.clean("destroyed true")
	})
}

// A provider whose list does not show what was made leaks: a check finds that, though everything else works.
func TestCheckOfTheProvidersList(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.cloud.SetFaults(fake.Faults{List: func() error {
			return muster.Faultf(muster.FaultInternal, "its answer is not JSON: invalid character 'g'")
		}})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}, Timeout: 10 * time.Minute}), "its list does not show what was made", "longer than 1m0s", "invalid character 'g'")
		r.clean("destroyed true")
		r.said("list not yet: its list cannot be read")
	})
	inBubble(t, func(r *rig) {
		r.cloud.SetFaults(fake.Faults{Cut: func(page []cloud.Instance) ([]cloud.Instance, bool) { return nil, true }})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}, Timeout: 10 * time.Minute}), "is not among the 0 of its list")
		r.clean("destroyed true")
	})
	inBubble(t, func(r *rig) { // a stale list is waited for
		lists := 0
		r.cloud.SetFaults(fake.Faults{Cut: func(page []cloud.Instance) ([]cloud.Instance, bool) {
			if lists++; lists < 5 {
				return nil, true
			}
			return page, true
		}})
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}}))
		r.clean("destroyed true")
		r.said("list its list shows instance i-")
	})
}

// A host that refuses us, or shows another key, is told soon; one that gets its keys while it boots has the time for it.
func TestCheckOfAHostWithAWrongKey(t *testing.T) {
	wrong := func() error { return muster.Faultf(muster.FaultAuth, "host key is X, expected Y") }
	inBubble(t, func(r *rig) {
		r.dials = wrong
		began := time.Now()
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}, Timeout: 10 * time.Minute}), "that has not changed for 15s", "host key is X, expected Y")
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %s", took)
		}
		r.clean("destroyed true")
	})
	inBubble(t, func(r *rig) {
		began := time.Now()
		r.dials = func() error {
			switch at := time.Since(began); {
			case at < 10*time.Second:
				return wrong()
			case at < 20*time.Second:
				return errors.New("connection refused")
			case at < 30*time.Second:
				return wrong()
			}
			return nil
		}
		r.told(r.check(context.Background(), check.Want{Command: []string{"true"}, Timeout: 10 * time.Minute}))
		r.clean("destroyed true")
	})
}
