package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/musterhq/muster/internal/agent/images/unpack"
)

// recordVersion is of all records. Those of another version are rubbish: images can be pulled
// again.
const recordVersion = 1

// layerRecord is what is known of an unpacked layer.
type layerRecord struct {
	Version int
	Diff    string // diff id
	Shift   int
	Tree    unpack.TreeSum
	// Repo and Scope are the right by which it was fetched. Whole images have more.
	Repo  string `json:",omitempty"`
	Scope string `json:",omitempty"`
	// Bad: it is not what it was. It stays only for those that use it already.
	Bad bool `json:",omitempty"`
}

// imageRecord is an image that was here whole when it was written.
type imageRecord struct {
	Version  int
	Digest   string // what its reference was resolved to: an index, or the manifest itself
	Manifest string
	Config   string
	Shift    int
	Layers   []string // diff ids to mount, bottom first, each once
	// Unsaid: the manifest was made here, its layers' digests are their diff ids.
	Unsaid bool `json:",omitempty"`
	// Pinned: it is kept although nothing uses it.
	Pinned bool `json:",omitempty"`
	// Rights are who may use it. None: it is of an agent that did not tell namespaces apart, and was
	// pulled with credentials that all had.
	Rights []right `json:",omitempty"`
}

// refRecord is what a reference meant when it was asked last.
type refRecord struct {
	Version int
	Ref     string // canonical
	Digest  string
	At      time.Time
	Stamp   string `json:",omitempty"` // of the file it was read from
}

// writeRecord writes a record whole or not at all, with a sum over itself: a power cut may leave a
// file of the right name with anything in it.
func (s *Store) writeRecord(path string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	return s.writeFile(path, append(hex.AppendEncode(nil, sum[:]), append([]byte{'\n'}, b...)...))
}

func (s *Store) writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(s.path(tmpDir), "file-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

var errRecord = errors.New("the record is damaged or of another version")

func readRecord(path string, record any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, body, _ := bytes.Cut(b, []byte{'\n'})
	sum := sha256.Sum256(body)
	if string(head) != hex.EncodeToString(sum[:]) || json.Unmarshal(body, record) != nil {
		return errRecord
	}
	return nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}
