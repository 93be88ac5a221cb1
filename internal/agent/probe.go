package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// commandTimeout bounds an operator's command that came without a time limit, commandLongest
	// bounds any.
	commandTimeout, commandLongest = 30 * time.Second, 10 * time.Minute
	// commandDelay is how long the agent waits for the command's output to be closed once the
	// command is dead: other processes may hold it open.
	commandDelay = time.Second
	// maxCommandOutput is how many bytes of the command's output are read.
	maxCommandOutput = 16 << 10
	// againAfter begins the line by which the command says when to probe again.
	againAfter = "again after "
)

// ask runs the operator's command. Exit code 0 says that the node is ready, any other that it is
// not. Of its output, a line "again after 30s" says when to ask next, and the last other line why
// it is not ready.
func (n *node) ask(ctx context.Context, p wire.Probe) wire.ProbeAnswer {
	if len(p.Command) == 0 {
		return wire.ProbeAnswer{Ready: true}
	}
	limit := wire.Millis(p.TimeoutMillis)
	if limit <= 0 {
		limit = commandTimeout
	}
	limit = min(limit, commandLongest)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	cmd.Dir = n.cfg.Dir
	cmd.Env = append(os.Environ(), "MUSTER_NODE="+string(n.cfg.Node))
	// The command is killed with its whole process group: a shell's children would hold its output
	// open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = commandDelay
	out := &head{most: maxCommandOutput}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
	}
	why, again := commandOutput(out.String())
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return wire.ProbeAnswer{Why: fmt.Sprintf("its ready command did not end within %s", limit), AgainMillis: again.Milliseconds()}
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return wire.ProbeAnswer{Ready: true}
	case cmd.ProcessState == nil:
		return wire.ProbeAnswer{Why: fmt.Sprintf("its ready command cannot be run: %v", err)}
	case why == "":
		why = err.Error()
	}
	return wire.ProbeAnswer{Why: "its ready command says: " + why, AgainMillis: again.Milliseconds()}
}

// commandOutput is the reason that the command gave, at most 500 bytes, and when to ask again; 0:
// it did not say.
func commandOutput(out string) (why string, again time.Duration) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, againAfter); ok {
			if d, err := time.ParseDuration(rest); err == nil && d > 0 {
				again = min(d, time.Hour)
				continue
			}
		}
		if line != "" {
			why = line
		}
	}
	return strings.ToValidUTF8(why[:min(len(why), 500)], "?"), again
}

// head keeps the first bytes that are written to it.
type head struct {
	bytes.Buffer
	most int
}

// Write keeps what fits, and claims to have taken all: the command must not fail for what it
// prints.
func (h *head) Write(p []byte) (int, error) {
	_, _ = h.Buffer.Write(p[:min(len(p), h.most-h.Len())])
	return len(p), nil
}

// noticeEnd looks at the end of an allocation. After a failure of the node, what worked before may
// not work any more: the next probe checks the runtimes again.
func (n *node) noticeEnd(end *wire.AllocReport) {
	if end.Failure == nil || end.Failure.Class != muster.FailureNode {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checked = time.Time{}
}
