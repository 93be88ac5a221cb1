package clusterconfig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/state"
)

// State is what is read: the newest snapshot and the feed of changes.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config of a Keeper. All but the logger are needed.
type Config struct {
	State State
	// File is this server's file as it was at the start, with defaults.
	File *api.ServerConfig
	// Server returns the id of this server. It is asked when something is proposed.
	Server func() string
	// Alone reports whether the cluster has no other server now, Leads whether this one leads.
	Alone, Leads func() bool
	Logger       *slog.Logger
}

// Keeper knows which configuration a server runs with. Its methods may be called from any goroutine.
type Keeper struct {
	cfg   Config
	log   *slog.Logger
	files atomic.Pointer[files]
	// wake has something when Watch should look.
	wake chan struct{}
	// seen is what was computed last, for the file and the configuration in force of that time.
	seen atomic.Pointer[view]
	// settled is set while this server leads and may propose.
	settled atomic.Bool
}

// files is what a server knows of its file. It is replaced whole and never changed.
type files struct {
	// read is the file that was read last, with what needs a restart as it was at the start.
	read *api.ServerConfig
	// own has this server's own part: that of the file, and for providers and pools that are in force
	// and no longer in the file, that of an earlier one. A file is read before it is in force, and what was
	// removed from it is still needed until then.
	own *api.ServerConfig
}

// next is what is known once another file was read, while running is what the server runs with.
func (f *files) next(read, running *api.ServerConfig) *files {
	own := *read
	own.Providers = slices.Clone(read.Providers)
	for i := range running.Providers {
		if p := &running.Providers[i]; read.Provider(p.Name).Name == "" {
			own.Providers = append(own.Providers, *p)
		}
	}
	own.Pools = slices.Clone(read.Pools)
	for i := range running.Pools {
		if p := &running.Pools[i]; read.Pool(p.Name).Name == "" {
			own.Pools = append(own.Pools, *p)
		}
	}
	return &files{read: read, own: &own}
}

// view is what follows from a file and a configuration in force. It never changes.
type view struct {
	files   *files
	inForce *state.AppliedConfig // nil: none
	running *api.ServerConfig
	// differs is what would change if the file came into force.
	differs []config.Change
	// unknown is a field of the configuration in force that this version does not know; "": none.
	unknown string
	err     error
}

// New makes a keeper.
func New(c Config) (*Keeper, error) {
	if c.State == nil || c.File == nil || c.Server == nil || c.Alone == nil || c.Leads == nil {
		return nil, errors.New("cluster configuration: state, file, server, alone and leads are needed")
	}
	k := &Keeper{cfg: c, wake: make(chan struct{}, 1), log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler))}
	k.files.Store(&files{read: c.File, own: c.File})
	return k, nil
}

// Running is the configuration to run with. Fields that need a restart have their value of the start.
// Nobody may change what it points to.
func (k *Keeper) Running() *api.ServerConfig { return k.view().running }

// view is what is true now. Two that compute it at once compute the same.
func (k *Keeper) view() *view {
	file, inForce := k.files.Load(), state.ConfigInForce(k.cfg.State.Latest())
	if v := k.seen.Load(); v != nil && v.files == file && v.inForce == inForce {
		return v
	}
	v := newView(file, inForce)
	k.seen.Store(v)
	return v
}

func newView(file *files, inForce *state.AppliedConfig) *view {
	v := &view{files: file, inForce: inForce, running: file.read}
	if inForce == nil {
		return v
	}
	part, unknown, err := config.Parse(inForce.Content)
	if err != nil {
		v.err = fmt.Errorf("version %d of the cluster's configuration, which server %s has applied, cannot be read by this version of muster: %w", inForce.Version, inForce.Server, err)
		return v
	}
	v.running, v.unknown = config.Join(part, file.own), unknown
	v.differs, v.err = config.Differences(part, file.read)
	return v
}

// Differs reports whether something would change if this server's file came into force.
func (k *Keeper) Differs() bool { return len(k.view().differs) > 0 }

// Show is the configuration in force, and how this server's file differs from it.
func (k *Keeper) Show() (*api.AppliedConfig, error) {
	v := k.view()
	if v.err != nil {
		return nil, v.err
	}
	if v.inForce == nil {
		return nil, muster.Faultf(muster.FaultNotFound, "no configuration is in force yet; the server that leads applies its file once every server runs a version that keeps it in the log")
	}
	part, err := config.Content(v.running)
	if err != nil {
		return nil, err
	}
	in := v.inForce
	return &api.AppliedConfig{
		Version: in.Version, Applied: in.Applied.Std(), Index: in.Index, Server: in.Server, How: in.How, Config: json.RawMessage(part),
		Self: k.cfg.Server(), Differs: v.differs, Unknown: v.unknown,
	}, nil
}

// Settle is for a leader before it starts its loops, once the format of the log is raised. It
// applies this server's file where that needs no word of an operator (see the package). The error
// ends the leadership: there is no configuration then by which to lead.
//
// A crash at any point is harmless: the next leader finds either configuration in force, and settles
// again.
func (k *Keeper) Settle(ctx context.Context, p state.Proposer) error {
	// From here on a reload proposes by itself. It stores its file before it looks at this, and the
	// file is read below: so a reload that comes meanwhile is applied by one of both.
	k.settled.Store(true)
	v := k.view()
	if v.err != nil {
		return v.err
	}
	how := k.mayApply(v)
	if how == "" {
		k.warnOfDifferences(v)
		return nil
	}
	if _, err := k.commit(ctx, p, v.files.read, &state.ConfigApplied{Server: k.cfg.Server(), How: how}); err != nil {
		return fmt.Errorf("apply the configuration: %w", err)
	}
	return nil
}

// Resign is for the end of a leadership: a reload proposes nothing from here on.
func (k *Keeper) Resign() { k.settled.Store(false) }

// mayApply says how a new leader may apply its file by itself; "" if it may not, or need not.
func (k *Keeper) mayApply(v *view) string {
	snap := k.cfg.State.Latest()
	meta := snap.Meta()
	switch {
	case meta.LogFormat() < state.FormatConfig:
		// An older server of the cluster could not read it. Each leader runs with its file, as these do.
		return ""
	case v.inForce == nil:
		return state.ConfigFirst
	case !k.cfg.Alone():
		return ""
	case len(v.differs) == 0:
		if v.inForce.Over == "" {
			return ""
		}
		// The file is right again. What it was no longer has to be passed over.
		return state.ConfigStart
	}
	// An operator has put something else in force than this file says. An edit of the file is a later
	// word than that; a restart is none.
	if content, err := config.Content(v.files.read); err == nil && config.Digest(content) == v.inForce.Over {
		return ""
	}
	return state.ConfigStart
}

// commit puts the cluster's part of a configuration in force. What differs in nothing but its text
// from what is in force is not written, so that an upgrade with other defaults makes no version.
func (k *Keeper) commit(ctx context.Context, p state.Proposer, c *api.ServerConfig, f *state.ConfigApplied) (*state.AppliedConfig, error) {
	var err error
	if f.Content, err = config.Content(c); err != nil {
		return nil, err
	}
	file := k.files.Load().read
	differs, err := config.Differences(c, file)
	if err != nil {
		return nil, err
	}
	if len(differs) > 0 {
		own, err := config.Content(file)
		if err != nil {
			return nil, err
		}
		f.Over = config.Digest(own)
	}
	if v := k.view(); v.inForce != nil && v.err == nil {
		if same, err := config.Differences(v.running, c); err == nil && len(same) == 0 {
			f.Content = v.inForce.Content
		}
	}
	_, in, err := state.Propose(ctx, p, f)
	return in, err
}

// warnOfDifferences logs where this server's file differs from what is in force.
func (k *Keeper) warnOfDifferences(v *view) {
	if v.inForce == nil || len(v.differs) == 0 {
		return
	}
	k.log.Warn("configuration: this server's file differs from the configuration in force, and is not applied; to apply it, reload on the server that leads, or use muster config apply; to see it, muster config diff",
		"version", v.inForce.Version, "applied", v.inForce.Applied.Std(), "by", v.inForce.Server, "fields", len(v.differs))
	for _, c := range v.differs {
		k.log.Warn("configuration: the file differs", "field", c.Field, "in_force", c.From, "file", c.To)
	}
}
