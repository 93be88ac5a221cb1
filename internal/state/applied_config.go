package state

import "github.com/musterhq/muster"

// maxConfig bounds the content of a configuration, in bytes: a snapshot holds all of it, and every server reads it.
const maxConfig = 4 << 20

// AppliedConfig is the configuration of the cluster that is in force. The state keeps it as text: what it says is
// for package config, which knows the fields of its version.
type AppliedConfig struct {
	// Version counts the configurations that were applied, from 1 on.
	Version uint64 `cbor:"1,keyasint"`
	// Applied is when this one came into force, Index its place in the log.
	Applied muster.Time `cbor:"2,keyasint"`
	Index   uint64      `cbor:"3,keyasint"`
	// Server is the id of the server that applied it, How by what: one of the constants below.
	Server string `cbor:"4,keyasint,omitempty"`
	How    string `cbor:"5,keyasint,omitempty"`
	// Content is the configuration as JSON. It has neither secrets nor what each server has for itself.
	Content string `cbor:"6,keyasint"`
	// Over is the digest of the configuration in that server's own file, if it was another one. A server alone
	// applies its file at its start only if the file has changed since.
	Over string `cbor:"7,keyasint,omitempty"`
}

// What applied a configuration.
const (
	// ConfigFirst: the cluster had none.
	ConfigFirst = "first"
	// ConfigStart: a server without others has started with another file.
	ConfigStart = "start"
	// ConfigReload: the leader was told to read its file again.
	ConfigReload = "reload"
	// ConfigRequest: an operator has sent it.
	ConfigRequest = "request"
)

// ConfigApplied puts a configuration in force. The one that is in force already changes nothing, except for Over.
// Value: *AppliedConfig, the one in force.
type ConfigApplied struct {
	Content string `cbor:"1,keyasint"`
	Server  string `cbor:"2,keyasint,omitempty"`
	How     string `cbor:"3,keyasint,omitempty"`
	Over    string `cbor:"4,keyasint,omitempty"`
	// IfVersion refuses it unless the configuration in force has this version; 0: there is none.
	IfVersion *uint64 `cbor:"5,keyasint,omitempty"`
}

func (f *ConfigApplied) apply(s *State, now muster.Time) (any, error) {
	was := s.t.config
	if was == nil {
		was = &AppliedConfig{}
	}
	switch {
	case f.Content == "":
		return nil, muster.Faultf(muster.FaultInvalid, "the configuration is empty")
	case len(f.Content) > maxConfig:
		return nil, muster.Faultf(muster.FaultInvalid, "the configuration has %s; it may have %s", muster.Bytes(len(f.Content)), muster.Bytes(maxConfig))
	case f.IfVersion != nil && *f.IfVersion != was.Version:
		return nil, muster.Faultf(muster.FaultConflict, "the configuration in force has version %d, not %d; look at what changed (muster config show), and apply again", was.Version, *f.IfVersion)
	}
	if f.Content == was.Content {
		if f.Over != was.Over {
			same := *was
			same.Over = f.Over
			s.t.config = &same
		}
		return s.t.config, nil
	}
	s.t.config = &AppliedConfig{
		Version: was.Version + 1, Applied: now, Index: s.meta.Index, Server: f.Server, How: f.How, Content: f.Content, Over: f.Over,
	}
	s.changed(Change{Verb: VerbConfigApplied, Config: true})
	return s.t.config, nil
}

// ConfigInForce is the configuration of the cluster; nil as long as none was applied.
func ConfigInForce(s *Snapshot) *AppliedConfig { return s.t.config }
