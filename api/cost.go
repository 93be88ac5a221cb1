package api

import "time"

// Cost is what was spent since the beginning of a month, and on what.
type Cost struct {
	By    string    `json:"by" enum:"job,namespace,pool,month" doc:"What the rows are."`
	Since time.Time `json:"since" doc:"Start of the first month included, in UTC."`
	Until time.Time `json:"until" doc:"Live nodes and allocations are counted up to this time."`
	// Rows are the dearest first, months in their order.
	Rows  []CostRow  `json:"rows" doc:"Most expensive first; months in chronological order."`
	More  *CostRest  `json:"more,omitempty" doc:"Sum of the rows that are left out."`
	Total CostAmount `json:"total" doc:"Cost of all nodes."`
	Jobs  CostAmount `json:"jobs" doc:"The part of the total that belongs to jobs."`
	Idle  CostAmount `json:"idle" doc:"The part of the total that belongs to no job: boot, idle time, and unused capacity."`
	Index uint64     `json:"index"`
}

// CostRow is one job, namespace, pool or month. Idle is set for pools and months.
type CostRow struct {
	Namespace string `json:"namespace,omitempty" doc:"Empty in rows of namespaces that are no longer listed separately."`
	Job       string `json:"job,omitempty" doc:"Empty for jobs of the namespace that are no longer listed separately."`
	Pool      string `json:"pool,omitempty"`
	Month     string `json:"month,omitempty" doc:"For example 2026-09."`
	CostAmount
	Idle *CostAmount `json:"idle,omitempty" doc:"The part that belongs to no job; of pools and months."`
}

// CostAmount is an amount of money, and of time on nodes.
type CostAmount struct {
	Cost  float64 `json:"cost" doc:"In the operator's currency."`
	Hours float64 `json:"hours" doc:"Of whole nodes: half of a node for an hour is half an hour."`
}

// CostRest is what rows that are left out add up to.
type CostRest struct {
	Rows int `json:"rows" doc:"How many rows."`
	CostAmount
}
