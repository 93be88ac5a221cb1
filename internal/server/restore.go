package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// Restore makes a data directory from a backup file. The server that starts on it begins a new
// epoch (beginTerm). Without it agents would refuse the server, because they have seen newer
// messages of the server that the backup was taken of.
func Restore(_ context.Context, file, dataDir string) (raftlog.BackupInfo, error) {
	f, err := os.Open(file)
	if err != nil {
		return raftlog.BackupInfo{}, err
	}
	defer func() { _ = f.Close() }()
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return raftlog.BackupInfo{}, fmt.Errorf("data directory: %w", err)
	}
	// A directory that has a log is refused: two histories must not mix.
	info, err := raftlog.Restore(filepath.Join(dataDir, "log"), f)
	if errors.Is(err, raftlog.ErrNotEmpty) {
		return info, fmt.Errorf("backup %s: %w; use another data directory, or stop the server of this one and move its log/ away", file, err)
	}
	if err != nil {
		return info, fmt.Errorf("backup %s: %w", file, err)
	}
	return info, nil
}

// checkRestored refuses to take over instances of local providers that cannot be found on this
// host. An empty directory would prove that all of them are gone, and the server would run their
// work a second time while they still run elsewhere.
func (s *Server) checkRestored() error {
	nodes := map[muster.ProviderName]int{}
	s.state.Latest().LiveNodes(func(n *state.Node) bool {
		// A node that was launching at the time of the backup may have no instance, so its absence
		// proves nothing.
		if n.Stage != muster.NodeLaunching {
			nodes[n.Offering.Provider]++
		}
		return true
	})
	for i := range s.cfg.Providers {
		p := &s.cfg.Providers[i]
		n := nodes[muster.ProviderName(p.Name)]
		if p.Type != api.ProviderLocal || n == 0 {
			continue
		}
		dir := filepath.Join(s.cfg.DataDir, p.Name)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the backup knows %d instances of provider %s, and %s, where they are kept, does not exist: restore into the data directory that they were made from, after moving its log/ away; if they are gone for good, make that directory, empty, and start again", n, p.Name, dir)
		}
	}
	return nil
}
