package server

import (
	"github.com/musterhq/muster/internal/control/reaper"
)

func (s *Server) reaper(l ledger) (*reaper.Reaper, error) {
	return reaper.New(reaper.Config{
		State: s.state, Proposer: l, Blobs: s.blobs, Logger: s.log,
		Jobs: s.cfg.Retention.Jobs.Std(), Nodes: s.cfg.Retention.Nodes.Std(), Output: s.cfg.Blob.Retention.Std(), Quota: int64(s.cfg.Blob.Quota),
	})
}
