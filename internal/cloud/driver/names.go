package driver

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Names of the tags of an instance, as in package exec.
const (
	TagOwner  = "muster-owner"
	TagToken  = "muster-token"
	TagNode   = "muster-node"
	TagPool   = "muster-pool"
	TagIntent = "muster-intent"
)

// Digest is n hex digits, at most 64, that follow from the parts. Other parts give other digits,
// also when they are the same text once joined.
func Digest(n int, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))[:n]
}

// InstanceName is the name of the instance of a token, for clouds in which names are unique. It is
// a host name of 26 characters. It follows from owner and token alone, so a create that is repeated
// meets the instance that was made before.
func InstanceName(owner string, token muster.Token) string {
	return "m-" + Digest(24, owner, string(token))
}

// TagMap is the tags as names and values. An empty intent is an empty value, so that a later change
// never deletes a tag: one call and one permission fewer.
func TagMap(t cloud.Tags) map[string]string {
	return map[string]string{TagOwner: t.Owner, TagToken: string(t.Token), TagNode: string(t.Node),
		TagPool: string(t.Pool), TagIntent: string(t.Intent)}
}

// TagsOf reads what TagMap made.
func TagsOf(m map[string]string) cloud.Tags {
	return cloud.Tags{Owner: m[TagOwner], Token: muster.Token(m[TagToken]), Node: muster.NodeID(m[TagNode]),
		Pool: muster.PoolName(m[TagPool]), Intent: muster.NodeIntent(m[TagIntent])}
}
