package api

import (
	"encoding/json"
	"time"
)

// ConfigChange is one difference between the configuration that a server runs with and another one.
type ConfigChange struct {
	Field   string `json:"field" doc:"For example pools[main].max; objects with a name are identified by it."`
	From    string `json:"from,omitempty" doc:"Empty: it was absent."`
	To      string `json:"to,omitempty" doc:"Empty: it is absent now."`
	Restart bool   `json:"restart,omitempty" doc:"It takes effect only when the server is restarted."`
	Warning string `json:"warning,omitempty" doc:"Effects that are not undone by changing it back."`
}

// String is the change in words.
func (c ConfigChange) String() string {
	text := c.Field
	switch {
	case c.From == "":
		text += " is added: " + c.To
	case c.To == "":
		text += " is removed (was " + c.From + ")"
	default:
		text += ": " + c.From + " becomes " + c.To
	}
	if c.Restart {
		text += " (with the next start only)"
	}
	return text
}

// AppliedConfig is the answer of GET /v1/config/applied: the configuration of the cluster that is in force.
type AppliedConfig struct {
	Version uint64    `json:"version" doc:"Counts the configurations that were applied, from 1 on."`
	Applied time.Time `json:"applied" doc:"When it came into force."`
	Index   uint64    `json:"index" doc:"Its place in the log."`
	Server  string    `json:"server" doc:"Id of the server that applied it."`
	How     string    `json:"how" enum:"first,start,reload,request" doc:"first: the cluster had none. start: a server without others has started with another file. reload: the server that leads was told to read its file again. request: an operator has sent it."`
	// Config is that of a ServerConfig without what is each server's own.
	Config json.RawMessage `json:"config" doc:"The cluster's part of a configuration, as a file would have it (docs/files.md), with all defaults."`
	// Differs concerns the server that answers.
	Self    string         `json:"self" doc:"Id of the server that answers."`
	Differs []ConfigChange `json:"differs,omitempty" doc:"What would change if the file of the server that answers came into force."`
	Unknown string         `json:"unknown,omitempty" doc:"A field that the server that answers does not know: a newer version has applied the configuration."`
}

// ConfigApply is the body of PUT /v1/config/applied.
type ConfigApply struct {
	Config ServerConfig `json:"config" doc:"The cluster's part of a configuration (docs/files.md). What is each server's own stays in its file."`
	// IfVersion guards against the work of another operator.
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Apply it only if the configuration in force has this version."`
	DryRun    bool    `json:"dry_run,omitempty" doc:"Check it and say what would change, and change nothing."`
}

// ConfigApplied is the answer of PUT /v1/config/applied.
type ConfigApplied struct {
	Version uint64         `json:"version" doc:"The version in force; with dry_run the one that it was compared with."`
	Changes []ConfigChange `json:"changes,omitempty" doc:"What was changed, or would be."`
	DryRun  bool           `json:"dry_run,omitempty"`
}
