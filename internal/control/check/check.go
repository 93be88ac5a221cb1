package check

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Config holds what a check needs.
type Config struct {
	// Name is the provider's name in the configuration.
	Name     muster.ProviderName
	Provider cloud.Provider
	// Boot is what an instance of a token gets for its first start, as the fleet gives it to nodes;
	// nil: nothing. Instances of clouds get their host key by it, and the key that may log in.
	Boot func(t muster.Token) (cloud.Boot, error)
	// Dial and the four functions below it are those of the link: see link.Config. All but Dial may
	// be nil.
	Dial         func(ctx context.Context, n *state.Node) (net.Conn, error)
	StartAgent   func(ctx context.Context, n *state.Node) error
	StartsItself func(n *state.Node) bool
	Enter, Leave func(id muster.NodeID)
	// Fence returns the fence for what is sent to the agent.
	Fence func() wire.Fence
	// Shelter keeps the fleet, and that of a later leader, from adopting or destroying the instance
	// of a token until end is called, or until most is over if nobody calls it. destroyed tells end
	// whether the check destroyed the instance.
	Shelter func(ctx context.Context, t muster.Token, most time.Duration) (end func(destroyed bool), err error)
	// Say reports the result of a step to the operator, in words.
	Say    func(step, text string)
	Logger *slog.Logger
}

// Want is what to try.
type Want struct {
	// Offering is the offering to launch. Empty means the cheapest available one.
	Offering muster.OfferingName
	// Command is run on the node.
	Command []string
	// Timeout bounds everything but the destroy, which has its own time limit.
	Timeout time.Duration
}

// The steps, as Config.Say names them.
const (
	stepOffers  = "offers"
	stepCreate  = "create"
	stepBoot    = "boot"
	stepRun     = "run"
	stepList    = "list"
	stepDestroy = "destroy"
)

const (
	// destroyFor bounds all attempts to destroy the instance.
	destroyFor = 2 * time.Minute
	// listFor is within which time a list must show the instance.
	listFor = time.Minute
	// authFor is for how long a host may refuse the login or show another host key before the check
	// fails. Hosts get their keys while they boot.
	authFor = 15 * time.Second
	// The delays between attempts: the first, which doubles, and the longest.
	retryFirst, retryLongest = 100 * time.Millisecond, 5 * time.Second
	// bootFor is how long the instance gets to start its agent by itself.
	bootFor = time.Second
	// The resources of the command: small, so that each machine has them.
	askCPU    = muster.MilliCPU(100)
	askMemory = 64 * muster.MiB
	// outputLimit bounds the output that the agent keeps, outputInWords the part of it that is
	// shown, in bytes.
	outputLimit, outputInWords = 64 << 10, 600
)

// check is one check. node stands for the instance in calls to the link; it is in no state. It
// lives for one Run, in one goroutine.
type check struct {
	Config
	want     Want
	offering muster.Offering
	node     *state.Node
}

// Run makes a check. The error says in words what failed. The instance is destroyed even if a step
// fails or ctx ends.
func Run(ctx context.Context, cfg Config, want Want) error {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c := &check{Config: cfg, want: want}
	tryCtx, cancel := context.WithTimeoutCause(ctx, want.Timeout, muster.Faultf(muster.FaultUnavailable, "it took longer than %s", want.Timeout))
	defer cancel()
	if err := c.choose(tryCtx); err != nil {
		return err
	}
	draw := strings.ToLower(rand.Text())
	id := muster.NodeID("check-" + draw[:8])
	// The stage is that of a new node, so the functions of the link treat the instance like one.
	c.node = &state.Node{ID: id, Token: muster.Token("check-" + draw), Offering: c.offering, Stage: muster.NodeBooting, Launched: muster.At(time.Now())}
	// Sheltered before the instance is created: a list could show it at once.
	end, err := cfg.Shelter(ctx, c.node.Token, want.Timeout+destroyFor)
	if err != nil {
		return fmt.Errorf("no instance was asked for: the fleet could destroy it meanwhile: %w", err)
	}
	if cfg.Enter != nil {
		cfg.Enter(id)
	}
	// Leave runs last, after the destroy: it closes the connection to the host.
	if cfg.Leave != nil {
		defer cfg.Leave(id)
	}
	// The steps follow each other; the first failure ends them.
	if err = c.create(tryCtx); err == nil {
		if err = c.boot(tryCtx); err == nil {
			err = c.run(tryCtx)
		}
		if err == nil {
			err = c.list(tryCtx)
		}
	}
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("the check was broken off: %w", err)
	}
	// Without the caller's ctx: an operator who breaks the check off must not leave an instance
	// behind.
	destroyed := c.destroy(context.WithoutCancel(ctx))
	end(destroyed == nil)
	return errors.Join(err, destroyed)
}

// choose picks the offering to launch.
func (c *check) choose(ctx context.Context) error {
	offers, err := c.Provider.Offers(ctx)
	if err != nil {
		return fmt.Errorf("its offerings cannot be read: %w", err)
	}
	var best *muster.Offering
	for i := range offers {
		o := &offers[i]
		switch {
		case c.want.Offering != "" && o.Name != c.want.Offering, c.want.Offering == "" && !o.Available:
		case best == nil || o.Price < best.Price:
			best = o
		}
	}
	switch {
	case best == nil && c.want.Offering != "":
		return muster.Faultf(muster.FaultNotFound, "it has no offering %s", c.want.Offering)
	case best == nil:
		return muster.Faultf(muster.FaultCapacity, "none of its %d offerings is available", len(offers))
	}
	c.offering = *best
	c.offering.Provider = c.Name
	c.offering.Market = cmp.Or(best.Market, muster.OnDemand)
	c.Say(stepOffers, fmt.Sprintf("%d offerings; trying %s, %s, %g an hour", len(offers), best.Name, best.Capacity, float64(best.Price)/1e6))
	return nil
}

// create launches the instance. After an error an instance may exist all the same; destroy looks
// for it.
func (c *check) create(ctx context.Context) error {
	began := time.Now()
	in := cloud.Intent{Token: c.node.Token, Node: c.node.ID, Offering: c.offering.Name, Zone: c.offering.Zone, Market: c.offering.Market}
	if c.Boot != nil {
		var err error
		if in.Boot, err = c.Boot(c.node.Token); err != nil {
			return fmt.Errorf("no instance was asked for: its user data cannot be made: %w", err)
		}
		c.node.HostKey = in.Boot.HostKey
	}
	made := c.Provider.Create(ctx, []cloud.Intent{in})
	switch {
	case len(made) != 1:
		return muster.Faultf(muster.FaultInternal, "it gave %d answers to one intent", len(made))
	case made[0].Err != nil:
		return fmt.Errorf("no instance was made (%s): %w", muster.KindOf(made[0].Err), cause(ctx, made[0].Err))
	}
	// From here on destroy knows the instance and needs no list.
	c.node.Instance, c.node.StageSince = made[0].Instance.ID, muster.At(time.Now())
	c.Say(stepCreate, fmt.Sprintf("instance %s was made in %s", c.node.Instance, took(began)))
	return nil
}

// took is the time since a step began, rounded for display.
func took(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }

// cause returns why the context ended, if it has, with the error of the last attempt behind it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
	}
	return err
}

// boot waits until the agent answers. It gives up early only on errors of keys that persist.
func (c *check) boot(ctx context.Context) error {
	began := time.Now()
	client := c.client()
	defer client.Close()
	told := ""
	// refused is since when each attempt has failed because of keys.
	var refused time.Time
	for delay := retryFirst; ; delay = min(2*delay, retryLongest) {
		err := c.answers(ctx, client, began)
		if err == nil {
			return nil
		}
		switch {
		case !isRefusal(err):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > authFor:
			return fmt.Errorf("its agent cannot be reached, and that has not changed for %s: %w", authFor, err)
		}
		// Each different error is shown once.
		if ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			c.Say(stepBoot, "not yet: "+told)
		}
		if !wait.For(ctx, delay) {
			return fmt.Errorf("its agent did not come into service within %s: %w", took(began), cause(ctx, err))
		}
	}
}

// isRefusal reports whether an agent is out of reach because of keys. The transport reports all its
// faults as unavailable; the cause is below that.
func isRefusal(err error) bool {
	for f := (*muster.Fault)(nil); errors.As(err, &f); err = f.Err {
		if f.Kind == muster.FaultAuth {
			return true
		}
	}
	return false
}

// client makes a client of the instance's agent.
func (c *check) client() *wire.Client {
	return wire.NewClient(func(ctx context.Context) (net.Conn, error) { return c.Dial(ctx, c.node) })
}

// answers asks the agent once, and has it started if it does not answer. It returns an error until
// the agent answers and can run work.
func (c *check) answers(ctx context.Context, client *wire.Client, began time.Time) error {
	hello, err := client.Hello(ctx)
	switch {
	case err == nil && hello.Node != c.node.ID:
		// The address may belong to another machine.
		return muster.Faultf(muster.FaultConflict, "the agent that answers is of node %s", hello.Node)
	case err == nil && len(hello.Runtimes) == 0:
		return muster.Faultf(muster.FaultUnavailable, "its agent answers, and no runtime works there: %s", strings.Join(hello.Problems, "; "))
	case err == nil:
		c.Say(stepBoot, fmt.Sprintf("its agent (%s) answers after %s: %s; runtimes %s", hello.Version, took(began), hello.Capacity, strings.Join(hello.Runtimes, ", ")))
		for _, p := range hello.Problems {
			c.Say(stepBoot, "it says: "+p)
		}
		return nil
	case c.StartAgent == nil, time.Since(began) < bootFor && (c.StartsItself == nil || c.StartsItself(c.node)):
		// It needs no start from outside, or may still start by itself.
		return err
	}
	if startErr := c.StartAgent(ctx, c.node); startErr != nil {
		return fmt.Errorf("its agent could not be started: %w", startErr)
	}
	return err
}

// destroy ends the instance. It tries until destroyFor is over. If it is unknown whether an
// instance was created, it looks for one.
func (c *check) destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, destroyFor)
	defer cancel()
	began := time.Now()
	for delay := retryFirst; ; delay = min(2*delay, retryLongest) {
		ids, err := c.instances(ctx)
		if err == nil && len(ids) == 0 {
			c.Say(stepDestroy, "there is no instance of it")
			return nil
		}
		if err == nil {
			err = errors.Join(c.Provider.Destroy(ctx, ids)...)
		}
		if err == nil {
			c.Say(stepDestroy, fmt.Sprintf("instance %s is destroyed, in %s", ids[0], took(began)))
			return nil
		}
		c.Logger.Warn("checked instance not destroyed yet", "provider", c.Name, "instance", c.node.Instance, "error", err)
		if !wait.For(ctx, delay) {
			return fmt.Errorf("its instance %s was not destroyed within %s, the fleet goes on trying: %w", c.node.Instance, took(began), err)
		}
	}
}

// instances returns the instances to destroy: the one from the answer of the provider, or those
// that carry the token.
func (c *check) instances(ctx context.Context) ([]muster.InstanceID, error) {
	if c.node.Instance != "" {
		return []muster.InstanceID{c.node.Instance}, nil
	}
	all, complete, err := c.everything(ctx)
	if err != nil {
		return nil, err
	}
	var ids []muster.InstanceID
	for i := range all {
		if all[i].Tags.Token == c.node.Token {
			ids = append(ids, all[i].ID)
		}
	}
	// An incomplete list does not prove that there is none.
	if !complete && len(ids) == 0 {
		return nil, muster.Faultf(muster.FaultTransient, "its list is not complete")
	}
	return ids, nil
}
