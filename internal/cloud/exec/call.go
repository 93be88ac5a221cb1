package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

const (
	// maxAnswer bounds the answer; maxStderr what is kept of the end of the program's stderr, and maxQuote of an answer that is told.
	maxAnswer, maxStderr, maxQuote = 64 << 20, 2 << 10, 200
	// maxWord bounds a name, an id or an address in bytes, maxKey a host key or a cursor, and maxPairs the attributes of an
	// offering: most of them are kept in the log.
	maxWord, maxKey, maxPairs = 1 << 10, 16 << 10, 256
	// maxAfter is the longest pause that the program can ask for.
	maxAfter = 24 * time.Hour
	// leftBehind is how long what the program started may hold its outputs open.
	leftBehind = time.Second
)

// Exit statuses that say what went wrong where the answer does not; as in sysexits.h.
const (
	exitUsage, exitData, exitUnavailable, exitTemporary, exitDenied, exitConfig = 64, 65, 69, 75, 77, 78
)

// kindOf is what an exit status means; unknown: it does not say.
func kindOf(status int, unknown muster.FaultKind) muster.FaultKind {
	switch status {
	case exitUsage, exitData, exitConfig:
		return muster.FaultInvalid
	case exitUnavailable, exitTemporary:
		return muster.FaultTransient
	case exitDenied:
		return muster.FaultAuth
	}
	return unknown
}

// tail keeps the end of what is written to it, and fails past a limit if it has one.
type tail struct {
	keep, limit int
	b           []byte
	over        bool
}

func (t *tail) Write(p []byte) (int, error) {
	if t.limit > 0 && len(t.b)+len(p) > t.limit {
		t.over = true
		return 0, errors.New("too much")
	}
	t.b = append(t.b, p...)
	if t.keep > 0 && len(t.b) > 2*t.keep {
		t.b = slices.Clone(t.b[len(t.b)-t.keep:])
	}
	return len(p), nil
}

// words are the end of it, to be quoted in an error.
func (t *tail) words() string {
	b := t.b
	if t.keep > 0 && len(b) > t.keep {
		b = b[len(b)-t.keep:]
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}

// call runs the program once. What is not known to have happened is a fault of kind unsure.
func (p *Provider) call(ctx context.Context, q Request, unsure muster.FaultKind) (*Answer, error) {
	q.Version, q.Provider, q.Owner = Version, string(p.cfg.Name), p.cfg.Owner
	in, err := json.Marshal(q)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "%s: %v", q.Op, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, &muster.Fault{Kind: muster.FaultTransient, Message: p.named(q.Op) + ": not run", Err: err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("it did not end within %s", p.cfg.Timeout))
	defer cancel()
	cmd := osexec.CommandContext(ctx, p.cfg.Command[0], p.cfg.Command[1:]...)
	cmd.Stdin = bytes.NewReader(in)
	stdout, stderr := &tail{limit: maxAnswer}, &tail{keep: maxStderr}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Env = append(os.Environ(), p.cfg.Env...)
	// With all that it has started: a cloud's own tools often start others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = leftBehind
	err = cmd.Start()
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: p.named(q.Op), Err: err}
	}
	err = cmd.Wait()
	if errors.Is(err, osexec.ErrWaitDelay) {
		err = nil // it has ended well; something that it started holds its outputs
	}
	fault := func(kind muster.FaultKind, format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		if words := stderr.words(); words != "" {
			text += "; its stderr: " + words
		}
		return muster.Faultf(kind, "%s %s", p.named(q.Op), text)
	}
	if ctx.Err() != nil {
		return nil, fault(unsure, "was ended: %v", context.Cause(ctx))
	}
	if stdout.over {
		return nil, fault(unsure, "answers with more than %d bytes", maxAnswer)
	}
	a, problem := parse(stdout.b)
	var status *osexec.ExitError
	switch {
	case problem == nil && a.Error != nil:
		return nil, p.fault(a.Error, fault, unsure)
	case errors.As(err, &status) && status.ExitCode() >= 0:
		return nil, fault(kindOf(status.ExitCode(), unsure), "ended with exit status %d", status.ExitCode())
	case err != nil:
		return nil, fault(unsure, "ended with %v", err)
	case problem != nil:
		return nil, fault(unsure, "gives an answer that cannot be read: %v", problem)
	}
	return a, nil
}

func (p *Provider) named(op string) string { return fmt.Sprintf("%s %s", p.cfg.Command[0], op) }

// parse reads one JSON object, and nothing after it.
func parse(b []byte) (*Answer, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("it is empty")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	a := &Answer{}
	if err := d.Decode(a); err != nil {
		return nil, fmt.Errorf("%s, in %s", muster.Truncate(err.Error(), maxQuote), quote(b))
	}
	if d.More() {
		return nil, fmt.Errorf("something follows the object, in %s", quote(b))
	}
	return a, a.check()
}

// check returns an error that names the first value of the answer that is too long.
func (a *Answer) check() error {
	at, size := "", 0
	bound := func(most int, format string, n int, words ...string) {
		for _, w := range words {
			if len(w) > most && at == "" {
				at, size = fmt.Sprintf(format, n), len(w)
			}
		}
	}
	instance := func(format string, n int, i *Instance) {
		bound(maxWord, format, n, i.ID, i.Offering, i.Zone, i.Market, i.Address, i.User,
			i.Tags[tagOwner], i.Tags[tagToken], i.Tags[tagNode], i.Tags[tagPool], i.Tags[tagIntent])
		bound(maxKey, format, n, i.HostKeys...)
	}
	for n := range a.Offers {
		o := &a.Offers[n]
		bound(maxWord, "offers[%d]", n, o.Name, o.Zone, o.Market, o.Family)
		for k, v := range o.Attributes {
			bound(maxWord, "offers[%d]", n, k, v)
		}
		devices := 0
		for _, d := range o.Devices {
			bound(maxWord, "offers[%d]", n, d.Kind, d.Model)
			if d.Count < 0 || d.Count > api.MaxDevices {
				return fmt.Errorf("offers[%d] has %d devices of a kind; it may have 1 to %d", n, d.Count, api.MaxDevices)
			}
			devices += max(d.Count, 1)
		}
		if devices > api.MaxDevices {
			return fmt.Errorf("offers[%d] has %d devices; it may have at most %d", n, devices, api.MaxDevices)
		}
		if len(o.Attributes) > maxPairs {
			return fmt.Errorf("offers[%d] has %d attributes; it may have at most %d", n, len(o.Attributes), maxPairs)
		}
	}
	for n := range a.Results {
		if i := a.Results[n].Instance; i != nil {
			instance("results[%d]", n, i)
		}
	}
	for n := range a.Instances {
		instance("instances[%d]", n, &a.Instances[n])
	}
	if len(a.Next) > maxKey && at == "" {
		at, size = "next", len(a.Next)
	}
	if at != "" {
		return fmt.Errorf("%s has a value of %d bytes; names, ids and addresses may have at most %d, host keys and cursors %d", at, size, maxWord, maxKey)
	}
	return nil
}

func quote(b []byte) string {
	text := strings.ToValidUTF8(string(bytes.TrimSpace(b)), "?")
	if len(text) > maxQuote {
		return fmt.Sprintf("%q…", text[:maxQuote])
	}
	return fmt.Sprintf("%q", text)
}

// fault is an error that the program tells.
func (p *Provider) fault(e *Error, fault func(muster.FaultKind, string, ...any) error, unsure muster.FaultKind) error {
	kind := muster.FaultKind(e.Kind)
	if !slices.Contains(kinds(), kind) {
		return fault(unsure, "reports an error of the unknown kind %q: %s", muster.Truncate(e.Kind, maxQuote), muster.Truncate(e.Message, maxStderr))
	}
	after := maxAfter
	if e.After < maxAfter.Seconds() {
		after = time.Duration(max(e.After, 0) * float64(time.Second))
	}
	return &muster.Fault{
		Kind: kind, Message: p.cfg.Command[0] + ": " + muster.Truncate(e.Message, maxStderr), After: after,
		Scope: muster.Scope{Provider: p.cfg.Name, Zone: muster.Truncate(e.Scope.Zone, maxWord), Offering: muster.OfferingName(muster.Truncate(e.Scope.Offering, maxWord)),
			Market: muster.Market(muster.Truncate(e.Scope.Market, maxWord)), Family: muster.Truncate(e.Scope.Family, maxWord)},
	}
}
