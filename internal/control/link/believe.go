package link

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A node may be under the control of an attacker. Its agent's words decide which jobs, with their
// secrets, it gets, and how much of the server's time and memory it uses. This file limits both by
// what the server itself knows about the node.
const (
	// maxUnknown is how many allocations a node may report that the state does not have there. A
	// restored backup causes such allocations, and a job that was purged meanwhile.
	maxUnknown = 10_000
	// reportBase and reportEach bound the bytes of a report: each allocation brings two small
	// streams, a failure message and some numbers.
	reportBase = 4 << 20
	reportEach = 16 << 10
	// outputEach is what a declared output adds beside its name. jsonByte is how many bytes one
	// byte of the name can take in JSON.
	outputEach = 128
	jsonByte   = 6
	// reportRate is in bytes per second. Each report also costs reportTime. An agent that behaves
	// sends at most one report in 4 ms.
	reportRate = 16 << 20
	reportTime = 2 * time.Millisecond
	// reportBurst is how many reports of the largest size are read without a delay.
	reportBurst = 2
	// Limits for a host whose capacity is not configured. No machine has as much.
	mostCPU    muster.MilliCPU = 4096 * 1000
	mostMemory muster.Bytes    = 1 << 47
	mostDisk   muster.Bytes    = 1 << 50
)

// believed returns the part of an introduction that the server accepts. Capacity is at most what
// the node was bought with. Attributes that only the server may set are removed, and so is an
// isolation that the configuration of the pool cannot provide. program is the pool's oci_runtime.
func believed(h wire.Hello, o *muster.Offering, program string) wire.Hello {
	h.Capacity.CPU = limitReported(h.Capacity.CPU, o.Capacity.CPU, mostCPU)
	h.Capacity.Memory = limitReported(h.Capacity.Memory, o.Capacity.Memory, mostMemory)
	h.Capacity.Disk = limitReported(h.Capacity.Disk, o.Capacity.Disk, mostDisk)
	attributes := maps.Clone(h.Attributes)
	for _, own := range fit.OwnAttributes() {
		delete(attributes, own)
	}
	if i, ok := attributes[muster.AttributeIsolation]; ok && !canIsolate(program, muster.Isolation(i)) {
		delete(attributes, muster.AttributeIsolation)
	}
	if v, ok := attributes[muster.AttributeContainers]; ok && !canContain(program, v) {
		delete(attributes, muster.AttributeContainers)
		delete(attributes, muster.AttributeIsolation)
	}
	h.Attributes = attributes
	if why := muster.MissingGPUs(o.Devices, attributes); why != "" {
		h.Problems = append(slices.Clip(h.Problems), why)
	}
	return h
}

// limitReported limits a reported amount to what was bought, or to most if that is not known.
func limitReported[T ~int64](said, bought, most T) T {
	if bought > 0 {
		most = bought
	}
	return max(0, min(said, most))
}

// canIsolate reports whether a node with the pool's runtime program can have the isolation. The usual
// kinds are always possible. A special kind, such as that of a sandboxing runtime, counts only if
// the operator has named its program. A program that is configured by a path may have any kind.
func canIsolate(program string, i muster.Isolation) bool {
	switch i {
	case muster.IsolationProcess, muster.IsolationContainer, muster.IsolationUserNamespace:
		return true
	}
	return filepath.IsAbs(program) || program == string(i)
}

// canContain reports whether a node of the pool can have containers made by the program that it reports.
func canContain(program, version string) bool {
	switch {
	case program == "none":
		return false
	case program == "":
		return muster.IsRuntime(version, "crun") || muster.IsRuntime(version, "runc")
	}
	return filepath.IsAbs(program) || muster.IsRuntime(version, program)
}

// reportLimit is how many bytes the next report of the node may have, without the names of outputs.
func (n *nodeLink) reportLimit() int64 {
	row := n.l.cfg.State.Latest().Node(n.id)
	if row == nil {
		return reportBase
	}
	return reportBase + reportEach*int64(row.LiveAllocs)
}

// reportMost is reportLimit plus the names of declared outputs, which may take a MiB. It walks all
// allocations of the node, so the reader calls it only for a report above reportLimit.
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

// paceReport waits until the next report of the node may be read, after one of the given size. A
// node that sends too much is read more slowly: no report is lost, and their cost is bounded.
func (n *nodeLink) paceReport(ctx context.Context, bytes int64) {
	now := time.Now()
	// Unused time is saved only up to the burst.
	burst := reportBurst * n.reportLimit() * int64(time.Second) / reportRate
	if earliest := now.Add(-time.Duration(burst)); n.reportsPaid.Before(earliest) {
		n.reportsPaid = earliest
	}
	n.reportsPaid = n.reportsPaid.Add(reportTime + time.Duration(bytes*int64(time.Second)/reportRate))
	if delay := n.reportsPaid.Sub(now); delay > 0 {
		wait.For(ctx, delay)
	}
}

// tooManyUnknownLocked returns an error if a node reports too many unknown allocations. s.mu is held.
func (s *session) tooManyUnknownLocked(snap *state.Snapshot) error {
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

// neededUploads returns the digests of the uploads that live allocations of the node have as inputs,
// and of what the loaded images are made of that are used or pulled there.
func (n *nodeLink) neededUploads() map[string]bool {
	all := map[string]bool{}
	snap := n.l.cfg.State.Latest()
	images := state.LoadedImagesOf(snap)
	snap.NodeAllocs(n.id, func(a *state.Alloc) bool {
		if a.Live() {
			images.AddBlobs(all, a.Run.Spec.Image)
			for i := range a.Run.Spec.Inputs {
				if in := &a.Run.Spec.Inputs[i]; in.Digest != "" && in.URL == "" {
					all[in.Digest] = true
				}
			}
		}
		return true
	})
	for _, ref := range n.pulls.Asked() {
		images.AddBlobs(all, ref)
	}
	return all
}
