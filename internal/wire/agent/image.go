package agent

import (
	"strings"

	"github.com/musterhq/muster"
)

// Puller says for whom an image is pulled. The zero value is for everybody: the credentials of the
// image's registry are the same for all namespaces, or there are none.
type Puller struct {
	// Namespace is set if what credentials there are for the image's registry depends on it.
	Namespace muster.Namespace `json:"namespace,omitempty"`
	// Scope stands for the credentials that the namespace has there: namespaces with the same scope
	// have the same credentials, and those with muster.PublicScope have none. It is no secret.
	Scope string `json:"scope,omitempty"`
}

// GrantNeed is how a report names a grant that the agent needs: the reference, and after a space,
// which no reference has, the namespace for which it is pulled, if that matters.
func GrantNeed(ref string, ns muster.Namespace) string {
	if ns == "" {
		return ref
	}
	return ref + " " + string(ns)
}

// CutNeed splits what GrantNeed has put together.
func CutNeed(need string) (ref string, ns muster.Namespace) {
	ref, after, _ := strings.Cut(need, " ")
	return ref, muster.Namespace(after)
}

// PullGrant is the right to pull one image for a short time: what the server makes of its own
// credentials, which stay with it.
type PullGrant struct {
	// Ref is the reference that the report named, and Namespace the namespace, if it named one.
	Ref       string           `json:"ref"`
	Namespace muster.Namespace `json:"namespace,omitempty"`
	// Scope stands for the credentials that the grant was made of; see Puller. It is empty if all
	// namespaces have the same.
	Scope string `json:"scope,omitempty"`
	// Pull is where it is pulled from, if that is not Ref: a mirror, or a digest.
	Pull string `json:"pull,omitempty"`
	// Authorization is the header's value for requests to that repository; empty: none is needed.
	Authorization string `json:"authorization,omitempty"`
	// Insecure allows plain HTTP.
	Insecure bool `json:"insecure,omitempty"`
	// Digest is what Ref means, if the server has that image in its cache: it sends what the image is
	// made of when reports name it in Needs. Empty: the image is pulled from the registry. Only agents
	// that say so in their hello get one.
	Digest string `json:"digest,omitempty"`
	// Until is when it ends, by the server's clock; 0: not known.
	Until muster.Time `json:"until,omitempty"`
	// Failure is set instead when there is none to be had.
	Failure *muster.Failure `json:"failure,omitempty"`
}

// Image is one image in a node's cache.
type Image struct {
	Ref      string       `json:"ref"`
	Digest   string       `json:"digest"`
	Size     muster.Bytes `json:"size"` // unpacked, shared layers counted for each
	Layers   int          `json:"layers"`
	InUse    int          `json:"in_use"` // sandboxes
	LastUsed muster.Time  `json:"used"`   // last
}

// ImageList is a node's cache.
type ImageList struct {
	Images    []Image      `json:"images"`
	UsedBytes muster.Bytes `json:"used"`
	Limit     muster.Bytes `json:"limit"`
}

// PullImage asks for an image ahead of its use.
type PullImage struct {
	Ref string `json:"ref"`
	Puller
}

// PullProgress is one line of a pull; the last has Digest or Failure.
type PullProgress struct {
	Done       int64           `json:"done,omitempty"`
	Total      int64           `json:"total,omitempty"`
	Layers     int             `json:"layers,omitempty"`
	LayersDone int             `json:"layers_done,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	Failure    *muster.Failure `json:"failure,omitempty"`
}

// Pruned is what a prune deleted.
type Pruned struct {
	Freed muster.Bytes `json:"freed"`
}
