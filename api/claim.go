package api

import "time"

// ClaimRequest is the body of POST /v1/claims.
type ClaimRequest struct {
	Environment string `json:"environment" doc:"Name of the environment."`
	Namespace   string `json:"namespace,omitempty" doc:"Default: default."`
	// TTL and Idle: nil is what the environment says, 0 none.
	TTL  *Duration `json:"ttl,omitempty" doc:"The claim expires after this time. 0s: no limit. Default: the environment's."`
	Idle *Duration `json:"idle,omitempty" doc:"It expires when its runner was not used for this time. 0s: no limit. Default: the environment's."`
	Wait Duration  `json:"wait,omitempty" doc:"How long to wait for a runner if none is warm. 0s: not at all. At most 1h."`
	Note string    `json:"note,omitempty" maxLength:"200" doc:"Shown with the claim: what it is for."`
}

// ClaimExtension is the body of POST /v1/runners/{id}/extend. What is left out stays as it is.
type ClaimExtension struct {
	TTL  *Duration `json:"ttl,omitempty" doc:"The claim expires this time from now. 0s: no limit."`
	Idle *Duration `json:"idle,omitempty" doc:"It expires when its runner was not used for this time. 0s: no limit."`
}

// Claim is the right of one holder to one runner.
type Claim struct {
	ID          string     `json:"id"`
	Namespace   string     `json:"namespace"`
	Environment string     `json:"environment"`
	Runner      string     `json:"runner" doc:"Id of the runner."`
	Node        string     `json:"node,omitempty"`
	State       string     `json:"state" enum:"held,released,expired,lost"`
	Why         string     `json:"why,omitempty" doc:"Why it ended."`
	Note        string     `json:"note,omitempty"`
	Made        time.Time  `json:"made"`
	Deadline    *time.Time `json:"deadline,omitempty" doc:"When it expires; left out: no limit."`
	Idle        Duration   `json:"idle,omitempty" doc:"It expires when its runner was not used for this time; left out: no limit."`
	Used        *time.Time `json:"used,omitempty" doc:"When its runner was last used, as recorded: up to a few seconds or a quarter of idle late."`
	Ended       *time.Time `json:"ended,omitempty"`
	// Secret only in the answer that makes the claim.
	Secret string `json:"secret,omitempty" doc:"The token of the holder for requests to /v1/runners/{id}. Only in the answer to the claim; a repeated claim gets the same one."`
	Ports  []int  `json:"ports,omitempty" doc:"Ports of the environment that other sandboxes on its node may connect to."`
}

// ClaimList is a page of claims.
type ClaimList struct {
	Claims []Claim `json:"claims"`
	Next   string  `json:"next,omitempty"`
	Index  uint64  `json:"index"`
}

// Runner is a runner as the API shows it.
type Runner struct {
	ID          string     `json:"id" doc:"Id of its allocation as well."`
	Namespace   string     `json:"namespace"`
	Environment string     `json:"environment"`
	Version     uint64     `json:"version" doc:"Of the environment."`
	State       string     `json:"state" enum:"starting,warm,claimed,gone"`
	Why         string     `json:"why,omitempty" doc:"The step of its start, or why it is gone."`
	Node        string     `json:"node"`
	Image       string     `json:"image,omitempty" doc:"Digest of its image."`
	Claim       *Claim     `json:"claim,omitempty"`
	Placed      time.Time  `json:"placed"`
	Started     *time.Time `json:"started,omitempty"`
	Ended       *time.Time `json:"ended,omitempty"`
}

// RunnerList is a page of runners.
type RunnerList struct {
	Runners []Runner `json:"runners"`
	Next    string   `json:"next,omitempty"`
	Index   uint64   `json:"index"`
}

// Codes of problems of claims.
const (
	// CodeNoneWarm: none is warm, and the claim does not wait, or has waited long enough (503).
	CodeNoneWarm = "none-warm"
	// CodeNotClaimed: the runner is not claimed, or not any more (410).
	CodeNotClaimed = "not-claimed"
)
