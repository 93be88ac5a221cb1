package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// maxBegins is after how many agents that ended while they began it an allocation is given up: it
// may be what ends them.
const maxBegins = 3

// awaitSet waits until a set asks for an allocation that an earlier agent has left: while the agent
// was away the server may have given it to another node.
func (al *allocation) awaitSet(ctx context.Context) error {
	if !al.found {
		return nil
	}
	select {
	case <-al.wanted:
		return nil
	case <-al.stop:
	case <-ctx.Done():
	}
	return errHalted
}

// writeDown makes the allocation known to the disk, and so to the next agent.
func (al *allocation) writeDown(ctx context.Context) error {
	if al.stored {
		return nil
	}
	if gone := al.node.trash.gone(al.id); gone != nil {
		select {
		case <-gone:
		case <-al.stop:
		case <-ctx.Done():
		}
	}
	if err := al.take(ctx, al.node.files); err != nil {
		return err
	}
	err := al.dir.Create(al.spec)
	<-al.node.files
	if err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "sandbox directory: %v", err)
	}
	al.stored = true
	return nil
}

// findAllocation goes on with the allocation of a directory that an earlier agent has left; nil if
// the directory is rubbish.
func findAllocation(n *node, id muster.AllocID) *allocation {
	al := newAllocation(n, id, nil)
	was, err := al.dir.Read()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			n.log.Error("journal of an allocation", "alloc", id, "error", err)
		}
		return nil
	}
	al.stored, al.found, al.ready = true, true, was.Ready
	switch {
	case was.End != nil:
		al.report, al.ended = was.End, true
		close(al.opened)
		close(al.done)
	case was.Begun != nil:
		// What ran may run, and is reported so until the runtime has been asked. What never got so
		// far is not reported to run: the server would hand out a runner that is none.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		if ran := max(was.Ran, was.Ready); ran != 0 {
			al.report = &wire.AllocReport{ID: id, Status: muster.AllocRunning, Started: cmp.Or(was.Ran, was.Begun.At), Ready: was.Ready}
		}
	case !was.Whole:
		// A power cut tore the journal. The allocation may have begun, so it must not begin again.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
	case was.Spec != nil:
		al.spec, al.exclusive = was.Spec, was.Spec.Exclusive
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		return al
	default:
		return nil
	}
	if !al.ended {
		al.spec = was.Spec
		al.exclusive = was.Spec != nil && was.Spec.Exclusive
	}
	if al.ended && was.Begun == nil {
		return al
	}
	al.resume(was)
	return al
}

// resume takes up an allocation that may have begun: with its image and its runtime.
func (al *allocation) resume(was journal.History) {
	al.begun, al.begins = true, was.Begins
	if !was.Whole {
		al.begins = maxBegins // the torn line may have said that it ran
	}
	n := al.node
	if !al.ended && was.Begun != nil && was.Begun.Image != "" && n.images != nil {
		image, err := n.images.Hold(was.Begun.Image)
		if err != nil {
			// The mounts use the layers whether that is counted or not.
			n.log.Warn("image of a sandbox of an earlier agent", "alloc", al.id, "image", was.Begun.Image, "error", err)
			image = &contract.Image{Digest: was.Begun.Image}
		}
		al.image = image
	}
	for _, rt := range n.cfg.Runtimes {
		if al.runtime == nil || was.Begun != nil && rt.Name() == was.Begun.Runtime {
			al.runtime = rt
		}
	}
}
