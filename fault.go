package muster

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// FaultKind is what policy reads of an error; it never reads text.
type FaultKind string

// Fault kinds of providers (design: faults are the normal case) and of requests.
const (
	FaultCapacity      FaultKind = "capacity"       // the provider has none of it now
	FaultQuota         FaultKind = "quota"          // the account may not have more
	FaultRateLimited   FaultKind = "rate-limited"   // too many calls; see After
	FaultAuth          FaultKind = "auth"           // credentials refused
	FaultInvalid       FaultKind = "invalid"        // the request can never succeed as it is
	FaultNotFound      FaultKind = "not-found"      // the object does not exist
	FaultAlreadyExists FaultKind = "already-exists" // the object exists
	FaultConflict      FaultKind = "conflict"       // the object is not in a state that allows it
	FaultTransient     FaultKind = "transient"      // try again with back-off
	FaultAmbiguous     FaultKind = "ambiguous"      // it may have happened: look, never repeat blindly
	FaultDiskLow       FaultKind = "disk-low"       // the server's disk is nearly full
	FaultTooOld        FaultKind = "too-old"        // asked to resume from before what is kept
	FaultUnavailable   FaultKind = "unavailable"    // not now: not leader, starting or stopping
	FaultInternal      FaultKind = "internal"       // a defect of ours
)

// Scope is what a capacity, quota or rate fault blocks; empty fields mean all.
type Scope struct {
	Provider ProviderName `json:"provider,omitempty"`
	Zone     string       `json:"zone,omitempty"`
	Offering OfferingName `json:"offering,omitempty"`
	Market   Market       `json:"market,omitempty"`
	Family   string       `json:"family,omitempty"`
}

// Covers reports whether the offering is in the scope.
func (s Scope) Covers(o *Offering) bool {
	return (s.Provider == "" || s.Provider == o.Provider) && (s.Zone == "" || s.Zone == o.Zone) &&
		(s.Offering == "" || s.Offering == o.Name) && (s.Market == "" || s.Market == o.Market) && (s.Family == "" || s.Family == o.Family)
}

// String is the scope in words, "everything" if it is empty.
func (s Scope) String() string {
	var b strings.Builder
	for _, part := range []struct{ noun, name string }{
		{"provider", string(s.Provider)}, {"zone", s.Zone}, {"offering", string(s.Offering)}, {"market", string(s.Market)}, {"quota family", s.Family},
	} {
		if part.name == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(part.noun + " " + part.name)
	}
	if b.Len() == 0 {
		return "everything"
	}
	return b.String()
}

// Fault is an error with a kind. Wrap it with the object's name once per layer.
type Fault struct {
	Kind    FaultKind
	Message string
	Scope   Scope         // of capacity, quota, rate-limited
	After   time.Duration // of rate-limited and unavailable: when to come again; 0 = not said
	Field   string        // of invalid: the field, as a path like "resources.cpu"
	Err     error
}

func (f *Fault) Error() string {
	switch {
	case f.Err != nil && f.Message != "":
		return f.Message + ": " + f.Err.Error()
	case f.Err != nil:
		return f.Err.Error()
	}
	return f.Message
}

func (f *Fault) Unwrap() error { return f.Err }

// Faultf makes a fault of a kind with a message.
func Faultf(kind FaultKind, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// KindOf is the kind of the first fault in err's chain; FaultInternal if there is none.
func KindOf(err error) FaultKind {
	var f *Fault
	if errors.As(err, &f) {
		return f.Kind
	}
	return FaultInternal
}

// IsKind reports whether err's first fault is of this kind.
func IsKind(err error, kind FaultKind) bool {
	var f *Fault
	return errors.As(err, &f) && f.Kind == kind
}
