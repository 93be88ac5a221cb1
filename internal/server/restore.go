package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/musterhq/muster/internal/raftlog"
)

// Restore makes a data directory of a backup file. The server that starts on
// it begins a new epoch, so that agents obey it although they have heard newer
// words of the one that the backup was taken of.
func Restore(_ context.Context, file, dataDir string) (raftlog.BackupInfo, error) {
	f, err := os.Open(file)
	if err != nil {
		return raftlog.BackupInfo{}, err
	}
	defer func() { _ = f.Close() }()
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return raftlog.BackupInfo{}, fmt.Errorf("data directory: %w", err)
	}
	info, err := raftlog.Restore(filepath.Join(dataDir, "log"), f)
	if err != nil {
		return info, fmt.Errorf("backup %s: %w", file, err)
	}
	return info, nil
}
