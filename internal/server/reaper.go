package server

import (
	"github.com/musterhq/muster/internal/control/reaper"
)

// reaper makes the loop that removes what is older than its retention, and stored output beyond the
// quota. Its limits are those of the configuration at the start of the loops; a reload starts the
// loops again.
func (s *Server) reaper(l ledger) (*reaper.Reaper, error) {
	config := s.config()
	return reaper.New(reaper.Config{
		State: s.state, Proposer: l, Clock: s.raft.Now, Blobs: s.blobs, Logger: s.log,
		Jobs: config.Retention.Jobs.Std(), Nodes: config.Retention.Nodes.Std(), Output: config.Blob.Retention.Std(), Quota: int64(config.Blob.Quota),
		Attempts: config.Retention.Attempts, Kept: s.history.Kept, PruneImages: s.images.Prune, InUse: &s.jobsInUse,
	})
}
