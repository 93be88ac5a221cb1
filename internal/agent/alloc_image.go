package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// pullTimeout bounds one pull, for each allocation that waits for it.
	pullTimeout = time.Hour
	// detailPace is the least time between two details of one allocation: each is a fact in the
	// log.
	detailPace = 2 * time.Second
)

// errGaveUp is the cause of a context that ended because a pull took too long.
var errGaveUp = errors.New("gave up")

// openImage brings the image here, if the allocation has one, and holds it.
func (al *allocation) openImage(ctx context.Context) error {
	ref := al.spec.Image
	if ref == "" {
		return nil
	}
	// Users know a loaded image by its name.
	shown := strings.TrimPrefix(ref, muster.LoadedImage)
	if shown != ref {
		shown, _, _ = strings.Cut(shown, "@")
	}
	al.publish(starting)
	if al.node.images == nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "image %s: this agent has no store of images", shown)
	}
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	pull, done := context.WithTimeoutCause(ctx, pullTimeout, errGaveUp)
	defer done()
	var told time.Time
	image, err := al.node.newestImage(pull, al.spec, func(p contract.ImageProgress) {
		// Called by one at a time, as Open promises.
		if time.Since(told) >= detailPace {
			told = time.Now()
			al.publish(func(r *wire.AllocReport) {
				starting(r)
				r.Detail = "pulling image " + shown + ": " + p.String()
			})
		}
	})
	switch {
	case err == nil && ctx.Err() == nil:
		al.image = image
		return nil
	case err == nil:
		image.Free()
		return errHalted
	case ctx.Err() != nil:
		return errHalted
	}
	return contract.AsFailure(err, muster.FailureOutside, muster.ReasonImage, "image "+shown)
}

// digest of the image, or empty.
func (al *allocation) digest() string {
	if al.image == nil {
		return ""
	}
	return al.image.Digest
}

// newestImage opens the image of an allocation. Where another version of its job ran here the
// registry is asked what the tag means now, once for each version: a new version of a job means the
// image of now, and not what was known for some minutes. If the registry cannot say, what is known
// is good enough.
func (n *node) newestImage(ctx context.Context, s *wire.AllocSpec, tell func(contract.ImageProgress)) (*contract.Image, error) {
	const remembered = 4096
	n.mu.Lock()
	before, known := n.versions[s.JobUID]
	if len(n.versions) >= remembered && !known {
		clear(n.versions)
	}
	if n.versions == nil {
		n.versions = map[muster.JobUID]uint64{}
	}
	n.versions[s.JobUID] = max(s.Version, before)
	n.mu.Unlock()
	if known && s.Version > before {
		if image, err := n.images.Pull(ctx, s.Image, s.Puller(), tell); err == nil || ctx.Err() != nil {
			return image, err
		}
	}
	return n.images.Open(ctx, s.Image, s.Puller(), tell)
}
