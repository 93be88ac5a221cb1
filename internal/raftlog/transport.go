package raftlog

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
)

// Cluster is the place of a server among others that share one log. Config without one means a server
// alone, which listens nowhere.
//
// A fresh directory founds a cluster of Servers, or of this server alone if there are none; one that
// SetJoining has prepared waits until the leader of a cluster sends entries. In any other directory the
// log itself knows the members.
type Cluster struct {
	// Address is where the others reach this server. When it leads, it puts it into the log.
	Address   raft.ServerAddress
	Servers   []raft.Server
	Transport raft.Transport // closed by the log if it can be

	// Term asks another server for its term (see Log.Term), for ReadIndex. It is needed.
	Term func(context.Context, Member) (uint64, error)

	// Heartbeat is the time without a leader before an election; 0 means 1 s.
	Heartbeat time.Duration

	// self stands for the directory's id, in tests that know the members before there are directories.
	self raft.ServerID
}

const heartbeat = time.Second

// aloneAddress stands in raft's configuration for the one server.
const aloneAddress raft.ServerAddress = "alone"

var errAlone = errors.New("this server has no others to speak to")

// alone is the transport of a server without others.
type alone struct{ inbox chan raft.RPC }

var _ raft.Transport = alone{}

func newAlone() alone { return alone{inbox: make(chan raft.RPC, 1)} }

// elect sends the one message there is, by which a leader hands over its
// office: the server runs for election at once. It needs no short time-outs for
// that, which would wake it fifty times a second for ever.
func (a alone) elect() {
	a.inbox <- raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		RespChan: make(chan raft.RPCResponse, 1),
	}
}

func (a alone) Consumer() <-chan raft.RPC                                { return a.inbox }
func (alone) LocalAddr() raft.ServerAddress                              { return aloneAddress }
func (alone) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }
func (alone) DecodePeer(b []byte) raft.ServerAddress                     { return raft.ServerAddress(b) }
func (alone) SetHeartbeatHandler(func(raft.RPC))                         {}
func (alone) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, errAlone
}
func (alone) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	return errAlone
}
func (alone) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest, *raft.RequestVoteResponse) error {
	return errAlone
}
func (alone) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	return errAlone
}
func (alone) TimeoutNow(raft.ServerID, raft.ServerAddress, *raft.TimeoutNowRequest, *raft.TimeoutNowResponse) error {
	return errAlone
}

// messageTime bounds one message between servers, connecting included. That of a snapshot grows with it.
const messageTime = 10 * time.Second

// NewTransport sends the messages of the log over a stream layer. It pipelines entries and reuses
// connections.
func NewTransport(layer raft.StreamLayer, logger *slog.Logger) raft.Transport {
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 3, Timeout: messageTime, Logger: &hcLogger{to: cmp.Or(logger, discard), name: "raft"},
	})
}
