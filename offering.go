package muster

import (
	"fmt"
	"time"
)

// Price is money per hour in millionths of the currency unit that the operator
// configures prices in.
type Price int64

// String is the price with up to six decimals, without unit.
func (p Price) String() string { return fmt.Sprintf("%g", float64(p)/1e6) }

// For is what the price amounts to over d, in millionths of the currency unit.
func (p Price) For(d time.Duration) int64 { return int64(float64(p) * d.Hours()) }

// Market says how an instance is sold.
type Market string

// Markets.
const (
	OnDemand Market = "on-demand"
	Spot     Market = "spot"
)

// OfferingName is the provider's name of an instance type.
type OfferingName string

// PoolName names a pool; ProviderName a configured provider.
type (
	PoolName     string
	ProviderName string
)

// Offering is what a provider can sell now.
type Offering struct {
	Provider   ProviderName      `json:"provider" cbor:"1,keyasint"`
	Name       OfferingName      `json:"name" cbor:"2,keyasint"`
	Zone       string            `json:"zone,omitempty" cbor:"3,keyasint,omitempty"`
	Market     Market            `json:"market" cbor:"4,keyasint"`
	Price      Price             `json:"price" cbor:"5,keyasint"`
	Capacity   Resources         `json:"capacity" cbor:"6,keyasint"`
	Attributes map[string]string `json:"attributes,omitempty" cbor:"7,keyasint,omitempty"`
	Available  bool              `json:"available" cbor:"8,keyasint"`
	// Limit is how many instances of it there may be at once; 0: the provider does not say.
	Limit int `json:"limit,omitempty" cbor:"9,keyasint,omitempty"`
	// Family is whose quota an instance of it counts against, in the provider's words; empty: the account's.
	Family string `json:"family,omitempty" cbor:"10,keyasint,omitempty"`
	// PriceCap is the most that an instance of it may come to cost, where the price moves (spot); 0: Price.
	PriceCap Price `json:"price_cap,omitempty" cbor:"11,keyasint,omitempty"`
	// Devices of an instance of it.
	Devices []Device `json:"devices,omitempty" cbor:"12,keyasint,omitempty"`
	// Weight is how much of its family's quota an instance uses, where the cloud does not count
	// instances: in vCPUs on AWS, Azure and GCE. 0: one.
	Weight int `json:"weight,omitempty" cbor:"13,keyasint,omitempty"`
}

// QuotaWeight is Weight, or 1 where the provider counts instances.
func (o *Offering) QuotaWeight() int { return max(o.Weight, 1) }

// AtMost is the price that budgets count with.
func (o *Offering) AtMost() Price { return max(o.Price, o.PriceCap) }
