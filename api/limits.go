package api

// LimitsConfig bounds what clients can take of a server. docs/limits.md has all bounds, those that are fixed too.
type LimitsConfig struct {
	// Connections is the most connections to the API at once.
	Connections int `json:"connections,omitempty" minimum:"16" maximum:"1000000" zero:"4096" doc:"Most connections to the API at once; fewer if the process cannot open that many descriptors. Beyond it, the oldest connection without an authenticated request is closed for a new one. Default: 4096."`
	// ConnectionsPerAddress is the same for one remote address.
	ConnectionsPerAddress int `json:"connections_per_address,omitempty" minimum:"1" maximum:"1000000" zero:"as many as connections" doc:"Most connections of one remote address at once, loopback addresses excepted. Default: as many as connections."`
}
