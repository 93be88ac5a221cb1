package inside

import (
	"context"
	"sync"
	"unicode/utf8"

	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Collect feeds the input, keeps what the command puts out until its end, and closes the execution.
// Of each stream it keeps the first api.ExecMaxOutput bytes; the rest is read and thrown away, so
// that a command that says too much still ends. An error is a problem; it has been counted.
func (x *Execution) Collect(ctx context.Context, input []byte) (*api.ExecResult, error) {
	var fed sync.WaitGroup
	defer fed.Wait()
	defer func() { _ = x.Close() }() // also wakes the feeder
	if len(input) > 0 {
		fed.Go(func() {
			// A command need not read its input. That it did not is no failure of the execution.
			if x.WriteStdin(input) == nil {
				_ = x.CloseStdin()
			}
		})
	}
	var out, errs kept
	for said := false; ; {
		kind, data, ended, err := x.Next()
		if !said && err == nil && ended == nil {
			said = true
			x.PutOut()
		}
		switch {
		case err != nil:
			return nil, x.Broken(ctx, err)
		case kind == initwire.KindStdout:
			out.add(data)
		case kind == initwire.KindStderr:
			errs.add(data)
		case ended != nil:
			end, _ := x.End(ctx, ended)
			r := &api.ExecResult{
				ID: x.Started.ID, ExitCode: end.ExitCode, Signal: end.Signal, TimedOut: end.TimedOut, Reason: end.Reason, Truncated: out.more || errs.more,
			}
			r.Stdout, r.StdoutBase64 = out.text()
			r.Stderr, r.StderrBase64 = errs.text()
			return r, nil
		}
	}
}

// kept is the beginning of a stream.
type kept struct {
	b    []byte
	more bool
}

func (k *kept) add(p []byte) {
	if room := api.ExecMaxOutput - len(k.b); len(p) > room {
		p, k.more = p[:room], true
	}
	k.b = append(k.b, p...)
}

// text is the stream as text, or as bytes if it is none. A letter that was cut off by the bound
// does not make it none.
func (k *kept) text() (string, []byte) {
	b := k.b
	for i := 1; k.more && i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				b = b[:len(b)-i]
			}
			break
		}
	}
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", k.b
}
