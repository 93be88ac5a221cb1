package muster

import (
	"fmt"
	"strconv"
	"strings"
)

// AllocID names one attempt to run one member on one node. It is derived, not
// drawn: job uid, index and attempt, so that two plans for the same attempt
// collide instead of running it twice.
type AllocID string

// NewAllocID makes the id of an attempt; attempts count from 1.
func NewAllocID(uid JobUID, index, attempt int) AllocID {
	b := make([]byte, 0, len(uid)+16)
	b = append(b, uid...)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(attempt), 10)
	return AllocID(b)
}

// Parse splits the id into its parts.
func (id AllocID) Parse() (uid JobUID, index, attempt int, err error) {
	parts := strings.Split(string(id), "-")
	if len(parts) == 3 {
		var e1, e2 error
		index, e1 = strconv.Atoi(parts[1])
		attempt, e2 = strconv.Atoi(parts[2])
		if parts[0] != "" && e1 == nil && e2 == nil && index >= 0 && attempt >= 1 && NewAllocID(JobUID(parts[0]), index, attempt) == id {
			return JobUID(parts[0]), index, attempt, nil
		}
	}
	return "", 0, 0, fmt.Errorf("allocation id %q: want uid-index-attempt", string(id))
}

// AllocDesired is what the server wants of an allocation.
type AllocDesired string

const (
	// AllocRun: it should run until its command ends by itself.
	AllocRun AllocDesired = "run"
	// AllocStop: it should end: asked with TERM, forced after its grace time.
	// Never taken back.
	AllocStop AllocDesired = "stop"
)

// StopReason says for what an allocation is stopping. What is beside it in
// words is for users; policy reads this.
type StopReason string

// Stop reasons.
const (
	// StopJob: its job was stopped by a user, failed for good, or was replaced by another version at once.
	StopJob StopReason = "job"
	// StopPreempted: a job of a higher priority needs its room. Its member waits again, with no attempt used up.
	StopPreempted StopReason = "preempted"
	// StopUpdated: its member is to run another version.
	StopUpdated StopReason = "updated"
	// StopSurplus: its job wants fewer members, or no longer one there.
	StopSurplus StopReason = "surplus"
	// StopMoved: its node drains.
	StopMoved StopReason = "moved"
	// StopUnready: its node never said that it is ready, nor that it is not.
	StopUnready StopReason = "unready"
)

// AllocStatus is what is true of an allocation on its node, as last reported.
// That its node cannot be reached is read off the node, never stored here.
type AllocStatus string

const (
	// AllocPlaced: committed, not yet seen by the node. Set by a plan. Next is
	// starting when the agent takes it, or ended if it is stopped or its node goes first.
	AllocPlaced AllocStatus = "placed"
	// AllocStarting: the agent prepares its sandbox (inputs, image). Each step has
	// a deadline on the agent, which ends it as a failure.
	AllocStarting AllocStatus = "starting"
	// AllocRunning: its command runs, or its declared outputs are being stored after it.
	// Ends by itself, by its time limit, or by being stopped.
	AllocRunning AllocStatus = "running"
	// AllocEnded: nothing of it runs. Has an Outcome; its room is free. Final.
	AllocEnded AllocStatus = "ended"
)

// AllocMoves is the allocation's transition table.
func AllocMoves() []Move[AllocStatus] {
	return []Move[AllocStatus]{
		{"", AllocPlaced, "plan committed"},
		{AllocPlaced, AllocStarting, "the agent took it"},
		{AllocPlaced, AllocRunning, "the agent started it between two reports"},
		{AllocPlaced, AllocEnded, "ended between two reports, stopped, or its node is gone"},
		{AllocStarting, AllocRunning, "its command started"},
		{AllocStarting, AllocEnded, "could not start, stopped, or its node is gone"},
		{AllocRunning, AllocEnded, "its command ended, or its node is gone"},
	}
}

// To moves an allocation's status along AllocMoves.
func (s AllocStatus) To(noun string, next AllocStatus) (AllocStatus, error) {
	return to(noun, AllocMoves(), s, next)
}

// Outcome is how an allocation ended.
type Outcome string

// Outcomes of an allocation.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"
	OutcomeStopped   Outcome = "stopped"
	OutcomeLost      Outcome = "lost"
)

// FailureClass says whose fault a failed allocation is; each has its own count
// in the restart policy.
type FailureClass string

const (
	// FailureUser: exit code, out of memory of its own limit, time limit, image that does not exist, bad command.
	FailureUser FailureClass = "user"
	// FailureNode: runtime, mount, disk, host out of memory, node lost. Tried elsewhere.
	FailureNode FailureClass = "node"
	// FailureOutside: registry or blob store out of order, input URL. Backs off.
	FailureOutside FailureClass = "outside"
)

// Reason is a short code of why an allocation ended as it did.
type Reason string

// Reasons. Every one has a sentence beside it in Failure.Message.
const (
	ReasonExit             Reason = "exit"               // its command exited with a code other than 0
	ReasonSignal           Reason = "signal"             // its command was ended by a signal that nobody of ours sent
	ReasonOutOfMemory      Reason = "out-of-memory"      // over its own limit
	ReasonTimeout          Reason = "timeout"            // over its time limit
	ReasonCommandNotFound  Reason = "command-not-found"  // no such program
	ReasonNotExecutable    Reason = "not-executable"     // the program cannot be executed
	ReasonNoWorkdir        Reason = "no-workdir"         // its work directory does not exist
	ReasonNoRuntime        Reason = "no-runtime"         // asks for an image where no container runtime is
	ReasonImageNotFound    Reason = "image-not-found"    // no such image, or no access to it
	ReasonImage            Reason = "image"              // an image could not be had or used
	ReasonInput            Reason = "input"              // an input could not be had
	ReasonOutputMissing    Reason = "output-missing"     // a declared output was not made
	ReasonSandboxDied      Reason = "sandbox-died"       // its init is gone without a result
	ReasonUnguarded        Reason = "unguarded"          // exclusive, and no server has spoken to its node for the fence of the pool
	ReasonNotReady         Reason = "not-ready"          // its readiness command did not pass in time
	ReasonNodeGone         Reason = "node-gone"          // the node's instance is gone
	ReasonNodeFault        Reason = "node-fault"         // disk, mount, runtime or process table of the node
	ReasonNodeFull         Reason = "node-full"          // other work on the node uses the room for images
	ReasonStopped          Reason = "stopped"            // asked to stop
	ReasonOutputNotStored  Reason = "output-not-stored"  // a declared output could not be stored
	ReasonSpec             Reason = "spec"               // the agent cannot carry out what the job asks
	ReasonRefusedByVersion Reason = "refused-by-version" // the agent is too old for this allocation
)

// Failure says why an allocation did not succeed.
type Failure struct {
	Class   FailureClass `json:"class" cbor:"1,keyasint"`
	Reason  Reason       `json:"reason" cbor:"2,keyasint"`
	Message string       `json:"message" cbor:"3,keyasint,omitempty"`
}

func (f *Failure) Error() string { return f.Message }
