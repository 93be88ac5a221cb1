package raftlog

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/atomicfile"
)

// What this package keeps in the data directory. Other parts of the server may
// keep things beside them.
const (
	lockName     = "lock"       // flock; holds the pid of the server that runs
	formatName   = "format"     // what wrote the rest; its absence means fresh
	restoredName = "restored"   // there until the restored server has a new epoch
	joiningName  = "joining"    // there until something of the others' log has arrived
	logName      = "log"        // directory: segments of the write-ahead log
	snapshotName = "snapshots"  // directory: image files
	lostFound    = "lost+found" // a file system's own, if the directory is its root
)

// dirFormat is the version of the layout above and of everything inside it.
const dirFormat = 1

// formatFile is the content of the file format. Only Format must keep its
// meaning for ever.
type formatFile struct {
	Format int    `json:"format"`
	Server string `json:"server"` // raft's id of this server, made once
}

// directory is a locked data directory.
type directory struct {
	path   string
	lock   *os.File
	server string // raft's id
	fresh  bool   // nothing was written yet
}

// openDirectory creates the directory if need be, locks it, and reads what it is.
func openDirectory(path string) (_ *directory, err error) {
	path = filepath.Clean(path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, cause(err))
	}
	lock, err := lockDirectory(path)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, lock: lock}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	b, err := os.ReadFile(d.file(formatName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.fresh = true
		for _, name := range []string{logName, snapshotName} {
			if _, err := os.Lstat(d.file(name)); err == nil {
				return nil, fmt.Errorf("data directory %s: %w: it has %q but no %q, so something was deleted or a restore was cut short; "+
					"empty it and restore a backup", path, ErrDamaged, name, formatName)
			}
		}
		d.server = newServerID()
		return d, nil
	case err != nil:
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	var f formatFile
	if err := json.Unmarshal(b, &f); err != nil || f.Format < 1 {
		return nil, fmt.Errorf("data directory %s: %w: the file %q makes no sense", path, ErrDamaged, formatName)
	}
	if f.Format > dirFormat {
		return nil, fmt.Errorf("data directory %s: %w of muster: it has format %d and this version knows %d", path, ErrNewer, f.Format, dirFormat)
	}
	if f.Server == "" {
		return nil, fmt.Errorf("data directory %s: %w: the file %q names no server", path, ErrDamaged, formatName)
	}
	d.server = f.Server
	return d, nil
}

// lockPatience is how long a directory may be locked before it counts as in use.
const lockPatience = 2 * time.Second

// lockDirectory takes the flock that dies with its process, kill -9 or not.
func lockDirectory(path string) (*os.File, error) {
	name := filepath.Join(path, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, cause(err))
	}
	// A server that was killed while it started a program leaves the lock to that program until its
	// exec, for a moment.
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for began := time.Now(); errors.Is(err, unix.EWOULDBLOCK) && time.Since(began) < lockPatience; {
		time.Sleep(lockPatience / 40)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s: lock: %w", path, err)
		}
		b, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(string(bytes.TrimSpace(b))) // it may have the lock and not have written its pid yet
		return nil, fmt.Errorf("data directory %s: %w", path, &LockedError{pid})
	}
	// The pid is for people. If the disk is full it is missing, and that is all.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func (d *directory) file(name string) string { return filepath.Join(d.path, name) }

// begin writes the format file, before anything else is written.
func (d *directory) begin() error {
	if !d.fresh {
		return nil
	}
	b, err := json.Marshal(formatFile{Format: dirFormat, Server: d.server})
	if err != nil {
		return err
	}
	err = atomicfile.Write(d.file(formatName), append(b, '\n'))
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(d.path)) // the directory itself may be new
		if errors.Is(err, fs.ErrPermission) {
			err = nil // whoever may not look there has not made it either
		}
	}
	if err != nil {
		return &StorageError{Dir: d.path, Op: "begin the data directory", Err: err}
	}
	d.fresh = false
	return nil
}

func (d *directory) close() error { return d.lock.Close() }

// emptyBut says whether the directory has nothing but the named entries.
func emptyBut(path string, names ...string) (bool, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return false, err
	}
next:
	for _, e := range entries {
		for _, n := range names {
			if e.Name() == n {
				continue next
			}
		}
		return false, nil
	}
	return true, nil
}

// newServerID is random, because servers that join later must not share one.
func newServerID() string {
	return "s-" + strings.ToLower(rand.Text()[:16])
}
