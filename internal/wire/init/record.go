package initwire

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names in a sandbox's directory, see the package comment.
const (
	SandboxRecord = "sandbox"
	// InitRecord is where init's lines are: the same file.
	InitRecord = SandboxRecord
	Socket     = "init.sock"
)

// maxRecord bounds what is read of a record.
const maxRecord = 64 << 10

// Sandbox is the first line of a record, by the agent.
type Sandbox struct {
	Alloc   string
	Runtime string
	// Boot is the kernel's boot id: pids and start times mean nothing after a reboot.
	Boot string
	// At is when, in nanoseconds since 1970.
	At                 int64
	Memory             int64
	Timeout, KillGrace time.Duration
	// OutputLimit is how much of each stream init keeps; 0: it is not known.
	OutputLimit int64
	// Owner is the uid and gid that its root has on the node; 0: root's own, or not known.
	Owner int
	// Cgroups are the absolute directories made for it.
	Cgroups []string
}

// Line is its line in the record.
func (s *Sandbox) Line() string {
	var l line
	l.word("sandbox")
	l.string("alloc", s.Alloc)
	l.string("runtime", s.Runtime)
	l.string("boot", s.Boot)
	l.int("at", s.At)
	l.int("memory", s.Memory)
	l.int("timeout", int64(s.Timeout))
	l.int("grace", int64(s.KillGrace))
	l.int("output", s.OutputLimit)
	if s.Owner != 0 {
		l.int("owner", int64(s.Owner))
	}
	for _, c := range s.Cgroups {
		l.string("cgroup", c)
	}
	return l.end()
}

// ProcessLine is the line of a record that tells of a process: word "init" (by the agent) or "command" (by init).
func ProcessLine(word string, p Process, at int64) string {
	var l line
	l.word(word)
	l.int("pid", int64(p.Pid))
	l.string("start", strconv.FormatUint(p.Start, 10))
	l.int("at", at)
	return l.end()
}

// Line is its line in the record.
func (r *Result) Line() string {
	var l line
	l.word("result")
	l.int("exit", int64(r.Exit))
	l.int("signal", int64(r.Signal))
	l.bool("stopped", r.Stopped)
	l.bool("timedout", r.TimedOut)
	l.int("started", r.Started)
	l.int("ended", r.Ended)
	l.int("cpu", int64(r.CPU))
	l.int("memory", r.Memory)
	l.int("lost", r.Lost)
	l.bool("leftovers", r.Leftovers)
	return l.end()
}

// Line is its line in the record.
func (f *Failed) Line() string {
	var l line
	l.word("failed")
	l.string("class", clip(f.Class, 64))
	l.string("reason", clip(f.Reason, 64))
	l.string("message", clip(f.Message, 4096))
	return l.end()
}

// Record is what a record says.
type Record struct {
	// Sandbox and Init are the agent's; Init is set once init was started.
	Sandbox *Sandbox
	Init    *Process
	// The others are init's.
	Command *Started
	Result  *Result
	Failed  *Failed
	// Rest is what is no line of ours: the last words of an init that crashed.
	Rest string
}

// ReadRecord reads a record, up to a bound. An error wraps os.ErrNotExist if there is none.
func ReadRecord(path string) (*Record, error) {
	// Not by os.File: its poller makes five more calls of this, once per sandbox and more.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = syscall.Close(fd) }()
	b := make([]byte, 1024)
	n := 0
	for n < maxRecord {
		if n == len(b) {
			b = append(b, make([]byte, min(len(b)*3, maxRecord-len(b)))...)
		}
		m, err := syscall.Read(fd, b[n:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if m == 0 {
			break
		}
		n += m
	}
	return ParseRecord(string(b[:n])), nil
}

// ParseRecord reads the lines of a record. What it does not know goes to Rest; a line without its end is not believed.
func ParseRecord(text string) *Record {
	r := &Record{}
	var rest strings.Builder
	for text != "" {
		raw, after, whole := strings.Cut(text, "\n")
		text = after
		if !whole || !r.add(raw) {
			rest.WriteString(raw)
			rest.WriteByte('\n')
		}
	}
	r.Rest = strings.TrimSpace(rest.String())
	return r
}

func (r *Record) add(raw string) bool {
	word, pairs, err := parseLine(raw)
	if err != nil {
		return false
	}
	switch word {
	case "sandbox":
		if r.Sandbox == nil {
			r.Sandbox = &Sandbox{
				Alloc: pairs.string("alloc"), Runtime: pairs.string("runtime"), Boot: pairs.string("boot"),
				At: pairs.int("at"), Memory: pairs.int("memory"),
				Timeout: time.Duration(pairs.int("timeout")), KillGrace: time.Duration(pairs.int("grace")), OutputLimit: pairs.int("output"), Owner: int(pairs.int("owner")),
				Cgroups: pairs.strings("cgroup"),
			}
		}
	case "init":
		if p := pairs.process(); r.Init == nil && p.Pid > 1 {
			r.Init = &p
		}
	case "command":
		if p := pairs.process(); r.Command == nil && p.Pid > 1 {
			r.Command = &Started{Command: p, At: pairs.int("at")}
		}
	case "result":
		if r.Result == nil {
			r.Result = &Result{
				Exit: int(pairs.int("exit")), Signal: int(pairs.int("signal")),
				Stopped: pairs.int("stopped") != 0, TimedOut: pairs.int("timedout") != 0,
				Started: pairs.int("started"), Ended: pairs.int("ended"),
				CPU: time.Duration(pairs.int("cpu")), Memory: pairs.int("memory"), Lost: pairs.int("lost"),
				Leftovers: pairs.int("leftovers") != 0,
			}
		}
	case "failed":
		if r.Failed == nil {
			r.Failed = &Failed{Class: pairs.string("class"), Reason: pairs.string("reason"), Message: pairs.string("message")}
		}
	default:
		return false
	}
	return true
}

// line builds one line.
type line struct{ b []byte }

func (l *line) word(w string) { l.b = append(l.b, w...) }

func (l *line) string(key, v string) {
	l.b = append(l.b, ' ')
	l.b = append(l.b, key...)
	l.b = append(l.b, '=')
	if plain(v) {
		l.b = append(l.b, v...)
	} else {
		l.b = strconv.AppendQuoteToASCII(l.b, v)
	}
}

func (l *line) int(key string, n int64) {
	l.b = append(l.b, ' ')
	l.b = append(l.b, key...)
	l.b = append(l.b, '=')
	l.b = strconv.AppendInt(l.b, n, 10)
}

func (l *line) bool(key string, v bool) {
	if v {
		l.int(key, 1)
	}
}

func (l *line) end() string { return string(append(l.b, '\n')) }

func plain(v string) bool {
	for i := 0; i < len(v); i++ {
		if c := v[i]; c <= ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return false
		}
	}
	return true
}

type pair struct{ key, value string }

type pairs []pair

func (p pairs) string(key string) string {
	for _, kv := range p {
		if kv.key == key {
			return kv.value
		}
	}
	return ""
}

func (p pairs) strings(key string) (all []string) {
	for _, kv := range p {
		if kv.key == key {
			all = append(all, kv.value)
		}
	}
	return all
}

func (p pairs) int(key string) int64 {
	n, _ := strconv.ParseInt(p.string(key), 10, 64)
	return n
}

func (p pairs) process() Process {
	start, _ := strconv.ParseUint(p.string("start"), 10, 64)
	return Process{Pid: int(p.int("pid")), Start: start}
}

var errLine = errors.New("not a line of a record")

func parseLine(raw string) (word string, kv pairs, err error) {
	word, raw, _ = strings.Cut(raw, " ")
	for raw != "" {
		key, v, ok := strings.Cut(raw, "=")
		if !ok || key == "" || strings.ContainsAny(key, " \"") {
			return "", nil, errLine
		}
		if strings.HasPrefix(v, `"`) {
			quoted, err := strconv.QuotedPrefix(v)
			if err != nil {
				return "", nil, errLine
			}
			raw = strings.TrimPrefix(v[len(quoted):], " ")
			if v, err = strconv.Unquote(quoted); err != nil {
				return "", nil, errLine
			}
		} else {
			v, raw, _ = strings.Cut(v, " ")
		}
		kv = append(kv, pair{key, v})
	}
	return word, kv, nil
}
