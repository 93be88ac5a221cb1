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

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Record says who has a host. It is there for as long as somebody has the host, or something is still
// to be cleared from it.
type Record struct {
	// Host is its name in the configuration.
	Host string `json:"-"`
	cloud.Instance
	// Access is as it was when the host was taken: it is cleared by that even if the configuration has
	// lost it.
	Access cloud.Access `json:"access"`
	// Owed: it was given back, and could not be reached to be cleared.
	Owed bool `json:"owed,omitempty"`
}

// Found is what was measured of a host at an address.
type Found struct {
	Address  string           `json:"address"`
	Capacity muster.Resources `json:"capacity"`
	Arch     string           `json:"arch,omitempty"`
}

// Records keep who has which host, and what was found of hosts. They are in the log, as no host can
// tell by itself, and each leader must know. Their methods may be called from any goroutine. Faults
// are those of the log: after unavailable or ambiguous a change may have been made all the same.
type Records interface {
	// Hosts returns all that there are, sorted by host.
	Hosts() ([]Record, error)
	// Take makes a host somebody's. It is a conflict if somebody has it, or if the token has another.
	Take(ctx context.Context, r Record) error
	// Tag gives an instance these tags. It is not-found if the host is another instance by now.
	Tag(ctx context.Context, host string, id muster.InstanceID, tags cloud.Tags) error
	// Release makes a host free, or owed. If it is another instance by now, it does nothing.
	Release(ctx context.Context, host string, id muster.InstanceID, owed bool) error
	// Found returns what was measured, by host. SetFound replaces it.
	Found() (map[string]Found, error)
	SetFound(ctx context.Context, all map[string]Found) error
}

// Names in the directory in which earlier versions kept the records.
const (
	recordPrefix = "host-"
	recordSuffix = ".json"
	foundName    = "found.json"
	// readSuffix is added to the name of a file whose content is in the log.
	readSuffix = ".in-log"
)

// records are all that there are, of every owner, by host.
func (p *Provider) records(ctx context.Context) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, transient(err, "hosts")
	}
	if err := p.takeOver(ctx); err != nil {
		return nil, err
	}
	return p.cfg.Records.Hosts()
}

// find is the record of an instance, of whichever owner; nil if there is none.
func find(all []Record, id muster.InstanceID) *Record {
	for i := range all {
		if all[i].ID == id && id != "" {
			return &all[i]
		}
	}
	return nil
}

// takeOver brings the records of an earlier version from its files into the log, once. As long as that
// has not succeeded nothing is known of who has which host, and every call fails.
//
// A crash in between does no harm. A record that is in the log already changes nothing; one of a host
// that was released since makes an instance without a node, which the fleet releases again.
func (p *Provider) takeOver(ctx context.Context) error {
	if err := p.taking.Take(ctx); err != nil {
		return transient(err, "hosts")
	}
	defer p.taking.Leave()
	if p.took {
		return nil
	}
	files, err := p.files()
	if err != nil {
		return err
	}
	for _, r := range files {
		err := p.cfg.Records.Take(ctx, r)
		if muster.IsKind(err, muster.FaultConflict) {
			p.log.Warn("a file and the log name different users of a host; the file is ignored", "host", r.Host, "instance", r.ID, "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	if err := p.takeOverFound(ctx); err != nil {
		return err
	}
	for _, r := range files {
		if err := p.retire(recordPrefix + r.Host + recordSuffix); err != nil {
			return err
		}
	}
	if len(files) > 0 {
		p.log.Info("the users of hosts are in the log now", "hosts", len(files), "files", p.cfg.Dir)
	}
	p.took = true
	return nil
}

// takeOverFound is takeOver of what was measured.
func (p *Provider) takeOverFound(ctx context.Context) error {
	b, err := os.ReadFile(filepath.Join(p.cfg.Dir, foundName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return transient(err, "hosts")
	}
	before := map[string]Found{}
	if json.Unmarshal(b, &before) == nil { // else it is found again
		known, err := p.cfg.Records.Found()
		if err != nil {
			return err
		}
		for name, f := range known {
			before[name] = f
		}
		if err := p.cfg.Records.SetFound(ctx, before); err != nil {
			return err
		}
	}
	return p.retire(foundName)
}

// retire renames a file whose content is in the log. It is kept for whoever wants to look.
func (p *Provider) retire(name string) error {
	from := filepath.Join(p.cfg.Dir, name)
	if err := os.Rename(from, from+readSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return transient(err, "hosts")
	}
	return nil
}

// files are the records of an earlier version.
func (p *Provider) files() ([]Record, error) {
	if p.cfg.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, transient(err, "hosts")
	}
	var out []Record
	for _, e := range entries {
		rest, is := strings.CutPrefix(e.Name(), recordPrefix)
		name, ends := strings.CutSuffix(rest, recordSuffix)
		if !is || !ends {
			continue
		}
		b, err := os.ReadFile(filepath.Join(p.cfg.Dir, e.Name()))
		r := Record{Host: name}
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil {
			// Not knowing is not absence.
			return nil, transient(err, "host %s: %s", name, filepath.Join(p.cfg.Dir, e.Name()))
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.Host, b.Host) })
	return out, nil
}

func transient(err error, format string, args ...any) *muster.Fault {
	return &muster.Fault{Kind: muster.FaultTransient, Message: fmt.Sprintf(format, args...), Err: err}
}
