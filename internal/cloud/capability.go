package cloud

import (
	"context"
	"net"
	"time"

	"github.com/musterhq/muster"
)

// What some providers can do and others cannot. Ask with As, which looks through wrappers.

// Dialer is a Provider that can reach the agent of an instance by itself. Others are reached over SSH.
type Dialer interface {
	// DialAgent opens a connection to the agent's socket. An instance that is not there is
	// FaultNotFound; an agent that does not listen (yet) is FaultUnavailable.
	DialAgent(ctx context.Context, id muster.InstanceID) (net.Conn, error)
}

// AgentStarter is a Provider that can start the agent of an instance by itself.
type AgentStarter interface {
	// StartAgent makes sure that an agent of this build runs on an instance that lives: one that
	// answers is left alone, a dead or hung one is started again, one of another build, or of another
	// node than the instance's tags name, is replaced. Sandboxes are not touched. It returns when the agent was started, not when it answers. An instance
	// that is not there or lives no more is FaultNotFound: nothing is revived.
	StartAgent(ctx context.Context, id muster.InstanceID) error
}

// Accessor is a Provider whose instances are reached over SSH.
type Accessor interface {
	// Access says how an instance is reached, as far as it is known now. One without an
	// address yet is FaultUnavailable; one that is not there is FaultNotFound. It is asked often, and must be cheap.
	Access(ctx context.Context, id muster.InstanceID) (Access, error)
}

// Access is how a host is reached over SSH. Host keys are known by HostKeys, KnownHosts, or the
// provider's HostKeyReader; a host whose key is not known by one of them is not reached at all.
type Access struct {
	// Address is host or host:port; the port is 22 if none is given.
	Address string `json:"address"`
	// User to log in as; root if empty. Others need sudo without a password.
	User string `json:"user,omitempty"`
	// KeyFile is the path of the private key on the server.
	KeyFile string `json:"key_file"`
	// HostKeys are lines as in ssh_host_ed25519_key.pub: all that the host may have.
	HostKeys []string `json:"host_keys,omitempty"`
	// KnownHosts is the path of a file as OpenSSH's, on the server.
	KnownHosts string `json:"known_hosts,omitempty"`
	// Dir is Muster's own directory on the host; /var/lib/muster if empty.
	Dir string `json:"dir,omitempty"`
	// Shutdown is the command that ends the machine, for the lease; empty: the agent ends only itself and its sandboxes.
	Shutdown string `json:"shutdown,omitempty"`
}

// Suspender is a Provider whose instances can sleep, keep what is in memory, and cost less meanwhile.
type Suspender interface {
	// Suspend puts instances to sleep; Resume wakes them. The errors are in the order of the ids. What
	// sleeps, or is awake, already is no error; what is not there is FaultNotFound; what cannot is FaultInvalid.
	// A suspended instance is listed, and may be destroyed.
	Suspend(ctx context.Context, ids []muster.InstanceID) []error
	Resume(ctx context.Context, ids []muster.InstanceID) []error
}

// QuotaReader is a Provider that can say how much the account may have.
type QuotaReader interface {
	// Quotas are all that it knows of, of this account: others may use it up as well. It may be some minutes old.
	Quotas(ctx context.Context) ([]Quota, error)
}

// Quota is how much of one family the account may have, and has.
type Quota struct {
	// Family is as in Offering.Family; empty: of the whole account.
	Family      string
	Limit, Used int // in instances
}

// NoticeReader is a Provider that says beforehand which instances the cloud is about to take.
type NoticeReader interface {
	// Notices are all that are open now, of the owner's instances. One stays until its instance is
	// gone or the cloud has changed its mind. It is asked every few seconds, and must be cheap.
	Notices(ctx context.Context) ([]Notice, error)
}

// Notice says that the cloud takes an instance at a time, without asking again.
type Notice struct {
	Instance muster.InstanceID
	At       muster.Time
}

// OffersConfigured is a Provider whose offerings are written in the server's configuration: one that it does not
// name any more was taken out by an operator. Of all others it is a read that may have been wrong.
type OffersConfigured interface {
	OffersConfigured()
}

// HostKeyReader is a Provider that knows, by a way that nobody on the network can
// change, which SSH host keys an instance has.
type HostKeyReader interface {
	// HostKeys are lines as in authorized_keys ("ssh-ed25519 AAAA…"), all that the instance may show. None yet
	// is FaultUnavailable; an instance that is not there is FaultNotFound. An empty list is never the answer: it would trust nobody for ever.
	HostKeys(ctx context.Context, id muster.InstanceID) ([]string, error)
}

// CallLimiter is a Provider whose calls end by themselves within a time that its user chose.
type CallLimiter interface {
	CallLimit() time.Duration
}

// Wrapper is a Provider that goes around another one.
type Wrapper interface {
	Unwrap() Provider
}

// As is p as a T: p itself, or the first that it goes around which is one.
func As[T any](p Provider) (T, bool) {
	for p != nil {
		if t, ok := p.(T); ok {
			return t, true
		}
		w, ok := p.(Wrapper)
		if !ok {
			break
		}
		p = w.Unwrap()
	}
	var none T
	return none, false
}
