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
	// Jump is the host through which this one is reached; nil: directly.
	Jump *Jump `json:"jump,omitempty"`
}

// Jump is how to log in on a host that leads to others: a bastion. It needs no more than to let the
// user in and to forward TCP. Each field is as the one of Access.
type Jump struct {
	Address    string   `json:"address"`
	User       string   `json:"user,omitempty"`
	KeyFile    string   `json:"key_file"`
	HostKeys   []string `json:"host_keys,omitempty"`
	KnownHosts string   `json:"known_hosts,omitempty"`
}

// Name is what errors call the bastion, as a user writes it: user@address.
func (j Jump) Name() string {
	if j.User == "" {
		return j.Address
	}
	return j.User + "@" + j.Address
}

// Suspender is a Provider whose instances can sleep, keep what is in memory, and cost less meanwhile.
type Suspender interface {
	// Suspend puts instances to sleep; Resume wakes them. The errors are in the order of the ids. What
	// sleeps, or is awake, already is no error; what is not there is FaultNotFound; what cannot is FaultInvalid.
	// A suspended instance is listed, and may be destroyed.
	Suspend(ctx context.Context, ids []muster.InstanceID) []error
	Resume(ctx context.Context, ids []muster.InstanceID) []error
}

// Stopper is a Provider whose instances can be switched off, and cost less meanwhile. They lose
// what is in memory and keep their disk, so a started one has its image cache and boots again.
type Stopper interface {
	// Stop switches instances off, Start on again. The errors are in the order of the ids. What has
	// the wanted state already is no error. What does not exist is FaultNotFound, what cannot be
	// stopped is FaultInvalid, and Start may answer FaultCapacity. A stopped instance is listed, and
	// may be destroyed.
	Stop(ctx context.Context, ids []muster.InstanceID) []error
	Start(ctx context.Context, ids []muster.InstanceID) []error
}

// Bootable is a Provider whose instances read user data with cloud-init at their first start. Their
// SSH host key comes with it, so that the server knows it before the machine exists.
type Bootable interface {
	// UserDataLimit is how many bytes the user data of an instance may have, before any encoding.
	UserDataLimit() int
}

// Consistent is a Provider that says how far its lists may lag behind. Others get DefaultConsistency.
type Consistent interface {
	Consistency() Consistency
}

// Consistency is how far lists can be trusted.
type Consistency struct {
	// ListLag is how long a list may lack an instance that was just created.
	ListLag time.Duration
	// Agreement is how far apart the first and the last of the lists must be that together say that
	// an instance with work on it is gone, when nothing else says so.
	Agreement time.Duration
}

// DefaultConsistency is that of clouds which say nothing. Two lists that called themselves complete,
// and were empty, were seen 1.5 s apart, so Agreement is well above that.
var DefaultConsistency = Consistency{ListLag: 10 * time.Second, Agreement: 10 * time.Second}

// ConsistencyOf is that of p.
func ConsistencyOf(p Provider) Consistency {
	if c, ok := As[Consistent](p); ok {
		return c.Consistency()
	}
	return DefaultConsistency
}

// Rated is a Provider that knows how often its cloud may be called. An operator can set other rates.
type Rated interface {
	Rates() Rates
}

// Sparing is a Provider that knows how many calls its cloud still allows.
type Sparing interface {
	// Scarce reports whether few calls are left. What nobody waits for should then be done seldom. It
	// must be cheap, as it calls nobody.
	Scarce() bool
}

// QuotaReader is a Provider that can say how much the account may have.
type QuotaReader interface {
	// Quotas are all that it knows of this account. Others may use up the same quota. They may be
	// some minutes old.
	Quotas(ctx context.Context) ([]Quota, error)
}

// Quota is how much of one family the account may have, and has.
type Quota struct {
	// Family is as in Offering.Family; empty: of the whole account.
	Family string
	// Limit and Used are in instances, or in what Offering.Weight counts if Weighed.
	Limit, Used int
	Weighed     bool
}

// NoticeReader is a Provider that says beforehand which instances the cloud is about to take.
type NoticeReader interface {
	// Notices are all that are open now, of the owner's instances. A notice stays until its instance
	// is gone or the cloud has withdrawn it. It is called every few seconds, so it must be cheap.
	Notices(ctx context.Context) ([]Notice, error)
}

// Notice says what the cloud is about to do with an instance.
type Notice struct {
	Instance muster.InstanceID
	At       muster.Time
	// Kind is NoticeTaken if empty.
	Kind NoticeKind
}

// NoticeKind is what a notice is about.
type NoticeKind string

// Kinds of notices. The first two drain the node. One at risk goes on: clouds say so early and often,
// and ending its work for that would cost more than it saves. Operators see it.
const (
	// NoticeTaken: the cloud takes the instance at the given time.
	NoticeTaken NoticeKind = "taken"
	// NoticeMaintenance: the cloud restarts or moves the instance at the given time.
	NoticeMaintenance NoticeKind = "maintenance"
	// NoticeAtRisk: the cloud may take the instance soon. The time is only when it said so.
	NoticeAtRisk NoticeKind = "at-risk"
)

// MetadataServed is a Provider whose instances learn of notices from a metadata service.
type MetadataServed interface {
	// Metadata names the kind of service, for the agent: ec2, gce, azure, hetzner or openstack.
	Metadata() string
}

// Sweeper is a Provider whose creates can leave other things than instances behind: network
// interfaces, disks, addresses.
type Sweeper interface {
	// Leftovers are the things of this owner that are attached to nothing.
	Leftovers(ctx context.Context) ([]Leftover, error)
	// Remove deletes leftovers. A driver looks again that each one has its owner's tag and is
	// attached to nothing. The errors are in the order of the leftovers; one that does not exist
	// any more is no error.
	Remove(ctx context.Context, of []Leftover) []error
}

// Leftover is a thing that is paid for, or holds quota, and belongs to no instance.
type Leftover struct {
	// Kind is in the cloud's words, as volume or network-interface.
	Kind, ID string
	// Created is when it was made; zero if the cloud does not say.
	Created muster.Time
}

// Resolver is a Provider that can say what it makes of its configuration before it creates anything.
type Resolver interface {
	// Resolve returns what the configuration stands for, and what is missing. An error is a failure to
	// find out; whatever is wrong with the configuration or the rights is a Problem of an entry.
	Resolve(ctx context.Context) ([]Resolved, error)
}

// Resolved is one thing that a provider found out about its configuration.
type Resolved struct {
	// What is a word for it, as image, subnet, zone, right.
	What, Value string
	// Problem says what is wrong with it and what to do; empty: nothing.
	Problem string
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
