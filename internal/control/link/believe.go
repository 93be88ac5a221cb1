package link

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A node may be in somebody else's hands. What its agent says of itself decides which jobs, with their secrets, it is sent, and
// how much of the server it takes: both are bounded here by what the server itself knows of the node.
const (
	// maxUnknown is how many allocations a node may report that the state does not have there: what ran before a backup
	// was restored, and what was purged while the node was away.
	maxUnknown = 10_000
	// reportBase and reportEach bound a report in bytes: each allocation brings two small streams, a failure in words and some numbers.
	reportBase = 4 << 20
	reportEach = 16 << 10
	// outputEach is what an output brings beside its name; jsonByte is how many bytes one of a name can become.
	outputEach = 128
	jsonByte   = 6
	// Reports are read at no more than reportRate bytes a second and one in reportTime: an agent sends at most one in 4 ms.
	reportRate = 16 << 20
	reportTime = 2 * time.Millisecond
	// reportBurst is how many reports of the largest size come without a wait.
	reportBurst = 2
	// Capacity of a host of which the configuration does not say it is bounded by what no machine has.
	mostCPU    muster.MilliCPU = 4096 * 1000
	mostMemory muster.Bytes    = 1 << 47
	mostDisk   muster.Bytes    = 1 << 50
)

// believed is what of an introduction is taken over: never more capacity than the node was bought with, no attribute that is the
// server's own word, and no isolation that the configuration of its pool cannot give. program is the pool's oci_runtime.
func believed(h wire.Hello, o *muster.Offering, program string) wire.Hello {
	h.Capacity.CPU = within(h.Capacity.CPU, o.Capacity.CPU, mostCPU)
	h.Capacity.Memory = within(h.Capacity.Memory, o.Capacity.Memory, mostMemory)
	h.Capacity.Disk = within(h.Capacity.Disk, o.Capacity.Disk, mostDisk)
	attributes := maps.Clone(h.Attributes)
	for _, own := range fit.OwnAttributes() {
		delete(attributes, own)
	}
	if i, ok := attributes[muster.AttributeIsolation]; ok && !gives(program, muster.Isolation(i)) {
		delete(attributes, muster.AttributeIsolation)
	}
	if v, ok := attributes[muster.AttributeContainers]; ok && !runs(program, v) {
		delete(attributes, muster.AttributeContainers)
		delete(attributes, muster.AttributeIsolation)
	}
	h.Attributes = attributes
	return h
}

func within[T ~int64](said, bought, most T) T {
	if bought > 0 {
		most = bought
	}
	return max(0, min(said, most))
}

// gives reports whether the isolation can be that of the pool's runtime program: one of a kind of its own is only where the operator has named it.
// A program named by its path may call itself anything.
func gives(program string, i muster.Isolation) bool {
	switch i {
	case muster.IsolationProcess, muster.IsolationContainer, muster.IsolationUserNamespace:
		return true
	}
	return filepath.IsAbs(program) || program == string(i)
}

// runs reports whether a node of the pool can have containers by the program that it tells.
func runs(program, version string) bool {
	switch {
	case program == "none":
		return false
	case program == "":
		return muster.IsRuntime(version, "crun") || muster.IsRuntime(version, "runc")
	}
	return filepath.IsAbs(program) || muster.IsRuntime(version, program)
}

// reportLimit is how many bytes the next report of the node may have.
func (n *nodeLink) reportLimit() int64 {
	row := n.l.cfg.State.Latest().Node(n.id)
	if row == nil {
		return reportBase
	}
	return reportBase + reportEach*int64(row.LiveAllocs)
}

// reportMost is reportLimit with what only some allocations bring: the names of their outputs, which may be a MiB. It looks at all
// allocations of the node.
func (n *nodeLink) reportMost() int64 {
	most := n.reportLimit()
	n.l.cfg.State.Latest().NodeAllocs(n.id, func(a *state.Alloc) bool {
		for i := range a.Run.Spec.Outputs {
			most += outputEach + jsonByte*int64(len(a.Run.Spec.Outputs[i].Path))
		}
		return true
	})
	return most
}

// paceReport waits until the node may be read again, after a report of so many bytes. A node that says more than it may is
// read more slowly: nothing of it is lost, and what it costs the server is bounded.
func (n *nodeLink) paceReport(ctx context.Context, bytes int64) {
	now := time.Now()
	burst := reportBurst * n.reportLimit() * int64(time.Second) / reportRate
	if earliest := now.Add(-time.Duration(burst)); n.reportsPaid.Before(earliest) {
		n.reportsPaid = earliest
	}
	n.reportsPaid = n.reportsPaid.Add(reportTime + time.Duration(bytes*int64(time.Second)/reportRate))
	if delay := n.reportsPaid.Sub(now); delay > 0 {
		wait.For(ctx, delay)
	}
}

// overdone says that a node has reported more than it can have, or nil. s.mu is held.
func (s *session) overdoneLocked(snap *state.Snapshot) error {
	if len(s.known) <= maxUnknown {
		return nil
	}
	unknown := 0
	for id := range s.known {
		if a := snap.Alloc(id); a == nil || a.Node != s.n.id {
			unknown++
		}
	}
	if unknown <= maxUnknown {
		return nil
	}
	return fmt.Errorf("its agent reports %d allocations that were never placed there, more than %d: the report is refused; check what runs on the machine, or destroy it", unknown, maxUnknown)
}

// due are the digests of uploads that live allocations of the node are made of.
func (n *nodeLink) due() map[string]bool {
	all := map[string]bool{}
	n.l.cfg.State.Latest().NodeAllocs(n.id, func(a *state.Alloc) bool {
		if a.Live() {
			for i := range a.Run.Spec.Inputs {
				if in := &a.Run.Spec.Inputs[i]; in.Digest != "" && in.URL == "" {
					all[in.Digest] = true
				}
			}
		}
		return true
	})
	return all
}
