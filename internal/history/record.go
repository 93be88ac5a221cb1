package history

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// job is what is kept of an ended job. Numbers of fields are never reused.
type job struct {
	Namespace muster.Namespace  `cbor:"1,keyasint"`
	Name      string            `cbor:"2,keyasint"`
	Version   uint64            `cbor:"3,keyasint"`
	Type      string            `cbor:"4,keyasint,omitempty"`
	Result    muster.JobOutcome `cbor:"5,keyasint"`
	Reason    string            `cbor:"6,keyasint,omitempty"`
	Submitted muster.Time       `cbor:"7,keyasint"`
	Ended     muster.Time       `cbor:"8,keyasint"`
	Count     int               `cbor:"9,keyasint"`
	Succeeded int               `cbor:"10,keyasint,omitempty"`
	Failed    int               `cbor:"11,keyasint,omitempty"`
	Stopped   int               `cbor:"12,keyasint,omitempty"`
	Image     string            `cbor:"13,keyasint,omitempty"`
	Command   []string          `cbor:"14,keyasint,omitempty"`
	// CPU and Memory are what each member asked for.
	CPU    muster.MilliCPU `cbor:"15,keyasint,omitempty"`
	Memory muster.Bytes    `cbor:"16,keyasint,omitempty"`
	// UID is the key, and not in the value.
	UID muster.JobUID `cbor:"-"`
}

// attempt is what is kept of an ended allocation.
type attempt struct {
	Version  uint64          `cbor:"1,keyasint"`
	Index    int             `cbor:"2,keyasint,omitempty"`
	Attempt  int             `cbor:"3,keyasint"`
	Node     muster.NodeID   `cbor:"4,keyasint"`
	Outcome  muster.Outcome  `cbor:"5,keyasint"`
	ExitCode int             `cbor:"6,keyasint,omitempty"`
	Signal   string          `cbor:"7,keyasint,omitempty"`
	Failure  *muster.Failure `cbor:"8,keyasint,omitempty"`
	Placed   muster.Time     `cbor:"9,keyasint"`
	Started  muster.Time     `cbor:"10,keyasint,omitempty"`
	Ended    muster.Time     `cbor:"11,keyasint"`
	// What it used and cost; 0 if the log had no such thing then.
	CPU        muster.Time  `cbor:"12,keyasint,omitempty"`
	PeakMemory muster.Bytes `cbor:"13,keyasint,omitempty"`
	Cost       int64        `cbor:"14,keyasint,omitempty"`
}

// sums are the totals of a job's attempts. Adding is commutative, so that a reader of the feed and a
// reader of the state, which see attempts in different orders, come to the same.
type sums struct {
	// Ended is the end of the job; 0 while it has not ended.
	Ended    muster.Time `cbor:"1,keyasint,omitempty"`
	Attempts int64       `cbor:"2,keyasint,omitempty"`
	// Last is the attempt that ended last, by time and key, and how it ended.
	Last     muster.Time    `cbor:"3,keyasint,omitempty"`
	LastKey  []byte         `cbor:"4,keyasint,omitempty"`
	ExitCode int            `cbor:"5,keyasint,omitempty"`
	Signal   string         `cbor:"6,keyasint,omitempty"`
	Outcome  muster.Outcome `cbor:"8,keyasint,omitempty"`
	// PeakMemory is the largest of one attempt; CPU and Cost are sums. Measured is the running time of
	// the attempts whose CPU time is known.
	PeakMemory muster.Bytes `cbor:"9,keyasint,omitempty"`
	CPU        muster.Time  `cbor:"10,keyasint,omitempty"`
	Measured   muster.Time  `cbor:"11,keyasint,omitempty"`
	Cost       int64        `cbor:"12,keyasint,omitempty"`
	// Run is how long the attempts ran together, from the start of each to its end.
	Run muster.Time `cbor:"7,keyasint,omitempty"`
}

// mostText bounds each text of a record: a job may have a command of a megabyte.
const mostText = 1000

func jobOf(j *state.Job) *job {
	s := j.Run.Spec
	return &job{
		Namespace: j.Key.Namespace, Name: j.Key.Name, UID: j.UID, Version: j.Version, Type: string(s.Type), Result: j.Result, Reason: muster.Truncate(j.Reason, mostText),
		Submitted: j.Submitted, Ended: j.Ended, Count: j.Count(), Succeeded: j.Succeeded, Failed: j.Failed, Stopped: j.Stopped,
		Image: muster.Truncate(s.Image, mostText), Command: shortCommand(s.Command),
		CPU: j.Run.Ask.CPU, Memory: j.Run.Ask.Memory,
	}
}

// shortCommand is the beginning of a command. What is left out shows as "…".
func shortCommand(command []string) (out []string) {
	left := mostText
	for _, word := range command {
		if left <= 0 || len(out) == 50 {
			return append(out, "…")
		}
		out = append(out, muster.Truncate(word, left))
		left -= len(word)
	}
	return out
}

func attemptOf(a *state.Alloc) *attempt {
	out := &attempt{
		Version: a.Version, Index: a.Index, Attempt: a.Attempt, Node: a.Node, Outcome: a.Outcome, ExitCode: a.ExitCode, Signal: a.Signal,
		Placed: a.Placed, Started: a.Started, Ended: a.Ended, CPU: a.CPU, PeakMemory: a.PeakMemory, Cost: a.Cost,
	}
	if a.Failure != nil {
		f := *a.Failure
		f.Message = muster.Truncate(f.Message, mostText)
		out.Failure = &f
	}
	return out
}

// add counts an attempt in, or out where the file had another one of this key, as after a restored
// backup. What ended last stays then.
func (s *sums) add(key []byte, a *attempt, sign int64) {
	s.Attempts += sign
	s.Cost += sign * a.Cost
	if a.Started != 0 {
		ran := muster.Time(sign) * (a.Ended - a.Started)
		s.Run += ran
		if a.CPU > 0 {
			s.Measured += ran
			s.CPU += muster.Time(sign) * a.CPU
		}
	}
	if sign > 0 {
		s.PeakMemory = max(s.PeakMemory, a.PeakMemory)
	}
	if sign > 0 && (a.Ended > s.Last || a.Ended == s.Last && string(key) > string(s.LastKey)) {
		s.Last, s.LastKey, s.Outcome, s.ExitCode, s.Signal = a.Ended, slices.Clone(key), a.Outcome, a.ExitCode, a.Signal
	}
}

func (j *job) show(s *sums) api.EndedJob {
	out := api.EndedJob{
		ID: string(j.UID), Namespace: string(j.Namespace), Name: j.Name, Version: j.Version, Type: j.Type,
		Status: string(j.Result), Reason: j.Reason, Submitted: j.Submitted.Std(), Ended: j.Ended.Std(),
		Count: j.Count, Succeeded: j.Succeeded, Failed: j.Failed, Stopped: j.Stopped,
		Attempts: s.Attempts, ExitCode: exitCode(s.Outcome, s.ExitCode), Signal: s.Signal, RunSeconds: seconds(s.Run), Image: j.Image, Command: j.Command,
		CPUSeconds: seconds(s.CPU), PeakMemory: int64(s.PeakMemory), MemoryRequested: int64(j.Memory), Cost: float64(s.Cost) / 1e6,
	}
	if s.Measured > 0 && j.CPU > 0 {
		out.CPUEfficiency = float64(s.CPU) / (float64(s.Measured) * float64(j.CPU) / 1000)
	}
	return out
}

func (a *attempt) show(uid muster.JobUID) api.EndedAttempt {
	out := api.EndedAttempt{
		ID: string(muster.NewAllocID(uid, a.Index, a.Attempt)), Index: a.Index, Attempt: a.Attempt, Version: a.Version, Node: string(a.Node),
		CPUSeconds: seconds(a.CPU), PeakMemory: int64(a.PeakMemory), Cost: float64(a.Cost) / 1e6,
		Outcome: string(a.Outcome), ExitCode: exitCode(a.Outcome, a.ExitCode), Signal: a.Signal, Placed: a.Placed.Std(), Ended: a.Ended.Std(),
	}
	if a.Failure != nil {
		out.Reason = a.Failure.Message
	}
	if a.Started != 0 {
		at := a.Started.Std()
		out.Started = &at
	}
	return out
}

// exitCode is nil where no command has exited by itself.
func exitCode(outcome muster.Outcome, code int) *int {
	if code == 0 && outcome != muster.OutcomeSucceeded {
		return nil
	}
	return &code
}

func seconds(t muster.Time) float64 { return float64(t) / 1e6 }

// Keys. Times are big-endian, so that keys sort as times do; a zero byte ends a text, which has none.

func timeKey(at muster.Time, rest string) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(rest)), uint64(at)), rest...)
}

// nameKey sorts the jobs of a name, or with an empty name those of a namespace, by their end.
func nameKey(ns muster.Namespace, name string, at []byte) []byte {
	key := make([]byte, 0, len(ns)+len(name)+2+len(at))
	key = append(append(key, ns...), 0)
	key = append(append(key, name...), 0)
	return append(key, at...)
}

func attemptKey(uid muster.JobUID, index, number int) []byte {
	key := append(append(make([]byte, 0, len(uid)+17), uid...), 0)
	key = binary.BigEndian.AppendUint64(key, uint64(index))
	return binary.BigEndian.AppendUint64(key, uint64(number))
}

func encode(v any) []byte {
	b, err := cbor.Marshal(v)
	if err != nil {
		panic(err) // no record has what CBOR cannot say
	}
	return b
}

func decode(b []byte, v any) error {
	if err := cbor.Unmarshal(b, v); err != nil {
		return &damage{fmt.Errorf("a record: %w", err)}
	}
	return nil
}
