package initwire

import "time"

// Protocol is the version that this build speaks.
const Protocol = 1

// Manners of the socket.
const (
	// RequestTime is how long a request may take to arrive.
	RequestTime = 5 * time.Second
	// MaxConns is how many connections are served at once; more wait in the backlog.
	MaxConns = 64
)

// Descriptors that init inherits, see the package comment.
const (
	FDControl  = 3
	FDListener = 4
	FDRecord   = 5
	FDOutput   = 6
)

// Classes and reasons of Failed, the same words as in package muster, which
// is too big to be linked into init.
const (
	ClassUser = "user"
	ClassNode = "node"

	ReasonCommandNotFound = "command-not-found"
	ReasonNotExecutable   = "not-executable"
	ReasonNoWorkdir       = "no-workdir"
	ReasonSpec            = "spec"
	ReasonNodeFault       = "node-fault"
)

// Start is everything that init needs to know.
type Start struct {
	Work    string
	Command []string
	Env     []string
	// Timeout ends the command; 0 = none. KillGrace is the time from TERM to KILL.
	Timeout, KillGrace time.Duration
	// OutputLimit is how many bytes of each stream are kept.
	OutputLimit int64
	// OpenFiles is the soft limit of open files that the command gets, bounded by the hard one.
	OpenFiles int64
	// ResetOOM: the agent is shielded from the out-of-memory killer, the command must not inherit that.
	ResetOOM bool
	// ShieldOOM: init shields itself, once the command runs, so that the command goes first.
	ShieldOOM bool
	// Contained: init is process 1 of a container. It finds User in the container's own files, and
	// keeps to itself what the command shall not have.
	Contained bool
	// User that the command runs as: NAME, UID, NAME:GROUP or UID:GID, as in an image; empty: root. Only if Contained.
	User string
	// Capabilities that the command and executions may have at most, one bit each. Only if Contained.
	Capabilities uint64
	// StopSignal asks the command to end; 0: TERM.
	StopSignal int
	// Give is a directory of root's that the command's user is given, with all that is in it; empty: none. Only if Contained.
	Give string
}

// Fields encodes it.
func (s *Start) Fields() []byte {
	n := 64 + len(s.Work)
	for _, list := range [][]string{s.Command, s.Env} {
		for _, v := range list {
			n += len(v) + 4
		}
	}
	b := appendString(make([]byte, 0, n), 1, s.Work)
	for _, v := range s.Command {
		b = appendString(b, 2, v)
	}
	for _, v := range s.Env {
		b = appendString(b, 3, v)
	}
	b = appendInt(b, 4, int64(s.Timeout))
	b = appendInt(b, 5, int64(s.KillGrace))
	b = appendInt(b, 6, s.OutputLimit)
	b = appendInt(b, 7, s.OpenFiles)
	b = appendBool(b, 8, s.ResetOOM)
	b = appendBool(b, 9, s.ShieldOOM)
	b = appendBool(b, 10, s.Contained)
	if s.User != "" {
		b = appendString(b, 11, s.User)
	}
	b = appendInt(b, 12, int64(s.Capabilities))
	b = appendInt(b, 13, int64(s.StopSignal))
	return appendText(b, 14, s.Give)
}

// ParseStart decodes it.
func ParseStart(fields []byte) (*Start, error) {
	s := &Start{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.Work = v.string()
		case 2:
			s.Command = append(s.Command, v.string())
		case 3:
			s.Env = append(s.Env, v.string())
		case 4:
			s.Timeout = time.Duration(v.int())
		case 5:
			s.KillGrace = time.Duration(v.int())
		case 6:
			s.OutputLimit = v.int()
		case 7:
			s.OpenFiles = v.int()
		case 8:
			s.ResetOOM = v.bool()
		case 9:
			s.ShieldOOM = v.bool()
		case 10:
			s.Contained = v.bool()
		case 11:
			s.User = v.string()
		case 12:
			s.Capabilities = uint64(v.int())
		case 13:
			s.StopSignal = int(v.int())
		case 14:
			s.Give = v.string()
		}
	})
	return s, err
}

// Process is a process that cannot be mistaken for a later one with the same pid.
type Process struct {
	Pid int
	// Start is field 22 of /proc/PID/stat: clock ticks since boot.
	Start uint64
}

// Started answers Start: the command runs.
type Started struct {
	Command Process
	// At is when, in nanoseconds since 1970.
	At int64
}

// Fields encodes it.
func (s *Started) Fields() []byte {
	return appendInt(appendInt(appendInt(nil, 1, int64(s.Command.Pid)), 2, int64(s.Command.Start)), 3, s.At)
}

// ParseStarted decodes it.
func ParseStarted(fields []byte) (*Started, error) {
	s := &Started{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.Command.Pid = int(v.int())
		case 2:
			s.Command.Start = uint64(v.int())
		case 3:
			s.At = v.int()
		}
	})
	return s, err
}

// Failed answers Start: the command could not be started.
type Failed struct{ Class, Reason, Message string }

// UserFault is a failure that the job or the request caused. The reason is one of the Reason constants.
func UserFault(reason, message string) *Failed {
	return &Failed{Class: ClassUser, Reason: reason, Message: message}
}

// NodeFault is a failure of the node: another attempt may succeed elsewhere.
func NodeFault(message string) *Failed {
	return &Failed{Class: ClassNode, Reason: ReasonNodeFault, Message: message}
}

// Fields encodes it.
func (f *Failed) Fields() []byte {
	b := appendString(nil, 1, clip(f.Class, 64))
	b = appendString(b, 2, clip(f.Reason, 64))
	return appendString(b, 3, clip(f.Message, 4096))
}

// ParseFailed decodes it.
func ParseFailed(fields []byte) (*Failed, error) {
	f := &Failed{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			f.Class = v.string()
		case 2:
			f.Reason = v.string()
		case 3:
			f.Message = v.string()
		}
	})
	return f, err
}

// Result is how the command ended.
type Result struct {
	// Exit is its exit code, Signal the number of the signal that ended it, 0 if it exited.
	Exit, Signal int
	// Stopped: Stop came first; TimedOut: the time limit did.
	Stopped, TimedOut bool
	// Started and Ended are nanoseconds since 1970.
	Started, Ended int64
	// CPU is what the command and all its descendants used; Memory the largest
	// resident size that one of them had.
	CPU    time.Duration
	Memory int64
	// Lost is how much output could not be written to the disk.
	Lost int64
	// Leftovers: some of its processes would not die within the time for it.
	Leftovers bool
}

func (r *Result) fields(b []byte) []byte {
	b = appendInt(b, 16, int64(r.Exit))
	b = appendInt(b, 17, int64(r.Signal))
	b = appendBool(b, 18, r.Stopped)
	b = appendBool(b, 19, r.TimedOut)
	b = appendInt(b, 20, r.Started)
	b = appendInt(b, 21, r.Ended)
	b = appendInt(b, 22, int64(r.CPU))
	b = appendInt(b, 23, r.Memory)
	b = appendInt(b, 24, r.Lost)
	return appendBool(b, 25, r.Leftovers)
}

func (r *Result) field(key byte, v value) {
	switch key {
	case 16:
		r.Exit = int(v.int())
	case 17:
		r.Signal = int(v.int())
	case 18:
		r.Stopped = v.bool()
	case 19:
		r.TimedOut = v.bool()
	case 20:
		r.Started = v.int()
	case 21:
		r.Ended = v.int()
	case 22:
		r.CPU = time.Duration(v.int())
	case 23:
		r.Memory = v.int()
	case 24:
		r.Lost = v.int()
	case 25:
		r.Leftovers = v.bool()
	}
}

// State answers Status and Wait.
type State struct {
	Protocol int
	Running  bool
	Command  Process
	// Result is filled as far as it is known; all of it once Running is false.
	Result Result
}

// Fields encodes it.
func (s *State) Fields() []byte {
	b := appendInt(nil, 1, int64(s.Protocol))
	b = appendBool(b, 2, s.Running)
	b = appendInt(b, 3, int64(s.Command.Pid))
	b = appendInt(b, 4, int64(s.Command.Start))
	return s.Result.fields(b)
}

// ParseState decodes it.
func ParseState(fields []byte) (*State, error) {
	s := &State{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.Protocol = int(v.int())
		case 2:
			s.Running = v.bool()
		case 3:
			s.Command.Pid = int(v.int())
		case 4:
			s.Command.Start = uint64(v.int())
		default:
			s.Result.field(key, v)
		}
	})
	return s, err
}

// NumberFields encodes the one number of Stop (grace in nanoseconds) and Signal.
func NumberFields(n int64) []byte { return appendInt(nil, 1, n) }

// ParseNumber decodes it.
func ParseNumber(fields []byte) (n int64, err error) {
	err = each(fields, func(key byte, v value) {
		if key == 1 {
			n = v.int()
		}
	})
	return n, err
}

// TextFields encodes the message of Refused.
func TextFields(s string) []byte { return appendString(nil, 1, clip(s, 4096)) }

// ParseText decodes it.
func ParseText(fields []byte) (s string, err error) {
	err = each(fields, func(key byte, v value) {
		if key == 1 {
			s = v.string()
		}
	})
	return s, err
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
