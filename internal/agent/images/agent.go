package images

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Agent is a Store as an agent wants it.
type Agent struct{ *Store }

var _ contract.Images = Agent{}

// Open makes an image ready and in use.
func (a Agent) Open(ctx context.Context, ref string, by wire.Puller, tell func(contract.ImageProgress)) (*contract.Image, error) {
	return a.out(a.Store.Open(ctx, ref, by, telling(tell)))
}

// Pull is Open that asks the registry in any case.
func (a Agent) Pull(ctx context.Context, ref string, by wire.Puller, tell func(contract.ImageProgress)) (*contract.Image, error) {
	return a.out(a.Store.Pull(ctx, ref, by, telling(tell)))
}

// Hold puts an image into use for a sandbox of an earlier agent.
func (a Agent) Hold(digest string) (*contract.Image, error) { return a.out(a.Store.Hold(digest)) }

func telling(tell func(contract.ImageProgress)) func(Progress) {
	return func(p Progress) {
		tell(contract.ImageProgress{Done: p.Done, Total: p.Total, Layers: p.Layers, LayersDone: p.LayersDone})
	}
}

func (a Agent) out(im *Image, err error) (*contract.Image, error) {
	if err != nil {
		return nil, err
	}
	c := im.Config
	return &contract.Image{
		Ref: im.Ref, Digest: im.Digest, Root: a.LayersDir(), Layers: im.Short, Release: im.Release,
		Config: contract.ImageConfig{
			Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, Volumes: c.Volumes,
			User: c.User, Workdir: c.WorkingDir, StopSignal: c.StopSignal,
		},
	}, nil
}

// List tells what is here, a line for each reference.
func (a Agent) List() wire.ImageList {
	used, limit := a.Usage()
	out := wire.ImageList{UsedBytes: muster.Bytes(used), Limit: muster.Bytes(limit)}
	for _, i := range a.Store.List() {
		refs := i.Refs
		if len(refs) == 0 {
			refs = []string{""} // a tag that has moved on
		}
		for _, ref := range refs {
			out.Images = append(out.Images, wire.Image{
				Ref: ref, Digest: i.Digest, Size: muster.Bytes(i.Bytes), Layers: i.Layers, InUse: i.InUse, LastUsed: muster.At(i.Used),
			})
		}
	}
	return out
}

// Prune deletes what nothing uses.
func (a Agent) Prune(ctx context.Context, all bool) (muster.Bytes, error) {
	freed, err := a.Store.Prune(ctx, all)
	return muster.Bytes(freed), err
}

// Granted is how an agent's way to ask for what it needs, as wire.GrantNeed names it, is a Store's.
func Granted(ask func(ctx context.Context, need string) (wire.PullGrant, error)) func(context.Context, string, muster.Namespace) (source.Grant, error) {
	return func(ctx context.Context, ref string, ns muster.Namespace) (source.Grant, error) {
		g, err := ask(ctx, wire.GrantNeed(ref, ns))
		if err != nil {
			return source.Grant{}, err
		}
		out := source.Grant{Ref: g.Pull, Authorization: g.Authorization, Insecure: g.Insecure, Until: g.Until.Std(), Scope: g.Scope}
		if g.Digest != "" {
			if out.Digest, err = v1.NewHash(g.Digest); err != nil {
				return source.Grant{}, failure.Outside("the server's cache has it as %.80q, which is no digest", g.Digest)
			}
		}
		return out, nil
	}
}
