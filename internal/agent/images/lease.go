package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/atomicfile"
)

// Names in a directory of caches.
const (
	leaseLock  = "lock"
	ownerName  = "owner"
	cachesName = "cache-"
	// maxCaches bounds the search: a host with more agents gives the rest caches that nobody takes
	// over.
	maxCaches = 1000
)

// Lease finds a cache below parent for an agent, for hosts where agents come and go: who comes
// takes over what one that is gone has left there, so that images are not pulled for each anew.
//
// A cache belongs to an agent as long as that agent's directory exists, whether the agent runs or
// not: its sandboxes may. The answer for one agent's directory is always the same.
func Lease(parent, agentDir string) (dir string, err error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(parent, leaseLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	// Held for a few milliseconds by each agent that starts.
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	free := ""
	for i := range maxCaches {
		cache := filepath.Join(parent, cachesName+strconv.Itoa(i))
		owner, err := ownerOf(cache)
		if err != nil {
			return "", err
		}
		if owner == agentDir {
			return cache, nil
		}
		if free == "" && !exists(owner) {
			free = cache
		}
		if owner == "" && !exists(cache) {
			break // and none after it
		}
	}
	if free == "" {
		return "", fmt.Errorf("%s: %d caches of images are in use", parent, maxCaches)
	}
	if err := os.MkdirAll(free, 0o700); err != nil {
		return "", err
	}
	return free, atomicfile.Replace(filepath.Join(free, ownerName), []byte(agentDir+"\n"))
}

// ownerOf is the directory of the agent that has a cache; empty if none has.
func ownerOf(cache string) (string, error) {
	b, err := os.ReadFile(filepath.Join(cache, ownerName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSuffix(string(b), "\n"), err
}

// exists reports whether there is something. What cannot be told is.
func exists(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
