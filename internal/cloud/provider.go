// Package cloud is what Muster asks of anything that has machines: the
// Provider interface, what a provider may be able to do besides, and wrappers that go around any
// of them. Each kind of cloud is a driver in a package of its own below this one, as thin as it can be.
//
// It must never decide what to create or destroy, and keeps no state of machines. The fleet
// loop calls it, link uses Dialer and AgentStarter where a driver has them; cloudtest is the
// suite that every driver passes.
package cloud

import (
	"context"

	"github.com/musterhq/muster"
)

// Provider is one account in one cloud, used by one cluster (its owner).
//
// Concurrency: all methods may be called at once, from many goroutines, and
// also by a server that does not know that another one still runs. A call ends when its ctx does;
// what it had begun may still happen.
//
// Errors are *muster.Fault, so that policy reads kinds and never text:
//
//   - FaultCapacity: the cloud has none of it now. Scope says of what: leave out only what it does not depend on
//     (an offering in one zone and market is Offering, Zone and Market).
//   - FaultQuota: the account may not have more. Scope.Family names whose quota, as Offering.Family does.
//   - FaultRateLimited: too many calls. After, if the cloud says when to come again.
//   - FaultAuth: credentials refused. FaultInvalid: it can never be so. FaultNotFound: there is no such instance of this owner.
//   - FaultTransient: nothing has happened, it may be tried again.
//   - FaultAmbiguous: something may have happened. The caller lists the token and never repeats blindly.
//
// An error that is none of these is taken for FaultAmbiguous where something may have
// been made. The caller retries; a driver does not, except within one call for what the cloud's own library
// does for it, and then not past its ctx.
//
// Staleness: what Offers and List answer may be old, by minutes and by seconds. What Create and Destroy
// answer is true when they answer.
//
// A driver may never touch an instance that does not bear its owner's tag, nor
// anything that is not an instance it made.
type Provider interface {
	// Offers are what can be bought now. It may be some minutes old.
	Offers(ctx context.Context) ([]muster.Offering, error)

	// Create makes an instance for each intent. The results are in the order of the
	// intents, one each; some may fail while others do not.
	//
	// A token names an instance for ever: an intent whose token has an instance already
	// (made by an earlier call, one at the same time, or one whose answer was lost) yields that instance and
	// makes no other. All tags are on the instance from the first moment that anybody can see it.
	// It returns when the cloud has accepted, not when the machine has booted.
	//
	// Where the cloud has no such thing as a token, a driver looks for it first, and two calls at the same time may then make two
	// instances: both bear the token, List shows both, and the caller destroys one.
	Create(ctx context.Context, intents []Intent) []Created

	// Destroy ends instances and all that runs on them, and returns when the cloud
	// has confirmed that nothing does; where that takes long, when it has accepted: then List goes on showing
	// the instance until it is gone. The errors are in the order of the ids. An instance that does not
	// exist, or not any more, is no error: that is what was asked for. One of another owner is
	// FaultNotFound and is left alone.
	Destroy(ctx context.Context, ids []muster.InstanceID) []error

	// List is a page of the owner's instances; the first page has cursor "". It may be stale:
	// an instance just created may be missing, one just destroyed may still be there. Only when the
	// last page says Complete was everything looked at; absence from anything else means nothing.
	List(ctx context.Context, cursor string) (Listing, error)

	// SetTags gives an instance these tags in place of those that it has. Node, Pool and
	// Intent may change; Owner and Token are for ever, and others than the instance has are FaultInvalid. One
	// that does not exist, or is of another owner, is FaultNotFound. The same again is no error. Tags are a copy of what the log says, for
	// the day when the log is lost: nothing else waits for them.
	SetTags(ctx context.Context, id muster.InstanceID, tags Tags) error
}

// Intent is one instance that is wanted. It is in the log before Create is called.
type Intent struct {
	Token    muster.Token
	Node     muster.NodeID
	Pool     muster.PoolName
	Offering muster.OfferingName
	Zone     string
	// Market is on-demand if empty.
	Market muster.Market
	// Labels are further tags for whoever reads the bill. A cloud that cannot hold them leaves them out.
	Labels map[string]string
	// Boot is what the instance reads at its first start. It is zero unless the provider is Bootable.
	Boot Boot
}

// Boot is what an instance gets for its first start. It depends on nothing but the intent, so a
// create that is repeated, even by another leader, sends the same bytes: EC2 refuses a token that
// comes back with other parameters.
type Boot struct {
	// UserData is a document for cloud-init, see package boot. It holds a private host key, so it
	// must reach neither logs nor errors.
	UserData muster.Secret
	// HostKey is the public half, a line as in ssh_host_ed25519_key.pub.
	HostKey string
}

// Created is what came of one intent.
type Created struct {
	// Instance is valid if Err is nil.
	Instance Instance
	Err      error
}

// Instance is a machine that a provider has made. Drivers that keep records of their machines write
// it as JSON.
type Instance struct {
	ID muster.InstanceID `json:"id"`
	// Tags are as given in its intent or by SetTags, and the owner's cluster id.
	Tags     Tags                `json:"tags"`
	Offering muster.OfferingName `json:"offering"`
	Zone     string              `json:"zone,omitempty"`
	Market   muster.Market       `json:"market"`
	// Created is when the cloud says that it was made; zero if it does not say.
	Created muster.Time `json:"created"`
	// Failed says why the instance will never run, although the cloud had accepted it: a machine
	// that Nova could not place, or that EC2 ended while it was pending. Kind and Scope are as
	// Create would have answered. It may still cost money or quota, so the fleet destroys it.
	Failed *muster.Fault `json:"-"`
}

// Tags are what an instance bears from its first moment on.
type Tags struct {
	Owner string          `json:"owner"`
	Token muster.Token    `json:"token"`
	Node  muster.NodeID   `json:"node"`
	Pool  muster.PoolName `json:"pool"`
	// Intent is what the operator wants of the node; empty: run.
	Intent muster.NodeIntent `json:"intent,omitempty"`
}

// Listing is a page of a list.
type Listing struct {
	Instances []Instance
	// Next is the cursor of the next page; "" if this is the last.
	Next string
	// Complete, on the last page: the pages together are all of the owner's instances.
	Complete bool
}
