package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// entries are those of one host.
type entries struct {
	// of are those that name namespaces, and rest is the one for all others; nil: they have none.
	of   map[muster.Namespace]*known
	rest *known
}

// add adds an entry. A namespace has one for a host at most.
func (e *entries) add(k *known) error {
	if len(k.spec.Namespaces) == 0 {
		if e.rest != nil {
			return fmt.Errorf("registry %s: is the same as %s", k.spec.Host, e.rest.spec.Host)
		}
		e.rest = k
	}
	for _, ns := range k.spec.Namespaces {
		if other := e.of[muster.Namespace(ns)]; other != nil {
			return fmt.Errorf("registry %s: is the same as %s for namespace %s", k.spec.Host, other.spec.Host, ns)
		}
		e.of[muster.Namespace(ns)] = k
	}
	return nil
}

// entry is what a namespace has for a host; nil if it has nothing.
func (r *Registries) entry(host string, ns muster.Namespace) *known {
	e := r.hosts[host]
	if e == nil {
		return nil
	}
	if k := e.of[ns]; k != nil {
		return k
	}
	return e.rest
}

// divided reports whether the entry of a host depends on the namespace.
func (r *Registries) divided(host string) bool {
	e := r.hosts[host]
	return e != nil && len(e.of) > 0
}

// Scope stands for the credentials with which a namespace pulls an image. Nodes note it with the
// images in their caches: an image that was pulled with one scope is not used in another before its
// registry has shown it there too. It is empty if all namespaces have the same credentials, and
// muster.PublicScope for a namespace that has no entry. It is the same after a restart with the same
// configuration, and says nothing of the password.
func (r *Registries) Scope(ref string, ns muster.Namespace) string {
	n, err := name.ParseReference(ref)
	if err != nil {
		return ""
	}
	k := r.entry(host(n), ns)
	if k == nil {
		if r.divided(host(n)) {
			return muster.PublicScope
		}
		return ""
	}
	parts, divided := []string{k.scope}, r.divided(k.host)
	// Credentials for a mirror are those of its own entry.
	if at, _, _ := strings.Cut(k.spec.Mirror, "/"); at != "" {
		if reg, err := name.NewRegistry(at); err == nil {
			mirror := strings.ToLower(reg.RegistryStr())
			divided = divided || r.divided(mirror)
			if m := r.entry(mirror, ns); m != nil {
				parts = append(parts, m.scope)
			}
		}
	}
	if !divided {
		return ""
	}
	return strings.Join(parts, "+")
}

// scopeOf is a digest of what makes an entry another one. A password that is changed is not among
// it: a rotation opens and closes nothing.
func scopeOf(s *api.RegistrySpec) string {
	sum := sha256.New()
	for _, part := range append([]string{s.Host, s.Username, s.PasswordFile, s.Identity, s.Mirror}, slices.Sorted(slices.Values(s.Namespaces))...) {
		_, _ = fmt.Fprintf(sum, "%q ", part)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
