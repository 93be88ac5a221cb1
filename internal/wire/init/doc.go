// Package initwire is what an agent and the muster-init of one sandbox say to
// each other: how init is started, the protocol on its socket, and the files
// that both write. Neighbouring versions must understand each other, because a
// sandbox outlives its agent: fields are only added, unknown ones are skipped.
//
// It must never import anything big (init is started once per sandbox, and its
// start is what bounds how many sandboxes a node can begin per second) and must
// never trust a length: every frame and every file is read up to a bound.
// internal/sandbox speaks init's side, the runtimes below internal/agent the other.
//
// # Start
//
// The agent starts muster-init with these descriptors, and nothing else:
//
//	0, 1  /dev/null
//	2     the record (below), opened for appending: if init ever crashes, its last words are there
//	3     control: a stream socket pair
//	4     the listening unix socket, not blocking
//	5     the record again
//	6     the directory of the output
//
// The agent records init's pid, then sends one Start frame on control. Init
// starts the command and answers Started or Failed; then both close control. If
// control closes before a whole Start was read, init ends without having
// started anything: an agent that dies early leaves nothing behind.
//
// # Frames
//
//	4 bytes   length of what follows, big endian, at least 1
//	1 byte    kind
//	rest      fields: key (1 byte), length (uvarint), value
//
// A number is a zigzag varint in its value; a list repeats its key. A frame is
// at most MaxFrame long, Start at most MaxStart.
//
// # Operations
//
// One connection to the socket is one operation: one request, one answer.
//
//	Status                   State
//	Stop{grace}              Done     TERM to the command's process group, KILL to everything after grace.
//	                                  A second, shorter grace counts; a longer one does not
//	Signal{signal}           Done     to the command's process group
//	Wait                     State    when the command has ended and its output is whole
//
// Each may be answered by Refused{message}. A request must be whole within
// RequestTime or the connection is closed. At most MaxConns are served at once.
//
// Executions, files and ports are operations as well, of more than one frame:
//
//	Exec{id, command, …}     ExecStarted, then Stdout and Stderr as they come and ExecEnded as the last, or Failed; meanwhile
//	                         the client sends Stdin, CloseStdin, Resize and ExecSignal
//	Attach{id, offsets}      the same, of a detached execution, from an offset of each stream on
//	ExecSignal{id, signal}   Done, or Failed
//	Execs                    ExecList as often as needed, then Done
//	FileList, FileStat       FileEntry for each, then Done
//	FileRead                 FileEntry, then Data, then Done
//	FileWrite, TarWrite      Done, after the client's Bytes and BytesEnd; nothing is seen of a file before that
//	FileDelete, FileMake     Done
//	TarRead                  Data, then Done
//	Connect{port}            Connected, then the connection is the bytes of a TCP connection to that port inside
//	Ports                    PortList
//
// A frame of bytes has no fields: all that follows its kind is them, at most MaxBytes.
// Of those operations at most 512 go on at once; more are Refused.
//
// # Executions
//
// An execution is a session and process group of its own. Attached (the default), its output is read only as
// fast as the client takes it, and so who does not read slows the program down; who closes the connection ends it:
// HUP and TERM to the group, KILL after its grace. A program that does not read its stdin stops the reading of the
// connection; ExecSignal on a connection of its own passes that.
//
// Detached, its output goes to a spool on the node, of SpoolLimit for each stream and SpoolsLimit for all, past which the program
// waits, as it does when the disk is full. Leaving means nothing. It can be attached to from an offset as often as
// wanted, while it runs and after, until MaxExecs others have ended or their output takes too much room. An offset in Attach says as well that
// all before it is safe elsewhere: that makes room. Within a connection Attach says only that.
//
// It ends when its leader does. What others still print into its streams is waited for for two seconds, then
// the rest of its group is killed. When the command of the sandbox ends, all executions do, ExecEnded says why, and who has not read
// that within two seconds does not get it.
//
// With a terminal all output is Stdout, and CloseStdin types the end-of-file character.
//
// # Files
//
// A sandbox's directory holds, beside what the agent keeps there:
//
//	sandbox                         the record: lines "sandbox" and "init" by the agent, then by init
//	                                "command", then "result" or "failed"; anything else is init's last words
//	init.sock                       the listening socket
//	stdout.OFFSET, stderr.OFFSET    what was written, in segments named by the stream offset
//	                                of their first byte; the oldest are dropped
//
// A line is a word and key=value pairs, values quoted as in Go where they are
// not plain. Lines are appended by one write each, and the first of a kind counts.
//
// These are as few files as can be: ext4 searches long for an inode that was not
// freed within the last minutes, so on a busy node each new file costs up to 0.4 ms. A runtime that
// walls a sandbox off from its node gives init a record and an output directory of its own.
package initwire
