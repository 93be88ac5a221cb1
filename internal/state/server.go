package state

import (
	"cmp"
	"slices"
	"strings"

	"github.com/musterhq/muster"
)

// MaxServers bounds the servers of a cluster, those that have left included until they are removed.
const MaxServers = 32

// Server is what the cluster knows of one of its servers beside the log's own configuration. The leader
// records it, so that the next leader knows it of servers that it cannot ask.
type Server struct {
	// ID is the server's id in the log; it does not change.
	ID string `cbor:"1,keyasint"`
	// Name is what its operator calls it. No two servers have the same.
	Name string `cbor:"2,keyasint,omitempty"`
	// Version is that of its program, Reads the newest log format that the program reads.
	Version string `cbor:"3,keyasint,omitempty"`
	Reads   Format `cbor:"4,keyasint,omitempty"`
	// API is the address of its HTTP API for clients on other hosts, as host:port or a URL; empty if it
	// listens on loopback only.
	API string `cbor:"5,keyasint,omitempty"`
}

// Servers are all of a cluster, by id. They never change in place.
type Servers struct {
	List []Server `cbor:"1,keyasint,omitempty"`
}

// ServerSeen records what a server says of itself.
type ServerSeen struct {
	Server Server `cbor:"1,keyasint"`
}

// ServerRemoved forgets a server that is no longer one of the cluster.
type ServerRemoved struct {
	ID string `cbor:"1,keyasint"`
}

func (f *ServerSeen) apply(s *State, _ muster.Time) (any, error) {
	next := f.Server
	if next.ID == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "a server without an id")
	}
	list := s.t.serverList()
	at, found := slices.BinarySearchFunc(list, next.ID, func(v Server, id string) int { return strings.Compare(v.ID, id) })
	for i := range list {
		if list[i].Name == next.Name && list[i].ID != next.ID && next.Name != "" {
			return nil, muster.Faultf(muster.FaultAlreadyExists, "server %s: the cluster has another server of this name", next.Name)
		}
	}
	switch {
	case found && list[at] == next:
		return nil, nil
	case !found && len(list) >= MaxServers:
		return nil, muster.Faultf(muster.FaultQuota, "server %s: the cluster knows %d servers, which is the most; remove those that have left", cmp.Or(next.Name, next.ID), len(list))
	}
	list = slices.Clone(list)
	if found {
		list[at] = next
	} else {
		list = slices.Insert(list, at, next)
	}
	s.t.servers = &Servers{List: list}
	return nil, nil
}

func (f *ServerRemoved) apply(s *State, _ muster.Time) (any, error) {
	list := slices.DeleteFunc(slices.Clone(s.t.serverList()), func(v Server) bool { return v.ID == f.ID })
	if len(list) == len(s.t.serverList()) {
		return nil, nil
	}
	s.t.servers = &Servers{List: list}
	return nil, nil
}

// serverList is what is known of servers, by id. It is nil before the first.
func (t *tables) serverList() []Server {
	if t.servers == nil {
		return nil
	}
	return t.servers.List
}

// ServersOf are the servers that the cluster knows, by id, as a snapshot has them. The slice must not be changed.
func ServersOf(s *Snapshot) []Server { return s.t.serverList() }

// ServerOf is the server of an id; false if the cluster does not know it.
func ServerOf(s *Snapshot, id string) (Server, bool) {
	for _, v := range s.t.serverList() {
		if v.ID == id {
			return v, true
		}
	}
	return Server{}, false
}
