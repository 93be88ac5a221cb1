package api

import "strings"

// ServerInfo is the answer of GET /v1/server.
type ServerInfo struct {
	Version   string `json:"version"`
	ClusterID string `json:"cluster_id"`
	Epoch     uint64 `json:"epoch"`
	Index     uint64 `json:"index"`
	Leader    bool   `json:"leader"`
}

// Codes of problems that are no fault kinds of package muster.
const (
	// CodeAuth: the token is missing or wrong.
	CodeAuth = "auth"
	// CodeForbidden: the Host or Origin of the request is not allowed.
	CodeForbidden = "forbidden"
)

// Problem is an error answer (RFC 9457).
type Problem struct {
	Type   string         `json:"type,omitempty"`
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail"`
	Code   string         `json:"code,omitempty" doc:"Fault kind: invalid, not-found, conflict, disk-low, …"`
	Errors []ProblemField `json:"errors,omitempty"`
}

// ProblemField is one field of the request that is wrong.
type ProblemField struct {
	Location string `json:"location"`
	Message  string `json:"message"`
	Value    any    `json:"value,omitempty"`
}

// Error makes a Problem usable as an error. Fields whose message the detail ends with are not repeated.
func (p *Problem) Error() string {
	s := p.Detail
	if s == "" {
		s = p.Title
	}
	for _, e := range p.Errors {
		if !strings.HasSuffix(p.Detail, ": "+e.Message) {
			s += "\n  " + e.String()
		}
	}
	return s
}

// String is the field and what is wrong with it.
func (f ProblemField) String() string {
	if f.Location == "" {
		return f.Message
	}
	return f.Location + ": " + f.Message
}

// Upload is the answer of PUT /v1/uploads/{digest}.
type Upload struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}
