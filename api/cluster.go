package api

import "time"

// ClusterSpec makes a server one of several.
type ClusterSpec struct {
	Name    string `json:"name,omitempty" doc:"Name of this server, unique in its cluster. Default: the host's name."`
	Address string `json:"address" doc:"Address at which the other servers reach this one, as host:port. Not that of the API. Connections are encrypted, and both sides show certificates of the cluster."`
	Listen  string `json:"listen,omitempty" doc:"Address on which it listens for the other servers, as host:port. Default: address."`
	API     string `json:"api,omitempty" doc:"Address of the API of this server for clients on other hosts, as host:port or a URL, for clients that ask for all servers. Default: listen, unless that is a loopback address or all addresses."`
}

// Roles of servers in a cluster.
const (
	// RoleLeader is the server that decides; RoleVoter one that counts for a majority.
	RoleLeader = "leader"
	RoleVoter  = "voter"
	// RoleLearner gets the log and does not vote yet.
	RoleLearner = "learner"
	// RoleNone is of a server that the log does not know.
	RoleNone = "none"
)

// ServerList are the servers of a cluster.
type ServerList struct {
	Servers []ServerMember `json:"servers"`
	// Format is the log format in force, Reads the newest that all servers read.
	Format int `json:"format" doc:"The log format in force."`
	Reads  int `json:"reads" doc:"The newest log format that every server reads; 0 while that is not known."`
}

// ServerMember is a server of the cluster.
type ServerMember struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Role    string `json:"role" enum:"leader,voter,learner,none"`
	Address string `json:"address,omitempty" doc:"Address for the other servers."`
	API     string `json:"api,omitempty" doc:"Address of its API for clients on other hosts."`
	Version string `json:"version,omitempty"`
	Reads   int    `json:"reads,omitempty" doc:"The newest log format that it reads."`
	// What the leader has heard from it last.
	Applied uint64     `json:"applied,omitempty" doc:"Index of the newest log entry that it had when it was last heard."`
	Heard   *time.Time `json:"heard,omitempty" doc:"When the leader last heard from it. Missing: not since this leader leads."`
	Problem string     `json:"problem,omitempty" doc:"Why it does not answer the leader."`
}

// JoinToken lets servers join the cluster until it ends.
type JoinToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// Address is of a server that can be asked to join.
	Address string `json:"address" doc:"Address for --join."`
}
