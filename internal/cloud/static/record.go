package static

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/filelock"
)

// Names in the provider's directory.
const (
	lockName     = "lock"
	recordPrefix = "host-"
	recordSuffix = ".json"
	foundName    = "found.json"
)

// record says who has a host. The file is there for as long as somebody has it, or
// something is still to be cleared from it.
type record struct {
	cloud.Instance
	// Access is as it was when the host was taken: it is cleared by that even if the configuration has lost it.
	Access cloud.Access `json:"access"`
	// Owed: it was given back, and could not be reached to be cleared.
	Owed bool `json:"owed,omitempty"`

	host string
}

func (p *Provider) path(host string) string {
	return filepath.Join(p.cfg.Dir, recordPrefix+host+recordSuffix)
}

// records are all that there are, of every owner, by host.
func (p *Provider) records() ([]*record, error) {
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, transient(err, "hosts")
	}
	var out []*record
	for _, e := range entries {
		rest, is := strings.CutPrefix(e.Name(), recordPrefix)
		name, ends := strings.CutSuffix(rest, recordSuffix)
		if !is || !ends {
			continue
		}
		b, err := os.ReadFile(p.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r := &record{host: name}
		if err == nil {
			err = json.Unmarshal(b, r)
		}
		if err != nil {
			// Not knowing is not absence.
			return nil, transient(err, "host %s", name)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *record) int { return strings.Compare(a.host, b.host) })
	return out, nil
}

// find is the record of an instance, of whichever owner; nil if there is none.
func find(all []*record, id muster.InstanceID) *record {
	for _, r := range all {
		if r.ID == id && id != "" {
			return r
		}
	}
	return nil
}

// write replaces a record, on disk. The lock is held.
func (p *Provider) write(r *record) error {
	return writeFile(p.path(r.host), r)
}

func writeFile(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(b, '\n'))
}

// lock keeps everybody else from changing records: other calls, and another server that does not know that this one runs.
func (p *Provider) lock(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, transient(err, "hosts")
	}
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return nil, transient(err, "hosts")
	}
	f, err := os.OpenFile(filepath.Join(p.cfg.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, transient(err, "hosts")
	}
	// Nothing under the lock waits for a host: it is held for a few writes.
	if !filelock.Take(ctx, f, lockRetry) {
		_ = f.Close()
		return nil, transient(ctx.Err(), "hosts: their records are locked")
	}
	return func() { _ = f.Close() }, nil
}

const lockRetry = time.Millisecond

func transient(err error, format string, args ...any) *muster.Fault {
	return &muster.Fault{Kind: muster.FaultTransient, Message: fmt.Sprintf(format, args...), Err: err}
}
