package initwire

import (
	"syscall"
	"time"
)

// Bounds of executions.
const (
	// MaxExecID is the longest id of an execution.
	MaxExecID = 64
	// MaxExecs is how many ended executions are remembered.
	MaxExecs = 256
	// SpoolLimit is how much of each stream of a detached execution is kept for readers before the program waits.
	SpoolLimit = 64 << 20
	// SpoolsLimit is the same of all executions of a sandbox together, ended ones included: what is
	// kept of those that ended first makes room for those that run. It is on the node's disk, outside of what the sandbox
	// asked for, and a claim's secret is enough to fill it.
	SpoolsLimit = 256 << 20
	// DefaultExecGrace is the time from TERM to KILL of an execution that names none.
	DefaultExecGrace = 5 * time.Second
)

// Reasons of Failed about executions.
const (
	// ReasonExecExists: the id is in use, or was and is still known.
	ReasonExecExists = "execution-exists"
	// ReasonNoExec: no execution of this id is known (any more).
	ReasonNoExec = "no-such-execution"
	// ReasonExecEnded: it has ended, so what was asked of it is too late.
	ReasonExecEnded = "execution-ended"
	// ReasonOutputGone: the asked for part of its output is not kept any more, or does not exist yet.
	ReasonOutputGone = "output-gone"
	// ReasonProcessLimit: the sandbox has as many processes and threads as it may have.
	ReasonProcessLimit = "process-limit"
	// ReasonEnding: the sandbox ends and starts nothing more.
	ReasonEnding = "sandbox-ending"
)

// Exec asks for an execution: one more command in the sandbox.
type Exec struct {
	// ID is 1 to MaxExecID of [a-zA-Z0-9._-]; empty: init makes one.
	ID      string
	Command []string
	// Env is added to the environment of the sandbox, and goes before it; with CleanEnv it is all.
	Env      []string
	CleanEnv bool
	// Work is the work directory; empty: the sandbox's.
	Work string
	// User as in Start; empty: the sandbox's. Only in a container.
	User string
	// TTY: a terminal of Rows and Cols is all of its streams, and what comes out is Stdout; but see OwnStderr.
	TTY        bool
	Rows, Cols int
	// Stdin: the client sends it. Else there is none (/dev/null).
	Stdin bool
	// Timeout ends it; 0 = none. KillGrace is the time from TERM to KILL; 0 = DefaultExecGrace, negative: none, KILL at once.
	Timeout, KillGrace time.Duration
	// Detached: it goes on without its client, see the package comment.
	Detached bool
	// OwnStderr: with TTY, what is printed on stderr does not go to the terminal but comes as Stderr.
	OwnStderr bool
	// HideEnv: variables of the sandbox's environment whose names begin so are left out. Empty: none are.
	HideEnv string
	// Account: USER, LOGNAME, HOME and SHELL are those of the user in the container's own files, whatever the sandbox's
	// environment has; Env goes before them. A user without an entry has none of them but HOME. Only in a container.
	Account bool
}

// Fields encodes it.
func (e *Exec) Fields() []byte {
	var b []byte
	b = appendText(b, 1, e.ID)
	for _, v := range e.Command {
		b = appendString(b, 2, v)
	}
	for _, v := range e.Env {
		b = appendString(b, 3, v)
	}
	b = appendBool(b, 4, e.CleanEnv)
	b = appendText(b, 5, e.Work)
	b = appendText(b, 6, e.User)
	b = appendBool(b, 7, e.TTY)
	b = appendInt(b, 8, int64(e.Rows))
	b = appendInt(b, 9, int64(e.Cols))
	b = appendBool(b, 10, e.Stdin)
	b = appendInt(b, 11, int64(e.Timeout))
	b = appendInt(b, 12, int64(e.KillGrace))
	b = appendBool(b, 13, e.Detached)
	b = appendBool(b, 14, e.OwnStderr)
	b = appendText(b, 15, e.HideEnv)
	return appendBool(b, 16, e.Account)
}

// ParseExec decodes it.
func ParseExec(fields []byte) (*Exec, error) {
	e := &Exec{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			e.ID = v.string()
		case 2:
			e.Command = append(e.Command, v.string())
		case 3:
			e.Env = append(e.Env, v.string())
		case 4:
			e.CleanEnv = v.bool()
		case 5:
			e.Work = v.string()
		case 6:
			e.User = v.string()
		case 7:
			e.TTY = v.bool()
		case 8:
			e.Rows = int(v.int())
		case 9:
			e.Cols = int(v.int())
		case 10:
			e.Stdin = v.bool()
		case 11:
			e.Timeout = time.Duration(v.int())
		case 12:
			e.KillGrace = time.Duration(v.int())
		case 13:
			e.Detached = v.bool()
		case 14:
			e.OwnStderr = v.bool()
		case 15:
			e.HideEnv = v.string()
		case 16:
			e.Account = v.bool()
		}
	})
	return e, err
}

// ExecID reports whether an id may be one of an execution: it becomes part of file names.
func ExecID(id string) bool {
	if len(id) == 0 || len(id) > MaxExecID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// ExecStarted answers Exec and Attach: the program runs, or did.
type ExecStarted struct {
	ID string
	// At is when, in nanoseconds since 1970.
	At int64
	// Stdout and Stderr are the offsets at which what follows begins; 0 but after Attach.
	Stdout, Stderr int64
}

// Fields encodes it.
func (s *ExecStarted) Fields() []byte {
	b := appendText(nil, 1, s.ID)
	b = appendInt(b, 2, s.At)
	b = appendInt(b, 3, s.Stdout)
	return appendInt(b, 4, s.Stderr)
}

// ParseExecStarted decodes it.
func ParseExecStarted(fields []byte) (*ExecStarted, error) {
	s := &ExecStarted{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.ID = v.string()
		case 2:
			s.At = v.int()
		case 3:
			s.Stdout = v.int()
		case 4:
			s.Stderr = v.int()
		}
	})
	return s, err
}

// ExecEnded is how an execution ended, and the last frame of its connection.
type ExecEnded struct {
	// Exit is its exit code, Signal the number of the signal that ended it, 0 if it exited.
	Exit, Signal int
	// TimedOut: its time limit came first.
	TimedOut bool
	// Started and Ended are nanoseconds since 1970.
	Started, Ended int64
	// Lost is how much output could not be written to the disk; only of a detached one.
	Lost int64
	// Why it was ended by us, a sentence; empty if it was not.
	Why string
}

func (e *ExecEnded) append(b []byte) []byte {
	b = appendInt(b, 16, int64(e.Exit))
	b = appendInt(b, 17, int64(e.Signal))
	b = appendBool(b, 18, e.TimedOut)
	b = appendInt(b, 19, e.Started)
	b = appendInt(b, 20, e.Ended)
	b = appendInt(b, 21, e.Lost)
	return appendText(b, 22, clip(e.Why, 4096))
}

func (e *ExecEnded) field(key byte, v value) {
	switch key {
	case 16:
		e.Exit = int(v.int())
	case 17:
		e.Signal = int(v.int())
	case 18:
		e.TimedOut = v.bool()
	case 19:
		e.Started = v.int()
	case 20:
		e.Ended = v.int()
	case 21:
		e.Lost = v.int()
	case 22:
		e.Why = clip(v.string(), 4096)
	}
}

// Fields encodes it.
func (e *ExecEnded) Fields() []byte { return e.append(nil) }

// ParseExecEnded decodes it.
func ParseExecEnded(fields []byte) (*ExecEnded, error) {
	e := &ExecEnded{}
	err := each(fields, e.field)
	return e, err
}

// Attach asks for the output of a detached execution from an offset of each
// stream on; FromKept: from the oldest byte that is kept. What is before a given offset was taken and need not be
// kept any more. Sent again within the connection, that is all that it says.
type Attach struct {
	ID                         string
	StdoutOffset, StderrOffset int64
	// Stdin: this client may send it.
	Stdin bool
}

// FromKept is the offset of the oldest byte that is kept.
const FromKept = -1

// Fields encodes it.
func (a *Attach) Fields() []byte {
	b := appendText(nil, 1, a.ID)
	b = appendInt(b, 2, a.StdoutOffset)
	b = appendInt(b, 3, a.StderrOffset)
	return appendBool(b, 4, a.Stdin)
}

// ParseAttach decodes it.
func ParseAttach(fields []byte) (*Attach, error) {
	a := &Attach{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			a.ID = v.string()
		case 2:
			a.StdoutOffset = v.int()
		case 3:
			a.StderrOffset = v.int()
		case 4:
			a.Stdin = v.bool()
		}
	})
	return a, err
}

// ExecSignal sends a signal to the process group of an execution.
type ExecSignal struct {
	ID     string
	Signal syscall.Signal
}

// Fields encodes it.
func (s *ExecSignal) Fields() []byte {
	return appendInt(appendText(nil, 1, s.ID), 2, int64(s.Signal))
}

// ParseExecSignal decodes it.
func ParseExecSignal(fields []byte) (*ExecSignal, error) {
	s := &ExecSignal{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.ID = v.string()
		case 2:
			s.Signal = syscall.Signal(v.int())
		}
	})
	return s, err
}

// Size is that of a terminal.
type Size struct{ Rows, Cols int }

// Fields encodes it.
func (s *Size) Fields() []byte { return appendInt(appendInt(nil, 1, int64(s.Rows)), 2, int64(s.Cols)) }

// ParseSize decodes it.
func ParseSize(fields []byte) (*Size, error) {
	s := &Size{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.Rows = int(v.int())
		case 2:
			s.Cols = int(v.int())
		}
	})
	return s, err
}

// ExecState is one execution in a list.
type ExecState struct {
	ID                     string
	Running, Detached, TTY bool
	Ended                  ExecEnded
}

// ExecList is some of the executions; as many such frames answer Execs as are needed.
type ExecList []ExecState

// Fields encodes it.
func (l ExecList) Fields() (b []byte) {
	for i := range l {
		e := &l[i]
		var one []byte
		one = appendText(one, 1, e.ID)
		one = appendBool(one, 2, e.Running)
		one = appendBool(one, 3, e.Detached)
		one = appendBool(one, 4, e.TTY)
		b = appendString(b, 1, string(e.Ended.append(one)))
	}
	return b
}

// ParseExecList decodes it.
func ParseExecList(fields []byte) (l ExecList, err error) {
	inner := each(fields, func(key byte, v value) {
		if key != 1 {
			return
		}
		var e ExecState
		bad := each(v, func(key byte, v value) {
			switch key {
			case 1:
				e.ID = v.string()
			case 2:
				e.Running = v.bool()
			case 3:
				e.Detached = v.bool()
			case 4:
				e.TTY = v.bool()
			default:
				e.Ended.field(key, v)
			}
		})
		if bad != nil {
			err = bad
			return
		}
		l = append(l, e)
	})
	if inner != nil {
		err = inner
	}
	return l, err
}

// appendText leaves out what is empty.
func appendText(b []byte, key byte, s string) []byte {
	if s == "" {
		return b
	}
	return appendString(b, key, s)
}
