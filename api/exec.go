package api

import "time"

// Executions are commands run in the sandbox of a running allocation, beside
// its own command. There are two ways to start one.
//
// POST /v1/allocations/{id}/exec takes an ExecRequest, runs the command to its
// end and answers with an ExecResult; with detach it answers 202 and an
// ExecStarted at once.
//
// GET /v1/allocations/{id}/exec is a WebSocket. The client's first message is
// text: an ExecRequest, or an ExecAttach for an execution that was started
// detached. From then on:
//
//	client → server   binary: bytes for the command's stdin
//	                  text:   an ExecControl (close-stdin, resize, signal)
//	server → client   binary: one byte, ExecStdout or ExecStderr, then bytes of that stream
//	                  text:   an ExecEvent: first started, last ended or error
//
// The first message may come with the request instead, as the header ExecFirst: that saves a way to the server
// and back.
//
// After the last message the server closes the connection with code 1000. A
// client that leaves before ends the command, unless it was started detached.
// A client that does not read slows the command down, and nothing else.
// Binary messages of a client have at most ExecMaxMessage bytes, text ones ExecMaxText.
//
// A terminal (tty) has one stream, stdout; the end of its input is a key (^D), which close-stdin presses.

// First bytes of the binary messages of a server.
const (
	ExecStdout byte = 1
	ExecStderr byte = 2
)

// ExecFirst is a header of the request for a WebSocket of an execution: the client's first message, as JSON in base64 of
// the kind for URLs, without padding. A server that has taken it says so with ExecFirst: ExecFirstTaken in its answer, also if that
// is a problem: then the command may have been started. Without that header in the answer nothing was started, and in an open WebSocket the
// first message is to be sent.
const (
	ExecFirst      = "Muster-Exec-First"
	ExecFirstTaken = "taken"
	// ExecMaxFirst bounds the header's value; what is longer goes as a message.
	ExecMaxFirst = 4 << 10
)

// Bounds of an execution's messages.
const (
	// ExecMaxMessage bounds a binary message of a client.
	ExecMaxMessage = 1 << 20
	// ExecMaxText bounds a text message, and with it a command with its arguments and environment.
	ExecMaxText = 2 << 20
	// ExecMaxOutput is how much of each stream the answer of POST …/exec carries.
	ExecMaxOutput = 1 << 20
)

// ExecRequest is a command to run in a sandbox.
type ExecRequest struct {
	Command   []string          `json:"command" doc:"The program and its arguments, passed as they are: no shell in between."`
	Env       map[string]string `json:"env,omitempty" doc:"Added to the environment of the allocation's own command."`
	Workdir   string            `json:"workdir,omitempty" doc:"Its directory: an absolute path, or one relative to the allocation's. Default: the allocation's own."`
	User      string            `json:"user,omitempty" doc:"In a container: NAME, UID, NAME:GROUP or UID:GID. Default: the allocation's own."`
	TTY       bool              `json:"tty,omitempty" doc:"Run it in a terminal. All its output is then stdout."`
	Rows      int               `json:"rows,omitempty" minimum:"0" maximum:"65535" doc:"Of the terminal. Default: 24."`
	Cols      int               `json:"cols,omitempty" minimum:"0" maximum:"65535" doc:"Of the terminal. Default: 80."`
	Stdin     bool              `json:"stdin,omitempty" doc:"It gets stdin through the WebSocket. Otherwise stdin is empty."`
	Timeout   Duration          `json:"timeout,omitempty" doc:"Time limit: then TERM, and KILL after kill_grace. Default: no limit."`
	KillGrace Duration          `json:"kill_grace,omitempty" doc:"Time between TERM and KILL. Default: 5s; 1ms kills at once."`
	Detach    bool              `json:"detach,omitempty" doc:"It goes on without a client. Its output is spooled on the node, up to 64 MiB a stream; beyond that it waits for a client that attaches."`
	ID        string            `json:"id,omitempty" doc:"An id of your choice, 1 to 64 letters, digits and . _ -, not used before in this sandbox. Default: generated."`

	Input       string `json:"input,omitempty" doc:"Only of POST: its input, as text."`
	InputBase64 []byte `json:"input_base64,omitempty" doc:"Only of POST: its input, in base64."`
}

// ExecAttach joins a detached execution: its output from these offsets on.
type ExecAttach struct {
	Attach string `json:"attach" doc:"Id of the execution."`
	Stdout int64  `json:"stdout,omitempty" doc:"Offset from which stdout is sent; earlier bytes may be dropped from the spool. -1: the oldest byte that is kept."`
	Stderr int64  `json:"stderr,omitempty" doc:"Offset from which stderr is sent, likewise."`
	Stdin  bool   `json:"stdin,omitempty" doc:"Send stdin to it, too, if it has one."`
}

// Types of ExecControl.
const (
	ExecCloseStdin = "close-stdin"
	ExecResize     = "resize"
	ExecSignal     = "signal"
)

// ExecControl is a text message of the client after its first.
type ExecControl struct {
	Type   string `json:"type"`
	Rows   int    `json:"rows,omitempty"`
	Cols   int    `json:"cols,omitempty"`
	Signal string `json:"signal,omitempty"` // as INT
}

// Types of ExecEvent.
const (
	ExecEventStarted = "started"
	ExecEventEnded   = "ended"
	ExecEventError   = "error"
)

// ExecEvent is a text message of the server.
type ExecEvent struct {
	Type string `json:"type"`
	// Of started. The offsets are those of the first bytes that follow, after an ExecAttach.
	ID     string `json:"id,omitempty"`
	Stdout int64  `json:"stdout,omitempty"`
	Stderr int64  `json:"stderr,omitempty"`
	// Of ended.
	*ExecEnd
	// Of error: it was not started, or what became of it is not known.
	Problem *Problem `json:"problem,omitempty"`
}

// ExecEnd is how an execution ended.
type ExecEnd struct {
	// ExitCode is 128 and the signal's number if a signal ended it.
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty" doc:"Signal that ended it, as SIGKILL."`
	TimedOut bool   `json:"timed_out,omitempty"`
	// Reason is a sentence if it did not end by itself: the sandbox's end, its client's.
	Reason string `json:"reason,omitempty"`
}

// ExecStarted is the answer of POST …/exec with detach.
type ExecStarted struct {
	ID string `json:"id"`
}

// ExecResult is the answer of POST …/exec.
type ExecResult struct {
	ID       string `json:"id"`
	ExitCode int    `json:"exit_code" doc:"128 and the signal's number if a signal ended it."`
	Signal   string `json:"signal,omitempty" doc:"Signal that ended it, as SIGKILL."`
	TimedOut bool   `json:"timed_out,omitempty"`
	Reason   string `json:"reason,omitempty" doc:"A sentence, if something else ended it."`
	// A stream is text, or base64 if it is not UTF-8.
	Stdout       string `json:"stdout" doc:"Empty if the command printed nothing, or bytes that are not UTF-8."`
	StdoutBase64 []byte `json:"stdout_base64,omitempty" doc:"Instead of stdout, if that is not UTF-8."`
	Stderr       string `json:"stderr" doc:"As stdout."`
	StderrBase64 []byte `json:"stderr_base64,omitempty" doc:"Instead of stderr, if that is not UTF-8."`
	Truncated    bool   `json:"truncated,omitempty" doc:"The stream had more than the first 1 MiB, which was dropped."`
}

// Execution is one as it is listed. Ended ones are remembered for a while.
type Execution struct {
	ID       string     `json:"id"`
	Running  bool       `json:"running"`
	Detached bool       `json:"detached,omitempty"`
	TTY      bool       `json:"tty,omitempty"`
	Started  *time.Time `json:"started,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	ExitCode *int       `json:"exit_code,omitempty" doc:"Once it has ended; 128 and the signal's number if a signal ended it."`
	Signal   string     `json:"signal,omitempty" doc:"Signal that ended it, as SIGKILL."`
	TimedOut bool       `json:"timed_out,omitempty"`
	Reason   string     `json:"reason,omitempty"`
}

// ExecutionList is the answer of GET …/executions.
type ExecutionList struct {
	Executions []Execution `json:"executions"`
}

// ExecutionSignal is the body of POST …/executions/{eid}/signal.
type ExecutionSignal struct {
	Signal string `json:"signal" doc:"Name or number of a signal, as TERM, SIGTERM or 15."`
}

// Port is a TCP port on which something inside a sandbox listens.
type Port struct {
	Port int `json:"port"`
	// Addresses that it listens on inside.
	Addresses []string `json:"addresses,omitempty"`
	// Reachable: a connection to the sandbox's own loopback gets there.
	Reachable bool `json:"reachable"`
}

// PortList is the answer of GET …/ports.
type PortList struct {
	Ports []Port `json:"ports"`
}

// PortCloseWrite is the type of the one text message on a port's WebSocket, from
// either side: no more bytes come from there.
const PortCloseWrite = "close-write"

// PortControl is a text message on a port's WebSocket.
type PortControl struct {
	Type string `json:"type"`
}

// AllocStats is what an allocation uses now, and what it asked for.
type AllocStats struct {
	At         time.Time `json:"at"`
	CPUSeconds float64   `json:"cpu_seconds" doc:"CPU time since its start."`
	CPU        float64   `json:"cpu" doc:"Reserved cores."`
	CPUMax     float64   `json:"cpu_max,omitempty" doc:"CPU limit in cores; 0: no limit."`
	Memory     int64     `json:"memory" doc:"Bytes."`
	MemoryMax  int64     `json:"memory_max" doc:"Its limit."`
	Pids       int       `json:"pids,omitempty" doc:"Processes and threads; 0: not known."`
	PidsMax    int       `json:"pids_max,omitempty" doc:"The limit in force, configured or default; 0: none, or unknown."`
	Disk       int64     `json:"disk,omitempty" doc:"Bytes written by it; 0: not known."`
	DiskMax    int64     `json:"disk_max,omitempty" doc:"As pids_max."`
}

// Codes of problems that the sandbox of an allocation brings with it.
const (
	// CodeNotRunning: the allocation has not started yet (409).
	CodeNotRunning = "not-running"
	// CodeEnded: it has ended (410).
	CodeEnded = "ended"
	// CodeNoListener: nothing listens on the port (502).
	CodeNoListener = "no-listener"
	// CodeSandbox: the connection into the sandbox broke, or what came from there makes no sense (502).
	CodeSandbox = "sandbox"
	// CodeCommandNotFound and CodeNotExecutable: the command of an execution cannot be started (422).
	CodeCommandNotFound = "command-not-found"
	CodeNotExecutable   = "not-executable"
	// CodeImageNotFound: no such image, or no access to it (404).
	CodeImageNotFound = "image-not-found"
)
