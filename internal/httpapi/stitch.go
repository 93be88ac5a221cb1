package httpapi

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

// stitch reads one stream of one allocation from wherever its bytes are: in
// the row, in chunks in the store (which may overlap), or still on the node.
// It goes forward only; no byte comes twice.
type stitch struct {
	a      *API
	id     muster.AllocID
	stream string
	follow bool
	// pos is the offset of the next byte.
	pos int64
	// chunks are those last listed, by offset.
	chunks []chunk
	// why is the last thing that kept the node's bytes from us.
	why error
}

type chunk struct {
	key          string
	offset, size int64
}

// part is a run of bytes from start on.
type part struct {
	io.ReadCloser
	start int64
	live  bool
}

// errWait: nothing is there now, and more may come.
var errWait = fmt.Errorf("nothing yet")

// alloc is the row as it is now.
func (s *stitch) alloc() (*state.Alloc, error) {
	if al := s.a.cfg.State.Latest().Alloc(s.id); al != nil {
		return al, nil
	}
	return nil, problem.NotFound("allocation %s: not found", problem.Clip(string(s.id)))
}

func streamOf(al *state.Alloc, stream string) *state.Stream {
	if stream == "stderr" {
		return &al.Output.Stderr
	}
	return &al.Output.Stdout
}

// next is the part that holds the byte at pos, or the first one after it if
// it was dropped. io.EOF: the stream ends at pos (if it is not followed: for
// now). errWait: it is followed and nothing is there yet; al is the row that said so.
func (s *stitch) next(ctx context.Context) (p *part, al *state.Alloc, err error) {
	// The row is read before the store is: if it says that all is stored, all is listed.
	al, err = s.alloc()
	if err != nil {
		return nil, nil, err
	}
	closed := al.Output.Stage != state.OutputOpen
	st := streamOf(al, s.stream)
	if closed {
		switch {
		case al.Output.Stage != state.OutputIncomplete && s.pos >= st.Size:
			return nil, al, io.EOF
		case st.Inline != nil:
			start := max(s.pos, st.Start)
			from := start - st.Start
			if from >= int64(len(st.Inline)) {
				return nil, al, io.EOF
			}
			return &part{ReadCloser: io.NopCloser(bytes.NewReader(st.Inline[from:])), start: start}, al, nil
		case al.Output.Stage == state.OutputPruned:
			return nil, al, muster.Faultf(muster.FaultTooOld, "the output of allocation %s is not kept any more: %s", al.ID, al.Output.Why)
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
		p, err := s.open(ctx, here, s.pos)
		return p, al, err
	case !closed:
		p, err := s.live(ctx, al, later)
		return p, al, err
	case later != nil:
		p, err := s.open(ctx, later, later.offset)
		return p, al, err
	case al.Output.Stage == state.OutputComplete && st.Start < st.Size:
		// The row says that it is there: an end here would not be one.
		return nil, al, problem.NotFound("output of allocation %s: bytes %d to %d are missing in the store", al.ID, s.pos, st.Size)
	case al.Output.Stage == state.OutputComplete:
		s.pos = st.Size // nothing of it was kept
	}
	return nil, al, io.EOF
}

// find is the chunk that holds pos and reaches furthest, else the first one after it.
func (s *stitch) find() (here, later *chunk) {
	for i := range s.chunks {
		c := &s.chunks[i]
		switch {
		case c.offset > s.pos:
			if here == nil && c.size > 0 {
				later = c
			}
			return here, later
		case c.offset+c.size > s.pos && (here == nil || c.offset+c.size > here.offset+here.size):
			here = c
		}
	}
	return here, nil
}

func (s *stitch) list(ctx context.Context, al *state.Alloc) error {
	infos, err := s.a.cfg.Blobs.List(ctx, blob.StreamPrefix(al.Run.Key.Namespace, al.UID, al.ID, s.stream))
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

// end is where the listed chunks end.
func (s *stitch) end() int64 {
	var end int64
	for _, c := range s.chunks {
		end = max(end, c.offset+c.size)
	}
	return end
}

func (s *stitch) open(ctx context.Context, c *chunk, from int64) (*part, error) {
	r, err := s.a.cfg.Blobs.Open(ctx, c.key, from-c.offset)
	if err != nil {
		// It may have been pruned since it was listed: look again next time.
		s.chunks = nil
		return nil, fmt.Errorf("output of allocation %s: %w", s.id, err)
	}
	return &part{ReadCloser: r, start: from}, nil
}

// live asks the node. What is stored after a gap is taken if the node cannot
// fill it.
func (s *stitch) live(ctx context.Context, al *state.Alloc, later *chunk) (*part, error) {
	s.why = nil
	if al.Status == muster.AllocRunning || al.Status == muster.AllocEnded {
		r, start, err := s.a.cfg.Output.OpenOutput(ctx, al, s.stream, s.pos, s.follow)
		switch {
		case err == nil && start >= s.pos:
			return &part{ReadCloser: r, start: start, live: true}, nil
		case err == nil:
			_ = r.Close()
			err = fmt.Errorf("allocation %s: node %s sent output from %d where %d was asked for", al.ID, al.Node, start, s.pos)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.why = err
	}
	switch {
	case later != nil:
		return s.open(ctx, later, later.offset)
	case s.follow:
		return nil, errWait
	}
	return nil, io.EOF
}

// wait returns when the allocation's row is no longer the one given, or after
// at most a while if that is not 0. An error is the end of ctx.
func (s *stitch) wait(ctx context.Context, al *state.Alloc, atMost time.Duration) error {
	bounded := ctx
	if atMost > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, atMost)
		defer cancel()
	}
	changes := s.a.cfg.State.Feed().Subscribe(state.Topic{Alloc: s.id})
	defer changes.Close()
	for {
		snap := s.a.cfg.State.Latest()
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

// tail moves pos to the last n bytes that there are now, and returns them if
// they had to be read to be found.
func (s *stitch) tail(ctx context.Context, n int64) ([]byte, error) {
	al, err := s.alloc()
	if err != nil {
		return nil, err
	}
	st := streamOf(al, s.stream)
	switch al.Output.Stage {
	case state.OutputComplete, state.OutputPruned:
		s.pos = max(st.Start, st.Size-n)
		return nil, nil
	case state.OutputIncomplete:
		if st.Inline != nil {
			s.pos = max(st.Start, st.Start+int64(len(st.Inline))-n)
			return nil, nil
		}
	}
	if err := s.list(ctx, al); err != nil {
		return nil, err
	}
	s.pos = max(s.end()-n, 0)
	if al.Output.Stage != state.OutputOpen {
		return nil, nil
	}
	// How much the node has is found by reading to its end. What is stored
	// already is skipped by then, so this is little, unless the store is behind.
	now := &stitch{a: s.a, id: s.id, stream: s.stream, pos: s.pos, chunks: s.chunks}
	last := &lastBytes{keep: int(n)}
	for {
		p, _, err := now.next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if p.start != now.pos {
			last.b, now.pos = last.b[:0], p.start // bytes before a gap are not the last ones
		}
		read, err := io.Copy(last, p)
		_ = p.Close()
		now.pos += read
		if err != nil {
			return nil, err
		}
		if p.live {
			break
		}
	}
	s.pos, s.why = now.pos, now.why
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
