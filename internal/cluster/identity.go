package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/raftlog"
)

// Dir is the directory of a server's identity, in its data directory.
const Dir = "peers"

// Start says how a server becomes a member. It counts only for a data directory without an identity: a
// server that is a member stays one, so that its unit file may keep the option.
type Start struct {
	// Bootstrap founds a cluster: the first of several, with the state that the data directory has.
	Bootstrap bool
	// Join is the address of a server of the cluster to join, Token lets this one in.
	Join  string
	Token muster.Secret
}

// secretFiles are the files that all servers of a cluster have in common, below the data directory. A joining
// server takes no others.
var secretFiles = []string{"token", "claim.key", "keys/login", "keys/hosts"}

// ReadSecrets reads those that a data directory has.
func ReadSecrets(dataDir string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, name := range secretFiles {
		b, err := os.ReadFile(filepath.Join(dataDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, nil
}

// writeSecrets writes what the cluster has handed over.
func writeSecrets(dataDir string, files map[string][]byte) error {
	for name, b := range files {
		if !slices.Contains(secretFiles, name) {
			return fmt.Errorf("the cluster hands over a file %q, which this version does not know; join with the version that the cluster has", name)
		}
		path := filepath.Join(dataDir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := atomicfile.Write(path, b); err != nil {
			return err
		}
	}
	return nil
}

// identify loads the identity of this server, or makes it by founding or joining a cluster.
//
// A crash on the way is harmless: the identity is saved last, and all steps before it may be repeated.
func identify(ctx context.Context, c *Config) (*peers.Identity, error) {
	dir, logDir := filepath.Join(c.DataDir, Dir), filepath.Join(c.DataDir, "log")
	identity, err := peers.Load(dir, time.Now())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		return identity, checkIdentity(c, identity, logDir)
	}
	switch {
	case c.Start.Bootstrap && c.Start.Join != "":
		return nil, errors.New("--bootstrap founds a cluster and --join joins one; use one of them")
	case c.Start.Bootstrap:
		return found(dir, logDir)
	case c.Start.Join == "":
		return nil, fmt.Errorf("data directory %s: the configuration has cluster, and the server is no member of one yet; start it once with --bootstrap to found a cluster, or with --join ADDRESS and a token of `muster servers join-token`", c.DataDir)
	}
	id, err := raftlog.SetJoining(logDir)
	if err != nil {
		return nil, err
	}
	identity, admission, err := peers.Join(ctx, c.Start.Join, c.Start.Token, peers.JoinRequest{
		Server: id, Name: c.Spec.Name, Address: c.Spec.Address, Version: c.Version, Reads: c.Reads,
	}, time.Now)
	if err != nil {
		return nil, err
	}
	if err := writeSecrets(c.DataDir, admission.Secrets); err != nil {
		return nil, err
	}
	if err := identity.Save(dir); err != nil {
		return nil, err
	}
	c.Logger.Info("joined a cluster", "server", id, "name", c.Spec.Name, "by", c.Start.Join)
	return identity, nil
}

// found makes the authority of a new cluster, and this server's identity.
func found(dir, logDir string) (*peers.Identity, error) {
	id, err := raftlog.ServerID(logDir)
	if err != nil {
		return nil, err
	}
	authority, err := peers.Found(time.Now())
	if err != nil {
		return nil, err
	}
	identity, err := peers.NewIdentity(authority, id, time.Now())
	if err != nil {
		return nil, err
	}
	return identity, identity.Save(dir)
}

// checkIdentity refuses an identity that is not that of the log: the log was lost, or restored from a backup.
func checkIdentity(c *Config, identity *peers.Identity, logDir string) error {
	if _, err := os.Stat(logDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory %s: the log of this server is missing, and it was a member of a cluster; remove it on another server (`muster servers remove %s`), move %s away and join again",
			c.DataDir, c.Spec.Name, filepath.Join(c.DataDir, Dir))
	}
	id, err := raftlog.ServerID(logDir)
	if err != nil {
		return err
	}
	if id != identity.Server {
		return fmt.Errorf("data directory %s: the log is that of server %s, and %s that of server %s, as after restoring a backup; move %s away and start once with --bootstrap",
			c.DataDir, id, filepath.Join(c.DataDir, Dir), identity.Server, filepath.Join(c.DataDir, Dir))
	}
	return nil
}
