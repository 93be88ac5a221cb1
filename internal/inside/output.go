package inside

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Output is what allocations wrote: the streams of their commands, and the files that they declared
// and left.
type Output struct{ *entrance }

// Stream reads a stream, stdout or stderr, of an allocation from a position on. With follow it goes
// on until the stream has ended for ever; without, it ends where the stream ends now. The stream is
// for one goroutine, and need not be closed.
func (o *Output) Stream(id muster.AllocID, stream string, from int64, follow bool) *Stream {
	return &Stream{of: o, id: id, stream: stream, follow: follow, Pos: from}
}

// Declared returns a declared output as a tar archive, and its size in bytes. n counts from 0, in
// the order of the list. The reader must be closed.
func (o *Output) Declared(ctx context.Context, id string, n int) (size int64, from io.ReadCloser, err error) {
	al, err := o.find(id)
	if err != nil {
		return 0, nil, err
	}
	if al.Output.Stage == state.OutputPruned {
		return 0, nil, muster.Faultf(muster.FaultTooOld, "the output of allocation %s is no longer kept: %s", al.ID, al.Output.Why)
	}
	if n >= len(al.Output.Files) {
		return 0, nil, problem.NotFound("allocation %s has %d stored outputs, and no output %d", al.ID, len(al.Output.Files), n)
	}
	from, err = o.cfg.Store.Open(ctx, blob.OutputKey(al.Run.Key.Namespace, al.UID, al.ID, n), 0)
	return al.Output.Files[n].Size, from, err
}

// open asks the node of an allocation for a stream. Errors are the link's.
func (o *Output) open(ctx context.Context, al *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	l, err := o.cfg.Link()
	if err != nil {
		return nil, 0, err
	}
	return l.OpenOutput(ctx, al, stream, offset, follow)
}

// Stream reads one stream of one allocation from wherever its bytes are: in the row, in chunks in
// the store (which may overlap), or still on the node. It goes forward only; no byte comes twice.
type Stream struct {
	of     *Output
	id     muster.AllocID
	stream string
	follow bool
	// Pos is the offset of the next byte. Whoever reads a part moves it on.
	Pos int64
	// chunks are what the store had of the stream when it was last listed, by offset. The list may
	// be out of date: chunks are added while the stream is open, and pruned later.
	chunks []chunk
	// Why is the last error that kept the node's bytes away; nil if the node could be asked.
	Why error
}

// chunk is a run of the stream in the store.
type chunk struct {
	key          string
	offset, size int64
}

// Part is a run of bytes of a stream. It must be closed.
type Part struct {
	io.ReadCloser
	// Start is the offset of its first byte.
	Start int64
	// Live says that the part comes from the node: the stream ends where it ends.
	Live bool
}

// ErrWait says that nothing is there now, and that more may come. Wait waits for it.
var ErrWait = fmt.Errorf("nothing yet")

// Alloc returns the allocation's row as it is now. It may have been forgotten: that is not-found.
func (s *Stream) Alloc() (*state.Alloc, error) {
	if al := s.of.cfg.State.Latest().Alloc(s.id); al != nil {
		return al, nil
	}
	return nil, problem.NotFound("allocation %s: not found", problem.Clip(string(s.id)))
}

// StreamOf returns what a row says of a stream, stdout or stderr.
func StreamOf(al *state.Alloc, stream string) *state.Stream {
	if stream == "stderr" {
		return &al.Output.Stderr
	}
	return &al.Output.Stdout
}

// Next returns the part that holds the byte at Pos, or the first part after it if that byte was
// dropped, and the row that it went by. io.EOF says that the stream ends at Pos; if the stream is
// not followed, for now. ErrWait says that the stream is followed and nothing is there yet.
func (s *Stream) Next(ctx context.Context) (p *Part, al *state.Alloc, err error) {
	// The row is read before the store. If the row says that everything is stored, the list that
	// follows has everything.
	al, err = s.Alloc()
	if err != nil {
		return nil, nil, err
	}
	closed := al.Output.Stage != state.OutputOpen
	st := StreamOf(al, s.stream)
	if closed {
		switch {
		case al.Output.Stage != state.OutputIncomplete && s.Pos >= st.Size:
			return nil, al, io.EOF
		case st.Inline != nil:
			start := max(s.Pos, st.Start)
			from := start - st.Start
			if from >= int64(len(st.Inline)) {
				return nil, al, io.EOF
			}
			return &Part{ReadCloser: io.NopCloser(bytes.NewReader(st.Inline[from:])), Start: start}, al, nil
		case al.Output.Stage == state.OutputPruned:
			return nil, al, muster.Faultf(muster.FaultTooOld, "the output of allocation %s is no longer kept: %s", al.ID, al.Output.Why)
		}
	}
	here, later := s.find()
	if here == nil {
		if err := s.list(ctx, al); err != nil {
			return nil, al, err
		}
		here, later = s.find()
	}
	switch {
	case here != nil:
		p, err := s.open(ctx, here, s.Pos)
		return p, al, err
	case !closed:
		p, err := s.live(ctx, al, later)
		return p, al, err
	case later != nil:
		p, err := s.open(ctx, later, later.offset)
		return p, al, err
	case al.Output.Stage == state.OutputComplete && st.Start < st.Size:
		// The row says that the bytes are there. To end here would pass a part off as the whole.
		return nil, al, problem.NotFound("output of allocation %s: bytes %d to %d are missing in the store", al.ID, s.Pos, st.Size)
	case al.Output.Stage == state.OutputComplete:
		s.Pos = st.Size // nothing of it was kept
	}
	return nil, al, io.EOF
}

// find returns the chunk that holds Pos and reaches furthest, or else the first one after Pos.
// Chunks overlap where a node has sent bytes twice.
func (s *Stream) find() (here, later *chunk) {
	for i := range s.chunks {
		c := &s.chunks[i]
		switch {
		case c.offset > s.Pos:
			if here == nil && c.size > 0 {
				later = c
			}
			return here, later
		case c.offset+c.size > s.Pos && (here == nil || c.offset+c.size > here.offset+here.size):
			here = c
		}
	}
	return here, nil
}

// list asks the store what it has of the stream.
func (s *Stream) list(ctx context.Context, al *state.Alloc) error {
	infos, err := s.of.cfg.Store.List(ctx, blob.StreamPrefix(al.Run.Key.Namespace, al.UID, al.ID, s.stream))
	if err != nil {
		return fmt.Errorf("output of allocation %s: %w", al.ID, err)
	}
	s.chunks = s.chunks[:0]
	for _, i := range infos {
		if offset, ok := blob.StreamOffset(i.Key); ok {
			s.chunks = append(s.chunks, chunk{i.Key, offset, i.Size})
		}
	}
	return nil
}

// End returns the offset at which the listed chunks end.
func (s *Stream) End() int64 {
	var end int64
	for _, c := range s.chunks {
		end = max(end, c.offset+c.size)
	}
	return end
}

// open reads a chunk from an offset of the stream on.
func (s *Stream) open(ctx context.Context, c *chunk, from int64) (*Part, error) {
	r, err := s.of.cfg.Store.Open(ctx, c.key, from-c.offset)
	if err != nil {
		// The chunk may have been pruned since it was listed. The next try lists again.
		s.chunks = nil
		return nil, fmt.Errorf("output of allocation %s: %w", s.id, err)
	}
	return &Part{ReadCloser: r, Start: from}, nil
}

// live asks the node for the bytes at Pos. If the node cannot fill the gap, what is stored after it
// comes next.
func (s *Stream) live(ctx context.Context, al *state.Alloc, later *chunk) (*Part, error) {
	s.Why = nil
	if al.Status == muster.AllocRunning || al.Status == muster.AllocEnded {
		r, start, err := s.of.open(ctx, al, s.stream, s.Pos, s.follow)
		switch {
		case err == nil && start >= s.Pos:
			return &Part{ReadCloser: r, Start: start, Live: true}, nil
		case err == nil:
			_ = r.Close()
			err = fmt.Errorf("allocation %s: node %s sent output from %d where %d was asked for", al.ID, al.Node, start, s.Pos)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.Why = err
	}
	switch {
	case later != nil:
		return s.open(ctx, later, later.offset)
	case s.follow:
		return nil, ErrWait
	}
	return nil, io.EOF
}

// Wait returns when the allocation's row is no longer the one given, or after atMost if that is not
// 0. An error is the end of ctx, by its cause.
func (s *Stream) Wait(ctx context.Context, al *state.Alloc, atMost time.Duration) error {
	bounded := ctx
	if atMost > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, atMost)
		defer cancel()
	}
	changes := s.of.cfg.State.Feed().Subscribe(state.Topic{Alloc: s.id})
	defer changes.Close()
	for {
		snap := s.of.cfg.State.Latest()
		if snap.Alloc(s.id) != al {
			return nil
		}
		if err := changes.Wait(bounded, state.AfterIndex(snap.Index())); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nil
		}
	}
}

// Tail moves Pos to where the last n bytes begin that there are now. If it had to read bytes to
// find out, it returns them, and Pos is behind them.
func (s *Stream) Tail(ctx context.Context, n int64) ([]byte, error) {
	al, err := s.Alloc()
	if err != nil {
		return nil, err
	}
	st := StreamOf(al, s.stream)
	switch al.Output.Stage {
	case state.OutputComplete, state.OutputPruned:
		s.Pos = max(st.Start, st.Size-n)
		return nil, nil
	case state.OutputIncomplete:
		if st.Inline != nil {
			s.Pos = max(st.Start, st.Start+int64(len(st.Inline))-n)
			return nil, nil
		}
	}
	if err := s.list(ctx, al); err != nil {
		return nil, err
	}
	s.Pos = max(s.End()-n, 0)
	if al.Output.Stage != state.OutputOpen {
		return nil, nil
	}
	// How much the node has is found by reading to its end. What is stored already is skipped by
	// then, so this is little, unless the store is behind.
	now := &Stream{of: s.of, id: s.id, stream: s.stream, Pos: s.Pos, chunks: s.chunks}
	last := &lastBytes{keep: int(n)}
	for {
		p, _, err := now.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if p.Start != now.Pos {
			last.b, now.Pos = last.b[:0], p.Start // bytes before a gap are not the last ones
		}
		read, err := io.Copy(last, p)
		_ = p.Close()
		now.Pos += read
		if err != nil {
			return nil, err
		}
		if p.Live {
			break
		}
	}
	s.Pos, s.Why = now.Pos, now.Why
	return last.bytes(), nil
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	keep int
	b    []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if len(l.b) > 2*l.keep+64<<10 {
		n := copy(l.b, l.b[len(l.b)-l.keep:])
		l.b = l.b[:n]
	}
	return len(p), nil
}

func (l *lastBytes) bytes() []byte { return l.b[max(len(l.b)-l.keep, 0):] }
