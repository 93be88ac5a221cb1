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
	// commandTimeout ends an operator's command that came without a time, commandLongest any.
	commandTimeout, commandLongest = 30 * time.Second, 10 * time.Minute
	// commandDelay is how long its descriptors are waited for once it is dead: others may hold
	// them.
	commandDelay = time.Second
	// maxCommandOutput is how much of what it says is looked at.
	maxCommandOutput = 16 << 10
	// againAfter begins the line by which it says when it wants to be asked again.
	againAfter = "again after "
)

// ask runs the operator's command: exit code 0 says that the node is ready. Any other says that it
// is not; a line "again after 30s" when to ask next, the last other line why.
func (n *node) ask(ctx context.Context, p wire.Probe) wire.ProbeAnswer {
	if len(p.Command) == 0 {
		return wire.ProbeAnswer{Ready: true}
	}
	limit := millis(p.TimeoutMillis)
	if limit <= 0 {
		limit = commandTimeout
	}
	limit = min(limit, commandLongest)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	cmd.Dir = n.cfg.Dir
	cmd.Env = append(os.Environ(), "MUSTER_NODE="+string(n.cfg.Node))
	// All of its group goes with it: a shell's children would hold its descriptors.
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

// commandOutput reads what the command said.
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

func (h *head) Write(p []byte) (int, error) {
	_, _ = h.Buffer.Write(p[:min(len(p), h.most-h.Len())])
	return len(p), nil
}

// noticeEnd notes an end that was the node's doing: what worked before may not any more.
func (n *node) noticeEnd(end *wire.AllocReport) {
	if end.Failure == nil || end.Failure.Class != muster.FailureNode {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checked = time.Time{}
}
