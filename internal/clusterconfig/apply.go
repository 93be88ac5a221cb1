package clusterconfig

import (
	"context"
	"fmt"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// Reload takes over this server's file, which was read again and has defaults. The leader applies the
// cluster's part of it; on another server it only shows where the file differs. Its own part counts
// from here on in any case, so that a configuration that needs new credentials can be applied once
// all servers have them.
//
// may returns an error if the server cannot run with a configuration; nothing has changed then. An
// error of the log means that the cluster's part is not applied.
func (k *Keeper) Reload(ctx context.Context, p state.Proposer, next *api.ServerConfig, may func(*api.ServerConfig) error) error {
	was := k.view()
	if was.err != nil {
		return was.err
	}
	changes, err := config.Changes(was.files.read, next)
	if err != nil {
		return err
	}
	file := config.Running(k.cfg.File, *next)
	checked := was.inForce == nil || k.settled.Load()
	if checked {
		if err := may(&file); err != nil {
			return err
		}
	}
	for _, c := range changes {
		if c.Restart {
			k.log.Warn("configuration: this needs a restart", "field", c.Field, "from", c.From, "to", c.To)
		}
	}
	if len(changes) == 0 && len(was.differs) == 0 {
		k.log.Info("configuration read again: nothing has changed")
	}
	k.files.Store(was.files.next(&file, was.running))
	wait.Poke(k.wake)
	gate := k.cfg.State.Latest().Meta()
	switch {
	case !k.settled.Load():
		// It does not lead, or not yet: Settle reads the file after it has set settled.
		if !k.cfg.Leads() {
			k.warnOfDifferences(k.view())
		}
		return nil
	case gate.LogFormat() < state.FormatConfig:
		return nil
	case !checked:
		if err := may(&file); err != nil {
			return err
		}
	}
	_, err = k.commit(ctx, p, &file, &state.ConfigApplied{Server: k.cfg.Server(), How: state.ConfigReload})
	return err
}

// Apply checks a configuration and puts it in force. may returns an error if this server cannot run
// with it. Problems name fields as in a request: body.config.pools[0].max.
func (k *Keeper) Apply(ctx context.Context, p state.Proposer, r *api.ConfigApply, may func(*api.ServerConfig) error) (*api.ConfigApplied, error) {
	if meta := k.cfg.State.Latest().Meta(); meta.LogFormat() < state.FormatConfig {
		return nil, problem.New(http.StatusConflict, string(muster.FaultConflict), fmt.Sprintf("the log has format %d until every server of the cluster runs a version that reads %d, and has no configuration before; upgrade the other servers", meta.LogFormat(), state.FormatConfig))
	}
	v := k.view()
	if v.err != nil {
		return nil, v.err
	}
	if v.inForce != nil && r.IfVersion != nil && *r.IfVersion != v.inForce.Version {
		return nil, problem.New(http.StatusConflict, string(muster.FaultConflict), fmt.Sprintf("the configuration in force has version %d, not %d; look at what changed (muster config show), and apply again", v.inForce.Version, *r.IfVersion))
	}
	if own := config.Own(&r.Config); len(own) > 0 {
		return nil, ownFields(own)
	}
	next := config.Join(&r.Config, k.files.Load().own)
	if problems := config.Validate(next); len(problems) > 0 {
		return nil, wrong(problems)
	}
	if err := may(next); err != nil {
		return nil, problem.New(http.StatusConflict, string(muster.FaultConflict), err.Error())
	}
	changes, err := config.Differences(v.running, next)
	if err != nil {
		return nil, err
	}
	out := &api.ConfigApplied{Changes: changes, DryRun: r.DryRun}
	if v.inForce != nil {
		out.Version = v.inForce.Version
	}
	if r.DryRun {
		return out, nil
	}
	in, err := k.commit(ctx, p, next, &state.ConfigApplied{Server: k.cfg.Server(), How: state.ConfigRequest, IfVersion: r.IfVersion})
	if err != nil {
		return nil, err
	}
	out.Version = in.Version
	return out, nil
}

// ownFields refuses what is not the cluster's.
func ownFields(paths []string) error {
	var out []api.ProblemField
	for _, at := range paths {
		out = append(out, api.ProblemField{Location: "body.config." + at, Message: "is each server's own and stays in its file; leave it out"})
	}
	return problem.Wrong(out)
}

// wrong names the fields of a request that are wrong. What is each server's own is wrong in this
// server's file and not in the request.
func wrong(problems []api.ProblemField) error {
	for i := range problems {
		p := &problems[i]
		if config.IsOwn(p.Location) {
			p.Message += "; it is each server's own: put it into the files of all servers, under the same name, and have them read it (SIGHUP) before this is applied"
		}
		p.Location = "body.config." + p.Location
	}
	return problem.Wrong(problems)
}
