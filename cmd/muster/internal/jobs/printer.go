package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// printer prints the output of allocations: as it came, or line by line with the member in front.
type printer struct {
	// screen keeps lines of members and the progress bar apart.
	screen *term.Screen
	// streams are those that are printed; with none nothing is.
	streams []string
	// prefix puts the member's index before each line.
	prefix bool
	// tail is how much of the end of each stream is printed; nil for all.
	tail *tail
}

// silent reports whether it is known that an allocation has printed nothing. Of many members most
// print nothing, and to ask for each would be slow.
func (p *printer) silent(al *api.Alloc) bool {
	if len(p.streams) == 0 {
		return true
	}
	if al.Output.State == "" || al.Output.State == "open" {
		// Some may be on its way to the server.
		return false
	}
	for _, s := range p.streams {
		if s == client.Stdout && al.Output.StdoutBytes > 0 || s == client.Stderr && al.Output.StderrBytes > 0 {
			return false
		}
	}
	return true
}

// print prints the output of one allocation: what there is, or, if it follows, until it is
// complete. Following, both streams are read at once; else one after the other, so that two runs
// print the same.
func (p *printer) print(ctx context.Context, cl *client.Client, id muster.AllocID, index int, follow bool) error {
	var wg sync.WaitGroup
	errs := make([]error, len(p.streams))
	for i, name := range p.streams {
		one := func() {
			err := p.stream(ctx, cl, client.OutputQuery{Alloc: id, Stream: name, Follow: follow}, index)
			if err != nil {
				errs[i] = fmt.Errorf("%s of member %d: %w", name, index, err)
			}
		}
		// Without following it is printed in order: first all of stdout, then stderr.
		if !follow {
			one()
			continue
		}
		wg.Go(one)
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stream prints one stream, and says what is missing of it: nothing may be taken for complete that
// is not.
func (p *printer) stream(ctx context.Context, cl *client.Client, q client.OutputQuery, index int) error {
	q, err := p.tail.begin(ctx, cl, q)
	if err != nil {
		return err
	}
	o, err := cl.Output(ctx, q)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }()
	// A prefix needs whole lines; without one the bytes are passed on as they come.
	w := p.screen.Stream(q.Stream)
	lines := term.NewPrefixed(w, fmt.Sprintf("[%d] ", index))
	if p.prefix {
		w = lines
	}
	// The wrappers hide other methods, so that the copy is made in pieces of this size and nothing
	// is held back.
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{o}, make([]byte, 32<<10))
	if e := lines.End(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	// What is missing at the beginning, what may be missing at the end, and why the whole is not
	// there.
	if n := o.Dropped(); n > 0 {
		p.screen.Say("member %d: the oldest %s of its %s were dropped (output_limit)", index, muster.Bytes(n), q.Stream)
	}
	if note := o.Note(); note != "" {
		p.screen.Say("member %d: there may be more of its %s: %s", index, q.Stream, note)
	}
	if o.State() == "incomplete" || o.State() == "pruned" {
		why := ""
		if al, err := cl.Alloc(ctx, q.Alloc); err == nil && al.Output.Why != "" {
			why = ": " + al.Output.Why
		}
		p.screen.Say("member %d: its %s is %s%s", index, q.Stream, o.State(), why)
	}
	return nil
}
