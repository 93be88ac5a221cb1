package state

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// Host is a machine that an operator has, of a static provider. Nobody makes or destroys it, and no
// cloud can be asked who has it: this row is all that is known of that. It is there for as long as
// somebody has the host, something is to be cleared from it, or something was found of it.
type Host struct {
	Provider muster.ProviderName `cbor:"1,keyasint"`
	Name     string              `cbor:"2,keyasint"`
	// Use says who has it; nil: nobody.
	Use *HostUse `cbor:"3,keyasint,omitempty"`
	// Found is what was measured there; nil: nothing.
	Found *HostFound `cbor:"4,keyasint,omitempty"`
}

// HostUse says who has a host, as an instance of its provider.
type HostUse struct {
	Instance muster.InstanceID   `cbor:"1,keyasint"`
	Owner    string              `cbor:"2,keyasint,omitempty"`
	Token    muster.Token        `cbor:"3,keyasint"`
	Node     muster.NodeID       `cbor:"4,keyasint"`
	Pool     muster.PoolName     `cbor:"5,keyasint,omitempty"`
	Intent   muster.NodeIntent   `cbor:"6,keyasint,omitempty"`
	Offering muster.OfferingName `cbor:"7,keyasint"`
	Zone     string              `cbor:"8,keyasint,omitempty"`
	Market   muster.Market       `cbor:"9,keyasint,omitempty"`
	Taken    muster.Time         `cbor:"10,keyasint"`
	// Owed: it was released, and could not be reached to be cleared. It is not free before that.
	Owed bool `cbor:"11,keyasint,omitempty"`
	// Access is how it was reached when it was taken, as JSON of the provider's own. It has paths of
	// keys and no keys. The host is cleared by it even if the configuration has lost the host.
	Access []byte `cbor:"12,keyasint,omitempty"`
}

// HostFound is what was measured of a host at an address.
type HostFound struct {
	Name     string           `cbor:"1,keyasint"`
	Address  string           `cbor:"2,keyasint"`
	Capacity muster.Resources `cbor:"3,keyasint"`
	Arch     string           `cbor:"4,keyasint,omitempty"`
}

// HostTaken gives a host to an intent. It is refused as a conflict if somebody has the host, or if the
// token has another one. The same again changes nothing.
type HostTaken struct {
	Provider muster.ProviderName `cbor:"1,keyasint"`
	Name     string              `cbor:"2,keyasint"`
	Use      HostUse             `cbor:"3,keyasint"`
}

// HostTagged gives a host that somebody has other tags. It is refused as not-found if the host is not
// that instance any more.
type HostTagged struct {
	Provider muster.ProviderName `cbor:"1,keyasint"`
	Name     string              `cbor:"2,keyasint"`
	Instance muster.InstanceID   `cbor:"3,keyasint"`
	Node     muster.NodeID       `cbor:"4,keyasint"`
	Pool     muster.PoolName     `cbor:"5,keyasint,omitempty"`
	Intent   muster.NodeIntent   `cbor:"6,keyasint,omitempty"`
}

// HostReleased makes a host free, or with Owed one that is to be cleared first. A host that is not
// that instance any more is passed over: it was released before.
type HostReleased struct {
	Provider muster.ProviderName `cbor:"1,keyasint"`
	Name     string              `cbor:"2,keyasint"`
	Instance muster.InstanceID   `cbor:"3,keyasint"`
	Owed     bool                `cbor:"4,keyasint,omitempty"`
}

// HostsFound replaces what was measured of the hosts of a provider.
type HostsFound struct {
	Provider muster.ProviderName `cbor:"1,keyasint"`
	Hosts    []HostFound         `cbor:"2,keyasint,omitempty"`
}

// hostTables are the trees of hosts.
type hostTables struct {
	hosts *btree.BTreeG[*Host] // by provider, name
	// hostTokens has those that somebody has, by provider, token; derived.
	hostTokens *btree.BTreeG[*Host]
}

func newHostTables() hostTables {
	return hostTables{
		hosts: tree(func(a, b *Host) int { return compareTwo(a.Provider, b.Provider, a.Name, b.Name) }),
		hostTokens: tree(func(a, b *Host) int {
			return compareTwo(a.Provider, b.Provider, string(a.Use.Token), string(b.Use.Token))
		}),
	}
}

func compareTwo(a, b muster.ProviderName, of, and string) int {
	if c := compareStrings(a, b); c != 0 {
		return c
	}
	return compareStrings(of, and)
}

func (t *hostTables) copy() hostTables { return hostTables{t.hosts.Copy(), t.hostTokens.Copy()} }

// putHost puts a row in place of the one that there is, and drops it if it says nothing.
func (t *hostTables) putHost(after *Host) {
	if before, ok := t.hosts.Get(after); ok && before.Use != nil {
		t.hostTokens.Delete(before)
	}
	if after.Use == nil && after.Found == nil {
		t.hosts.Delete(after)
		return
	}
	t.hosts.Set(after)
	if after.Use != nil {
		t.hostTokens.Set(after)
	}
}

// host is a copy of a row.
func (t *hostTables) host(provider muster.ProviderName, name string) Host {
	if h, ok := t.hosts.Get(&Host{Provider: provider, Name: name}); ok {
		return *h
	}
	return Host{Provider: provider, Name: name}
}

func (f *HostTaken) apply(s *State, _ muster.Time) (any, error) {
	h := s.t.host(f.Provider, f.Name)
	switch other, has := s.t.hostTokens.Get(&Host{Provider: f.Provider, Use: &HostUse{Token: f.Use.Token}}); {
	case f.Name == "" || f.Use.Token == "" || f.Use.Instance == "":
		return nil, muster.Faultf(muster.FaultInvalid, "host %q: a name, a token and an instance are needed", f.Name)
	case h.Use != nil && h.Use.Token == f.Use.Token:
		return nil, nil
	case h.Use != nil:
		return nil, muster.Faultf(muster.FaultConflict, "host %s is in use, as instance %s", f.Name, h.Use.Instance)
	case has:
		return nil, muster.Faultf(muster.FaultConflict, "token %s has host %s already", f.Use.Token, other.Name)
	}
	use := f.Use
	h.Use = &use
	s.t.putHost(&h)
	return nil, nil
}

func (f *HostTagged) apply(s *State, _ muster.Time) (any, error) {
	h := s.t.host(f.Provider, f.Name)
	if h.Use == nil || h.Use.Instance != f.Instance || h.Use.Owed {
		return nil, muster.Faultf(muster.FaultNotFound, "host %s is not instance %s any more", f.Name, f.Instance)
	}
	use := *h.Use
	use.Node, use.Pool, use.Intent = f.Node, f.Pool, f.Intent
	h.Use = &use
	s.t.putHost(&h)
	return nil, nil
}

func (f *HostReleased) apply(s *State, _ muster.Time) (any, error) {
	h := s.t.host(f.Provider, f.Name)
	if h.Use == nil || h.Use.Instance != f.Instance {
		return nil, nil
	}
	if f.Owed {
		use := *h.Use
		use.Owed = true
		h.Use = &use
	} else {
		h.Use = nil
	}
	s.t.putHost(&h)
	return nil, nil
}

func (f *HostsFound) apply(s *State, _ muster.Time) (any, error) {
	for _, row := range collect(s.t.hosts, &Host{Provider: f.Provider}, func(h *Host) bool { return h.Provider == f.Provider }) {
		if row.Found != nil && !slices.ContainsFunc(f.Hosts, func(h HostFound) bool { return h.Name == row.Name }) {
			h := *row
			h.Found = nil
			s.t.putHost(&h)
		}
	}
	for i := range f.Hosts {
		found := f.Hosts[i]
		h := s.t.host(f.Provider, found.Name)
		h.Found = &found
		s.t.putHost(&h)
	}
	return nil, nil
}

// Hosts iterates over the hosts of a static provider of which something is known, by name.
func (p Providers) Hosts(provider muster.ProviderName, fn func(*Host) bool) {
	p.t.hosts.Ascend(&Host{Provider: provider}, func(h *Host) bool { return h.Provider == provider && fn(h) })
}

// hosts checks the index by token.
func (c *checker) hosts() {
	used := 0
	c.snap.t.hosts.Scan(func(h *Host) bool {
		if h.Use == nil {
			return true
		}
		used++
		if got, ok := c.snap.t.hostTokens.Get(h); !ok || got.Name != h.Name {
			c.bad("host %s of %s is not in the index by token", h.Name, h.Provider)
		}
		return true
	})
	if used != c.snap.t.hostTokens.Len() {
		c.bad("%d hosts are in use, %d are in the index by token", used, c.snap.t.hostTokens.Len())
	}
}
