// Package cluster makes a server one of several: its identity, its connections to the other servers, and
// who belongs to the cluster.
//
//   - A server founds a cluster (Bootstrap), joins one with a token (Join), or goes on as the member that its
//     data directory says it is.
//   - The leader asks the others for their state (Lead): it promotes a server that has caught up, records what
//     each is and reads, and forgets those that were removed.
//   - Operators list, remove and promote servers (List, Remove, Transfer).
//
// It must never decide alone who is a member: that is in the log's configuration. It must never let a change
// of members leave less than a majority.
package cluster
