package api

import "time"

// Pool is a pool as the API shows it: its rule, and what lives by it.
type Pool struct {
	Name         string     `json:"name"`
	Provider     string     `json:"provider"`
	Offerings    []string   `json:"offerings" doc:"Offerings that it may use; empty: all of the provider."`
	Min          int        `json:"min"`
	Max          int        `json:"max"`
	MaxLaunching int        `json:"max_launching"`
	Spare        int        `json:"spare"`
	PriceFactor  float64    `json:"price_factor,omitempty"`
	Budget       PoolBudget `json:"budget"`
	IdleTimeout  Duration   `json:"idle_timeout"`
	StopMost     int        `json:"stop_most,omitempty" doc:"How many idle nodes are stopped instead of destroyed, at most."`
	StopTimeout  Duration   `json:"stop_timeout,omitempty" doc:"A stopped node is destroyed after this time."`
	BootTimeout  Duration   `json:"boot_timeout"`
	Grace        Duration   `json:"grace" doc:"How long a node may be out of contact before it is destroyed."`
	Lease        Duration   `json:"lease,omitempty" doc:"A node shuts itself down after this time without contact to a server; 0: never."`

	Nodes PoolNodes `json:"nodes"`
	Price float64   `json:"price" doc:"Per hour, of all live nodes, in the operator's currency."`
	Spent *float64  `json:"spent,omitempty" doc:"Spent in this calendar month (UTC) by all its nodes."`

	Breaker Breaker `json:"breaker"`
	Blind   *Blind  `json:"blind,omitempty" doc:"The provider's list of instances fails or is not complete: until a complete list succeeds, no missing instance is known to be gone."`
	Unsold  *Blind  `json:"offers_error,omitempty" doc:"The provider's offerings cannot be read: those read before are used meanwhile."`
	// Rates are in answers of a single pool and in lists.
	Rates []CallRate `json:"call_rates,omitempty" doc:"How often its provider is called at most, and what waits for that; kinds of calls without a limit are left out."`
	// Troubles are of a single pool as well as in lists.
	Troubles []NodeTrouble `json:"provider_errors,omitempty" doc:"Nodes that the provider failed to create, destroy or tag at the last attempt, at most 20."`
	// Suspect is in answers of a single pool and in lists.
	Suspect   *Suspect      `json:"suspect,omitempty" doc:"More of its nodes fail than may be quarantined at once: a cause that they share is more likely than a fault of each of them."`
	Locality  []LocalityKey `json:"locality,omitempty" doc:"What its nodes have cached or served recently, the most common first, at most 20; in single-pool answers."`
	Warmth    []LocalityKey `json:"warmth,omitempty" doc:"Deprecated: the former name of locality."`
	Offers    []PoolOffer   `json:"offers,omitempty" doc:"What it could launch now, the cheapest first; in single-pool answers."`
	Blocks    []Block       `json:"blocks" doc:"What the provider refused, and until when Muster does not ask again."`
	Unblocked int           `json:"unblocked,omitempty" doc:"In the answer to resume: how many blocks it ended."`
	Waiting   []Wait        `json:"waiting" doc:"Waiting members for which nothing is launched, and why; those of all pools that could run them."`
	Index     uint64        `json:"index"`
}

// Blind is a provider whose list of instances fails or is not complete.
type Blind struct {
	Since time.Time `json:"since" doc:"When the first failing call began."`
	Error string    `json:"error" doc:"The error of the last one."`
}

// CallRate is how often a provider is called at most.
type CallRate struct {
	Provider  string   `json:"provider"`
	Calls     string   `json:"calls" doc:"What the rate is of: create and destroy count instances, read counts pages of lists, tags counts changes of tags, launch counts calls that each create several instances."`
	PerSecond float64  `json:"per_second" doc:"Calls a second on average. For launch it is what the cloud accepts, as measured."`
	Burst     int      `json:"burst" doc:"How many calls may be made at once after a quiet time."`
	Waiting   int      `json:"waiting" doc:"How many calls wait for the rate now."`
	Last      Duration `json:"last,omitempty" doc:"In how long the last of them may be made."`
	Waited    Duration `json:"waited,omitempty" doc:"How long calls have waited in all, since the server leads or was reloaded."`
}

// NodeTrouble is what the provider answers to calls for a node.
type NodeTrouble struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// PoolBudget is what a pool may cost, in the operator's currency, and how it stands; a limit of 0 is none.
type PoolBudget struct {
	PerHour  float64 `json:"per_hour"`
	PerMonth float64 `json:"per_month"`
	Hour     float64 `json:"hour,omitempty" doc:"Usage of per_hour: the highest price of all live nodes and of those to be launched."`
	Month    float64 `json:"month,omitempty" doc:"Usage of per_month: the cost so far in this calendar month (UTC), and one more hour of all live nodes."`
	Alert    int     `json:"alert,omitempty" enum:"80,100" doc:"Percentage of a limit that is reached."`
}

// PoolNodes counts a pool's nodes that are not gone: by stage, and among them.
type PoolNodes struct {
	Live        int `json:"live"`
	Launching   int `json:"launching"`
	Booting     int `json:"booting"`
	Adopted     int `json:"adopted"`
	Serving     int `json:"serving"`
	Draining    int `json:"draining"`
	Terminating int `json:"terminating"`
	Stopped     int `json:"stopped,omitempty" doc:"Switched off, with their disk. They do not count for max, budget and price."`
	Starting    int `json:"starting,omitempty" doc:"Being switched on again."`
	Idle        int `json:"idle" doc:"Serving and without work."`
	Lost        int `json:"lost" doc:"Serving or draining, and out of contact."`
	Held        int `json:"held"`
	Sidelined   int `json:"sidelined" doc:"Serving and flaky: quarantined, without new work."`
	Unready     int `json:"unready" doc:"Serving and not yet ready."`
	Broken      int `json:"broken" doc:"Reported as broken: drained and replaced."`
	Warm        int `json:"warm" doc:"Serving, with cached images or affinity keys that work may want."`
}

// Suspect is a pool of which more nodes fail than may be sidelined.
type Suspect struct {
	Since time.Time `json:"since" doc:"When the last node failed that could not be quarantined; the pool stops being suspect ten minutes later."`
	Why   string    `json:"why"`
	Most  int       `json:"most" doc:"How many may be quarantined at once: a fifth of those in service, rounded up, and at least 1."`
}

// LocalityKey is how many nodes have the data of an affinity key cached.
type LocalityKey struct {
	Key   string `json:"key"`
	Nodes int    `json:"nodes"`
}

// Breaker keeps a pool's nodes from being destroyed when nothing explains why so many would be.
type Breaker struct {
	Unexplained int        `json:"unexplained" doc:"Nodes destroyed in the last ten minutes only because of lost contact."`
	Tripped     *time.Time `json:"tripped,omitempty" doc:"Since when nothing more is destroyed for that reason, until the pool is resumed."`
	Reason      string     `json:"reason,omitempty"`
	Resumed     *time.Time `json:"resumed,omitempty" doc:"When an operator last resumed the pool."`
	Who         string     `json:"who,omitempty" doc:"The operator who did."`
}

// Block is something that is not asked of a provider for a time. Fields of its scope that are empty mean all.
type Block struct {
	Provider string    `json:"provider,omitempty"`
	Offering string    `json:"offering,omitempty"`
	Zone     string    `json:"zone,omitempty"`
	Market   string    `json:"market,omitempty"`
	Family   string    `json:"family,omitempty"`
	Until    time.Time `json:"until"`
	Over     bool      `json:"over,omitempty" doc:"The time is over; one launch at a time is tried until the provider accepts one."`
	Why      string    `json:"why"`
}

// PoolOffer is an offering that a pool may launch.
type PoolOffer struct {
	Provider  string  `json:"provider"`
	Offering  string  `json:"offering"`
	Zone      string  `json:"zone,omitempty"`
	Market    string  `json:"market"`
	CPU       float64 `json:"cpu" unit:"cores"`
	Memory    Size    `json:"memory"`
	Disk      Size    `json:"disk,omitempty"`
	Price     float64 `json:"price" doc:"Per hour, in the operator's currency."`
	PerCore   float64 `json:"per_core" doc:"Price per core and hour."`
	PerGiB    float64 `json:"per_gib" doc:"Price per GiB of memory and hour."`
	Available bool    `json:"available" doc:"The provider has it, and nothing blocks it."`
	Blocked   *Block  `json:"blocked,omitempty" doc:"What the provider refused that covers it."`
}

// Wait is why members wait although nothing is launched for them.
type Wait struct {
	Priority int    `json:"priority"`
	Members  int    `json:"members"`
	Reason   string `json:"reason"`
}

// PoolList is all pools.
type PoolList struct {
	Pools []Pool `json:"pools"`
	Index uint64 `json:"index"`
}

// PoolResume is the body of POST /v1/pools/{name}/resume.
type PoolResume struct {
	Reason string `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Who    string `json:"who,omitempty" doc:"The person or program that requested it, recorded in the history."`
}
