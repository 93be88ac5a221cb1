package agent

import (
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/inputs"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// check finds the runtime for a spec, or why this node cannot run it.
func (n *node) check(spec *wire.AllocSpec) (contract.Runtime, *muster.Failure) {
	bad := func(format string, args ...any) (contract.Runtime, *muster.Failure) {
		return nil, contract.Failure(muster.FailureUser, muster.ReasonSpec, format, args...)
	}
	if len(spec.Command) == 0 && spec.Image == "" {
		return bad("no command is given")
	}
	switch muster.NetworkMode(spec.Network) {
	case "", muster.NetworkNone, muster.NetworkBridge, muster.NetworkHost:
	default:
		return bad("network %q is not none, bridge or host", spec.Network)
	}
	if spec.Workdir != "" && !filepath.IsAbs(spec.Workdir) {
		return bad("work directory %q is not an absolute path", spec.Workdir)
	}
	for _, in := range spec.Inputs {
		if !filepath.IsLocal(in.Path) || filepath.Clean(in.Path) == "." {
			return bad("input %q is not a path inside the work directory", in.Path)
		}
		if in.Digest != "" {
			if _, err := inputs.ParseDigest(in.Digest); err != nil {
				return bad("input %s: %v", in.Path, err)
			}
		} else if in.URL != "" {
			return bad("input %s: a URL needs a digest", in.Path)
		}
	}
	for _, out := range spec.Outputs {
		if !filepath.IsLocal(out.Path) {
			return bad("output %q is not a path inside the work directory", out.Path)
		}
	}
	if spec.Ready != nil && len(spec.Ready.Command) == 0 {
		return bad("its readiness has no command")
	}
	return n.runtimeFor(spec)
}

// runtimeFor is the runtime that an allocation wants, or why there is none. It never gives less
// isolation than is demanded.
func (n *node) runtimeFor(spec *wire.AllocSpec) (contract.Runtime, *muster.Failure) {
	var less muster.Isolation
	var other string
	for _, rt := range n.runtimes {
		if _, images := rt.(contract.ImageRuntime); images != (spec.Image != "") {
			continue
		}
		if v, ok := rt.(contract.Versioned); spec.Runtime != "" && (!ok || !muster.IsRuntime(v.Version(), spec.Runtime)) {
			other = rt.Name()
			if ok {
				other = v.Version()
			}
			continue
		}
		has := isolationOf(rt)
		if has.Gives(muster.Isolation(spec.Isolation)) {
			return rt, nil
		}
		less = has
	}
	switch {
	case less != "" && spec.Image == "":
		return nil, contract.Failure(muster.FailureUser, muster.ReasonSpec, "isolation %q is demanded, which only an allocation with an image can have", spec.Isolation)
	case less != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "isolation %q is demanded, and node %s gives %q", spec.Isolation, n.cfg.Node, string(less))
	case other != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "runtime %q is demanded, and node %s makes containers with %s", spec.Runtime, n.cfg.Node, other)
	case spec.Image != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "image %s: no container runtime on node %s", spec.Image, n.cfg.Node)
	}
	return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "no runtime for processes works on node %s", n.cfg.Node)
}

// isolationOf is how strongly a runtime isolates its sandboxes.
func isolationOf(rt contract.Runtime) muster.Isolation {
	if i, ok := rt.(contract.Isolating); ok {
		if has := i.Isolation(); has != "" {
			return has
		}
	}
	return muster.IsolationProcess
}
