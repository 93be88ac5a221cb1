package linktest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A command is a script: words, with ";" between steps.
//
//	true, false, exit N      end
//	sleep D                  wait
//	hang                     wait until stopped
//	print TEXT, warn TEXT    a line to stdout, to stderr
//	flood N                  N bytes to stdout
//	lose N                   N bytes of output that the disk does not take
//	make PATH TEXT           a file that an output may name
//	fill PATH N              the same, of N bytes
//	cat PATH                 an input to stdout
//	ready                    what the readiness command finds from now on
//	break                    end for a reason of the node's
//
// Anything else is a command that is not found.

// sandbox is one allocation on a node. All fields are guarded by Node.mu.
type sandbox struct {
	n              *Node
	spec           *wire.AllocSpec
	report         wire.AllocReport
	asked, killed  chan struct{} // asked to stop; killed without a word
	stdout, stderr stream
	made           map[string]string
	unguarded      bool
	files          [][]byte
	grown          chan struct{} // closed and replaced with each change
}

type stream struct {
	start int64
	data  []byte
}

func newSandbox(n *Node, id muster.AllocID, spec *wire.AllocSpec) *sandbox {
	return &sandbox{
		n: n, spec: spec, report: wire.AllocReport{ID: id},
		asked: make(chan struct{}), killed: make(chan struct{}), grown: make(chan struct{}), made: map[string]string{},
	}
}

func (b *sandbox) ask()  { closeOnce(b.asked) }
func (b *sandbox) kill() { closeOnce(b.killed) }

// closeOnce closes a channel under Node.mu.
func closeOnce(c chan struct{}) {
	if !wait.Closed(c) {
		close(c)
	}
}

func (b *sandbox) growLocked() {
	close(b.grown)
	b.grown = make(chan struct{})
}

// change changes the report and tells the readers; false if it was killed.
func (b *sandbox) change(fn func(r *wire.AllocReport)) bool {
	b.n.mu.Lock()
	defer b.n.mu.Unlock()
	select {
	case <-b.killed:
		return false
	default:
	}
	fn(&b.report)
	b.growLocked()
	b.n.changedLocked(b.report.ID)
	return true
}

// wait waits; false if the sandbox is to end first.
func (b *sandbox) wait(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	case <-b.asked:
	case <-b.killed:
	}
	return false
}

// pause takes the time of a step; false if it was killed meanwhile.
func (b *sandbox) pause(step string) bool {
	if b.n.cfg.Delay == nil {
		return true
	}
	t := time.NewTimer(b.n.cfg.Delay(b.report.ID, step))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.killed:
		return false
	}
}

// run is the sandbox's life.
func (b *sandbox) run() {
	if !b.pause("start") || !b.change(func(r *wire.AllocReport) { r.Status = muster.AllocStarting }) {
		return
	}
	if !b.inputs() {
		b.end(0, nil, true)
		return
	}
	if !b.guard() {
		b.end(0, nil, true)
		return
	}
	if !b.pause("run") {
		return
	}
	if !b.change(func(r *wire.AllocReport) {
		b.n.ran[r.ID]++
		r.Status, r.Started = muster.AllocRunning, now()
	}) {
		return
	}
	var step []string
	for _, word := range append(slices.Clone(b.spec.Command), ";") {
		if word != ";" {
			step = append(step, word)
			continue
		}
		if len(step) > 0 {
			code, failure, ended := b.step(step)
			if ended {
				b.end(code, failure, false)
				return
			}
		}
		step = nil
	}
	b.end(0, nil, false)
}

// inputs waits until every input is there; false if it was stopped before.
func (b *sandbox) inputs() bool {
	for {
		b.n.mu.Lock()
		grown, missing := b.grown, b.missingLocked()
		if len(missing) > 0 {
			b.n.changedLocked(b.report.ID)
		}
		b.n.mu.Unlock()
		if len(missing) == 0 {
			return true
		}
		select {
		case <-grown:
		case <-b.asked:
			return false
		case <-b.killed:
			return false
		}
	}
}

func (b *sandbox) missingLocked() []string {
	var out []string
	for _, in := range b.spec.Inputs {
		if _, ok := b.n.inputs[in.Digest]; in.Digest != "" && in.URL == "" && !ok {
			out = append(out, in.Digest)
		}
	}
	return out
}

func (n *Node) needsLocked() []string {
	var out []string
	for _, b := range n.sandboxes {
		if b.report.Status == muster.AllocStarting {
			out = append(out, b.missingLocked()...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func exit(code int) *muster.Failure {
	if code == 0 {
		return nil
	}
	return &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: fmt.Sprintf("exited with code %d", code)}
}

// step does one step.
func (b *sandbox) step(words []string) (code int, f *muster.Failure, ended bool) {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "true":
		return 0, nil, true
	case "false":
		return 1, exit(1), true
	case "exit":
		code, _ = strconv.Atoi(arg(1))
		return code, exit(code), true
	case "sleep":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			return 1, exit(1), true
		}
		t := time.NewTimer(d)
		defer t.Stop()
		return 0, nil, !b.wait(t.C)
	case "hang":
		b.wait(nil)
		return 0, nil, true
	case "print":
		b.write(&b.stdout, arg(1)+"\n")
	case "warn":
		b.write(&b.stderr, arg(1)+"\n")
	case "flood":
		k, _ := strconv.Atoi(arg(1))
		b.write(&b.stdout, strings.Repeat("0123456789abcde\n", k/16+1)[:k])
	case "lose":
		k, _ := strconv.Atoi(arg(1))
		b.change(func(r *wire.AllocReport) { r.OutputLost += int64(k) })
	case "fill":
		k, _ := strconv.Atoi(arg(2))
		b.made[arg(1)] = strings.Repeat("0123456789abcde\n", k/16+1)[:k]
	case "make":
		b.made[arg(1)] = arg(2)
	case "cat":
		for _, in := range b.spec.Inputs {
			if in.Path == arg(1) {
				b.n.mu.Lock()
				text := string(in.Content) + string(b.n.inputs[in.Digest])
				b.n.mu.Unlock()
				b.write(&b.stdout, text)
			}
		}
	case "ready":
		b.change(func(r *wire.AllocReport) { r.Ready = now() })
	case "break":
		return 0, &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "the disk is broken"}, true
	default:
		return 127, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonCommandNotFound, Message: words[0] + ": command not found"}, true
	}
	return 0, nil, false
}

// write appends to a stream and drops the oldest past the limit.
func (b *sandbox) write(s *stream, text string) {
	b.n.mu.Lock()
	defer b.n.mu.Unlock()
	s.data = append(s.data, text...)
	if over := int64(len(s.data)) - b.spec.OutputLimit; b.spec.OutputLimit > 0 && over > 0 {
		s.data = s.data[over:]
		s.start += over
	}
	b.growLocked()
}

func (b *sandbox) readLocked(name string, offset int64) (int64, []byte) {
	s := &b.stdout
	if name == wire.Stderr {
		s = &b.stderr
	}
	offset = max(offset, s.start)
	return offset, slices.Clone(s.data[min(offset-s.start, int64(len(s.data))):])
}

// end makes the sandbox ended: stopped if it was asked to stop, and not if it was killed.
func (b *sandbox) end(code int, f *muster.Failure, never bool) {
	b.n.mu.Lock()
	stuck := b.n.stuck
	b.n.mu.Unlock()
	if stuck {
		<-b.killed
		return
	}
	if !b.pause("end") {
		return
	}
	b.change(func(r *wire.AllocReport) {
		r.Status, r.Ended, r.ExitCode, r.Failure = muster.AllocEnded, now(), code, f
		r.Outcome = muster.OutcomeSucceeded
		select {
		case <-b.asked:
			r.Outcome, r.Failure, r.Signal = muster.OutcomeStopped, nil, "SIGTERM"
		default:
		}
		if b.unguarded {
			r.Outcome, r.Signal = muster.OutcomeFailed, "SIGKILL"
			r.Failure = &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonUnguarded, Message: "exclusive, and no server has spoken"}
			return
		}
		if f != nil && r.Outcome != muster.OutcomeStopped {
			r.Outcome = muster.OutcomeFailed
		}
		if r.Outcome != muster.OutcomeSucceeded || never {
			return
		}
		for _, o := range b.spec.Outputs {
			text, ok := b.made[o.Path]
			switch {
			case ok:
				b.files = append(b.files, []byte(text))
				r.Outputs = append(r.Outputs, wire.OutputReport{Path: o.Path, Size: int64(len(text))})
			case !o.Optional:
				r.Outcome, r.Outputs = muster.OutcomeFailed, nil
				r.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonOutputMissing, Message: "output " + o.Path + " was not made"}
				return
			}
		}
	})
}

// reportLocked is the report with the sizes of now.
func (b *sandbox) reportLocked() wire.AllocReport {
	r := b.report
	r.Stdout, r.Stderr = b.stdout.report(r.Status), b.stderr.report(r.Status)
	return r
}

func (s *stream) report(status muster.AllocStatus) wire.StreamReport {
	r := wire.StreamReport{Size: s.start + int64(len(s.data)), Start: s.start}
	if status == muster.AllocEnded && s.start == 0 && len(s.data) <= wire.InlineLimit {
		r.Inline = s.data
	}
	return r
}
