package exec

import (
	"cmp"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
)

// Version is that of the protocol.
const Version = 1

// Operations.
const (
	opOffers  = "offers"
	opCreate  = "create"
	opDestroy = "destroy"
	opList    = "list"
	opTags    = "tags"
)

// Names of the tags that an instance bears.
const (
	tagOwner  = "muster-owner"
	tagToken  = "muster-token"
	tagNode   = "muster-node"
	tagPool   = "muster-pool"
	tagIntent = "muster-intent"
)

// Request is what the program finds on its stdin.
type Request struct {
	Version  int    `json:"version"`
	Op       string `json:"op"`
	Provider string `json:"provider"`
	Owner    string `json:"owner"`
	// Create are the instances wanted, of op create.
	Create []Wanted `json:"create,omitempty"`
	// Destroy are ids, of op destroy.
	Destroy []string `json:"destroy,omitempty"`
	// Cursor is that of the page before, of op list; empty: the first page.
	Cursor string `json:"cursor,omitempty"`
	// ID and Tags are of op tags.
	ID   string            `json:"id,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`
}

// Wanted is one instance to make.
type Wanted struct {
	Token    string            `json:"token"`
	Offering string            `json:"offering"`
	Zone     string            `json:"zone,omitempty"`
	Market   string            `json:"market"`
	Tags     map[string]string `json:"tags"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Answer is what the program writes to its stdout.
type Answer struct {
	// Error is of the whole call.
	Error *Error `json:"error,omitempty"`
	// Offers are of op offers.
	Offers []Offer `json:"offers,omitempty"`
	// Results are of op create and destroy: one for each that was asked for, in that order.
	Results []Result `json:"results,omitempty"`
	// Instances, Next and Complete are of op list.
	Instances []Instance `json:"instances,omitempty"`
	Next      string     `json:"next,omitempty"`
	Complete  bool       `json:"complete,omitempty"`
}

// Result is what came of one instance.
type Result struct {
	Instance *Instance `json:"instance,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Error is a fault in the program's words.
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Scope   Scope  `json:"scope,omitzero"`
	// After is in seconds.
	After float64 `json:"after,omitempty"`
}

// Scope is what a fault of capacity or quota blocks.
type Scope struct {
	Offering string `json:"offering,omitempty"`
	Zone     string `json:"zone,omitempty"`
	Market   string `json:"market,omitempty"`
	Family   string `json:"family,omitempty"`
}

// Offer is something that can be had.
type Offer struct {
	Name       string            `json:"name"`
	Zone       string            `json:"zone,omitempty"`
	Market     string            `json:"market,omitempty"`
	Price      float64           `json:"price,omitempty"`
	PriceCap   float64           `json:"price_cap,omitempty"`
	CPU        float64           `json:"cpu"`
	Memory     api.Size          `json:"memory"`
	Disk       api.Size          `json:"disk,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Devices are those of one instance.
	Devices []Device `json:"devices,omitempty"`
	// Available is true if it is not said.
	Available *bool  `json:"available,omitempty"`
	Limit     int    `json:"limit,omitempty"`
	Family    string `json:"family,omitempty"`
}

// Device is a number of equal devices of an instance.
type Device struct {
	// Kind is gpu if it is not said.
	Kind  string `json:"kind,omitempty"`
	Model string `json:"model,omitempty"`
	// Count is 1 if it is not said.
	Count int `json:"count,omitempty"`
	// Shared: jobs may ask for a part of one.
	Shared bool `json:"shared,omitempty"`
}

// Instance is a machine.
type Instance struct {
	ID       string            `json:"id"`
	Tags     map[string]string `json:"tags,omitempty"`
	Offering string            `json:"offering,omitempty"`
	Zone     string            `json:"zone,omitempty"`
	Market   string            `json:"market,omitempty"`
	Created  *time.Time        `json:"created,omitempty"`
	// Address, User and HostKeys say how it is reached; the address may come later.
	Address  string   `json:"address,omitempty"`
	User     string   `json:"user,omitempty"`
	HostKeys []string `json:"host_keys,omitempty"`
}

// tagsOf are tags as the program is given them.
func tagsOf(t cloud.Tags) map[string]string {
	m := map[string]string{tagOwner: t.Owner, tagToken: string(t.Token), tagNode: string(t.Node), tagPool: string(t.Pool)}
	if t.Intent != "" {
		m[tagIntent] = string(t.Intent)
	}
	return m
}

func (i *Instance) tags() cloud.Tags {
	return cloud.Tags{
		Owner: i.Tags[tagOwner], Token: muster.Token(i.Tags[tagToken]), Node: muster.NodeID(i.Tags[tagNode]),
		Pool: muster.PoolName(i.Tags[tagPool]), Intent: muster.NodeIntent(i.Tags[tagIntent]),
	}
}

func (i *Instance) cloud() cloud.Instance {
	out := cloud.Instance{ID: muster.InstanceID(i.ID), Tags: i.tags(), Offering: muster.OfferingName(i.Offering), Zone: i.Zone, Market: muster.Market(i.Market)}
	out.Market = cmp.Or(out.Market, muster.OnDemand)
	if i.Created != nil {
		out.Created = muster.At(*i.Created)
	}
	return out
}

// kinds are those that a program may name.
func kinds() []muster.FaultKind {
	return []muster.FaultKind{muster.FaultCapacity, muster.FaultQuota, muster.FaultRateLimited, muster.FaultAuth, muster.FaultInvalid,
		muster.FaultNotFound, muster.FaultTransient, muster.FaultAmbiguous}
}
