package allocspec

import (
	"maps"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Of is the complete description that an agent needs to run an allocation. The node is its own; nil if
// the state has it no more.
func Of(a *state.Alloc, n *state.Node) *wire.AllocSpec {
	sp := a.Run.Spec
	out := &wire.AllocSpec{
		Namespace: a.Run.Key.Namespace, Job: a.Run.Key.Name, JobUID: a.UID, Version: a.Version,
		Index: a.Index, Count: sp.Count, Attempt: a.Attempt,
		Template: sp.Template, Resources: a.Run.Ask,
		Exclusive: sp.Exclusive, PidsLimit: sp.Resources.Pids, CPUMax: muster.MilliCPU(sp.Resources.CPUMax * 1000),
		TimeoutMillis: sp.Timeout.Std().Milliseconds(), KillGraceMillis: sp.KillGrace.Std().Milliseconds(),
		OutputLimit: int64(sp.OutputLimit), GiveUpInputMillis: sp.Restart.GiveUp.Std().Milliseconds(),
	}
	// What the scheduler needs, and what has another form on the wire, would only be longer.
	t := &out.Template
	t.Priority, t.Constraints, t.Pool, t.Inputs, t.Ready, t.Resources, t.KillGrace = nil, nil, "", nil, nil, api.ResourcesSpec{}, 0
	if r := sp.Ready; r != nil {
		out.Ready = &wire.Readiness{Command: r.Command, IntervalMillis: r.Interval.Std().Milliseconds(),
			TimeoutMillis: r.Timeout.Std().Milliseconds(), GiveUpMillis: r.GiveUp.Std().Milliseconds()}
	}
	nameGrants(out, a)
	if n != nil {
		out.Devices = a.Grant.Places(n.Devices())
	}
	// The agent takes memory as a limit, the scheduler as a reservation. It gets the larger one.
	out.Resources.Memory = max(out.Resources.Memory, sp.Resources.MemoryMax.Bytes())
	for _, in := range sp.Inputs {
		w := wire.Input{Path: in.Path, Digest: in.Digest, URL: in.URL}
		if in.Content != nil {
			w.Content = []byte(*in.Content)
		}
		if mode, err := strconv.ParseUint(in.Mode, 8, 32); err == nil {
			w.Mode = uint32(mode)
		}
		out.Inputs = append(out.Inputs, w)
	}
	for _, o := range sp.Outputs {
		out.Outputs = append(out.Outputs, wire.Output{Path: o.Path, Optional: o.Optional})
	}
	return out
}

// nameGrants tells the allocation by environment variables which cores, devices and ports it has.
func nameGrants(out *wire.AllocSpec, a *state.Alloc) {
	ask := a.Run.Names
	if ask == nil {
		return
	}
	out.Env, out.Cores = maps.Clone(out.Env), a.Grant.Cores
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	list := func(of []int) string {
		var b []string
		for _, n := range of {
			b = append(b, strconv.Itoa(n))
		}
		return strings.Join(b, ",")
	}
	if len(a.Grant.Cores) > 0 {
		out.Env["MUSTER_CORES"] = list(a.Grant.Cores)
	}
	if len(ask.Ports) > 0 {
		out.Env["MUSTER_PORTS"] = list(ask.Ports)
	}
	var devices []string
	var gpus []int
	// The granted devices are in the order in which the job asked for them, kind by kind.
	rest := a.Grant.Devices
	for _, d := range ask.Devices {
		n := min(max(d.Count, 1), len(rest))
		for _, i := range rest[:n] {
			devices = append(devices, d.Kind+":"+strconv.Itoa(i))
			if d.Kind == api.DefaultDeviceKind {
				gpus = append(gpus, i)
			}
		}
		rest = rest[n:]
	}
	if len(devices) > 0 {
		out.Env["MUSTER_DEVICES"] = strings.Join(devices, ",")
	}
	if len(gpus) > 0 {
		// GPU drivers and their container hooks read these.
		out.Env["NVIDIA_VISIBLE_DEVICES"], out.Env["CUDA_VISIBLE_DEVICES"] = list(gpus), list(gpus)
	}
}
