package api

import "time"

// Event is one change, as /v1/events tells it. Rows and facts never leave the
// server; this is their public form.
type Event struct {
	// ID is where to resume: pass it as Last-Event-ID or after=. "index.part".
	ID    string    `json:"id"`
	Index uint64    `json:"index"`
	Time  time.Time `json:"time"`
	// Type is noun.change, as "alloc.running" or "node.serving".
	Type string `json:"type"`
	// Text is the change in one sentence.
	Text      string `json:"text"`
	Namespace string `json:"namespace,omitempty"`
	Job       string `json:"job,omitempty"`
	JobUID    string `json:"job_uid,omitempty"`
	Alloc     string `json:"alloc,omitempty"`
	Node      string `json:"node,omitempty"`
	Pool      string `json:"pool,omitempty"`
	// Exactly one of these carries the object as it is after the change; none when it is gone.
	JobNow   *Job   `json:"job_now,omitempty"`
	AllocNow *Alloc `json:"alloc_now,omitempty"`
	NodeNow  *Node  `json:"node_now,omitempty"`
}
