// Package locate is how a client on the same host finds a server and its token.
// A server writes two small files: server.json beside its state, and, for
// clients that are told nothing, current.json in the user's configuration directory. A user may name
// servers: these are contexts, one of which is the current one.
//
// It must never show a token, nor write one that others may read. The server's
// composition writes with it; the CLI reads.
//
//	<data-dir>/server.json              {"address": "127.0.0.1:4750"}
//	<data-dir>/token                    the token, 0600
//	$XDG_CONFIG_HOME/muster/current.json  {"address": …, "data_dir": …}, 0600
//	$XDG_CONFIG_HOME/muster/contexts.json the servers that the user has named, 0600
package locate

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
)

// File names, in the data directory and in the user's configuration directory.
const (
	serverFile   = "server.json"
	tokenFile    = "token"
	claimKeyFile = "claim.key"
	currentFile  = "current.json"
)

// Server is what a running server says of itself in its data directory.
type Server struct {
	Address string `json:"address"`
}

// Current is the server that was started last by this user.
type Current struct {
	Address string `json:"address"`
	DataDir string `json:"data_dir"`
}

// WriteServer tells clients that know the data directory where its server listens.
func WriteServer(dataDir, address string) error {
	return writeJSON(filepath.Join(dataDir, serverFile), Server{Address: address})
}

// ReadServer is where the server of a data directory listens, or listened last.
func ReadServer(dataDir string) (Server, error) {
	var s Server
	err := readJSON(filepath.Join(dataDir, serverFile), &s)
	return s, err
}

// WriteCurrent tells clients that are told nothing which server this user started last.
func WriteCurrent(address, dataDir string) error {
	path, err := currentPath()
	if err != nil {
		return err
	}
	if dataDir, err = filepath.Abs(dataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeJSON(path, Current{Address: address, DataDir: dataDir})
}

// ReadCurrent is the server that this user started last.
func ReadCurrent() (Current, error) {
	var c Current
	path, err := currentPath()
	if err != nil {
		return c, err
	}
	err = readJSON(path, &c)
	return c, err
}

// RemoveCurrent takes back what WriteCurrent told, if it is still about this data
// directory: for servers that take theirs with them.
func RemoveCurrent(dataDir string) error {
	path, err := currentPath()
	if err != nil {
		return err
	}
	c, err := ReadCurrent()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if dir, err := filepath.Abs(dataDir); err != nil || dir != c.DataDir {
		return err
	}
	return os.Remove(path)
}

func currentPath() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // a relative one is to be ignored, says its specification
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("the user's configuration directory: %w", err)
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "muster", currentFile), nil
}

// minToken is the fewest characters that a token written by hand may have.
const minToken = 16

// EnsureToken is the token of a data directory; a new one of 32 random bytes is
// made if there is none. A token that others can read is refused: it may be known already.
func EnsureToken(dataDir string) (muster.Secret, error) { return ensure(dataDir, tokenFile) }

// EnsureClaimKey is the key of a data directory from which the secrets of claims are derived, made and
// kept like the token.
func EnsureClaimKey(dataDir string) (muster.Secret, error) { return ensure(dataDir, claimKeyFile) }

func ensure(dataDir, file string) (muster.Secret, error) {
	token, err := read(dataDir, file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	// A link replaces nothing: of two that make one at the same time, both get the first.
	_, err = atomicfile.CreateFrom(filepath.Join(dataDir, file), strings.NewReader(hex.EncodeToString(b[:])+"\n"))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return muster.Secret{}, err
	}
	return read(dataDir, file)
}

// ReadToken is the token of a data directory.
func ReadToken(dataDir string) (muster.Secret, error) { return read(dataDir, tokenFile) }

func read(dataDir, file string) (muster.Secret, error) {
	path := filepath.Join(dataDir, file)
	info, err := os.Stat(path)
	if err != nil {
		return muster.Secret{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return muster.Secret{}, fmt.Errorf("%s can be read by others (mode %04o); remove it for a new one, or chmod 600 it", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return muster.Secret{}, err
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minToken || len(token) > 4096 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return muster.Secret{}, fmt.Errorf("%s holds no token: %d or more visible characters are wanted; remove it for a new one", path, minToken)
	}
	return muster.NewSecret(token), nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = atomicfile.WriteFrom(path, bytes.NewReader(append(b, '\n')))
	return err
}
