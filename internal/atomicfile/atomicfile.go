// Package atomicfile replaces files whole: a reader, and a program that starts after a crash, finds the
// old content or the new, never a part. Whatever keeps a small record on disk uses it. It knows nothing of
// what it writes, takes no locks and must never delete a file that it did not make.
package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// TempSuffix ends the name of the file that Write and Replace fill before they rename it. A kill may leave
// one behind; the next write of the same file overwrites it. Who lists a directory has to skip such names.
const TempSuffix = ".tmp"

// Write replaces the file at path, readable by its owner only. When it returns nil the content and the name
// are on disk and survive a power cut. Only one call for a path may run at a time.
func Write(path string, b []byte) error {
	if err := write(path, b, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Replace is Write without waiting for the disk: it survives a kill of the program, but not a power cut.
func Replace(path string, b []byte) error { return write(path, b, false) }

func write(path string, b []byte, sync bool) error {
	tmp := path + TempSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// WriteFrom is for content of any length, and for callers that do not know of each other: each fills a file
// of its own, and the last one wins. The content is on disk before it gets the name, but the name may be lost
// in a power cut, as not every file system that a user names can sync a directory. It returns how many bytes it read.
func WriteFrom(path string, r io.Reader) (int64, error) { return place(path, r, os.Rename) }

// CreateFrom is WriteFrom for a file that must not exist: it fails with an error that is fs.ErrExist if it does.
func CreateFrom(path string, r io.Reader) (int64, error) { return place(path, r, os.Link) }

func place(path string, r io.Reader, put func(from, to string) error) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when it was renamed
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = put(f.Name(), path)
	}
	return n, err
}

// SyncDir waits until the names in a directory are on disk: files that were made, renamed or removed in it.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
