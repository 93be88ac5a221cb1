// Package inputs puts the files that a job wants into its work directory before its command starts.
//
// A Cache keeps inputs by digest within a bound: those that the server has pushed, and those that
// the agent has fetched from URLs. Each is fetched once for all allocations that wait for it. Place
// copies them to where the job wants them. Package agent calls it for each allocation.
//
// It must never believe bytes whose digest it has not computed, tell what a URL answered beyond its
// status, write outside of the work directory, or connect to an address that agent/destinations
// refuses.
package inputs
