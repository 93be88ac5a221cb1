package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Headers of an output answer. headerNote is a trailer, because its value is known only at the end.
const (
	headerStart = "Muster-Output-Start"
	headerEnd   = "Muster-Output-End"
	headerState = "Muster-Output-State"
	// headerNote is a trailer.
	headerNote = "Muster-Output-Note"
)

const (
	// retryFirst and retryMost bound the delay before a node that could not be reached, or whose
	// connection broke, is asked again. The delay doubles with each failure in a row.
	retryFirst = 100 * time.Millisecond
	retryMost  = 2 * time.Second
	// retries is how many failures in a row, without a byte between them, an answer without follow
	// survives.
	retries = 3
)

// outputHandlers handle what allocations wrote to stdout and stderr, and the files that they left.
type outputHandlers struct{ *API }

func (a outputHandlers) routes() {
	get := operation(http.MethodGet, "/v1/allocations/{id}/output/{stream}", "get-output", tagOutput, "Read what an allocation wrote",
		"The bytes as they were written, from wherever they are: the store, the log, or the node that runs it. "+
			"An answer that ends well is whole: everything that is there, or with `follow` everything that will ever be. "+
			"One that breaks off is not: ask again from the offset reached. "+
			"If bytes before the first one sent were dropped (by the job's output_limit), "+headerStart+" says where it begins.")
	get.Responses = rawBody("application/octet-stream", "The bytes.", map[string]string{
		headerStart: "Offset of the first byte sent.",
		headerEnd:   "Offset after the last byte of the stream, once it is known.",
		headerState: "open: more may come; complete; incomplete: some was lost; pruned.",
		headerNote:  "A trailer: why there may be more now than was sent, as when the node cannot be reached.",
	})
	get.Errors = append(get.Errors, http.StatusNotFound, http.StatusGone, http.StatusUnprocessableEntity, http.StatusServiceUnavailable)
	register(a.API, get, a.getOutput)

	list := operation(http.MethodGet, "/v1/allocations/{id}/outputs", "list-outputs", tagOutput, "List the declared outputs that an allocation left", "")
	list.Errors = append(list.Errors, http.StatusNotFound)
	register(a.API, list, a.listOutputs)

	one := operation(http.MethodGet, "/v1/allocations/{id}/outputs/{n}", "get-declared-output", tagOutput, "Fetch a declared output", "A file or a directory, as a tar archive.")
	one.Responses = rawBody("application/x-tar", "The archive.", nil)
	one.Errors = append(one.Errors, http.StatusNotFound, http.StatusGone, http.StatusServiceUnavailable)
	register(a.API, one, a.getDeclaredOutput)
}

type outputIn struct {
	AllocPath
	Stream string                 `path:"stream" enum:"stdout,stderr" doc:"The stream."`
	Offset schema.Optional[int64] `query:"offset" minimum:"0" doc:"Start offset in the stream, in bytes. Default: 0."`
	Tail   schema.Optional[int64] `query:"tail" minimum:"0" maximum:"1048576" doc:"Start this many bytes before the end, instead of at an offset."`
	Follow bool                   `query:"follow" doc:"Continue until the stream has ended for good."`
}

func (a outputHandlers) getOutput(ctx context.Context, in *outputIn) (*huma.StreamResponse, error) {
	if in.Offset.Given && in.Tail.Given {
		return nil, problem.Invalid("query.tail", "is given together with offset; give one of them")
	}
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		ctx, cancel := a.streaming(ctx)
		defer cancel()
		o := &outputAnswer{
			w: w, head: r.Method == http.MethodHead, a: a.API, stream: in.Stream, follow: in.Follow,
			s: a.cfg.Inside.Output.Stream(al.ID, in.Stream, in.Offset.Value, in.Follow),
		}
		var first []byte
		if in.Tail.Given {
			if first, err = o.s.Tail(ctx, in.Tail.Value); err != nil {
				o.broken(ctx, err)
				return
			}
		}
		o.run(ctx, first)
	}}, nil
}

// outputAnswer is one answer while it is sent. The goroutine of the request owns it.
type outputAnswer struct {
	w                   http.ResponseWriter
	a                   *API
	s                   *inside.Stream
	head, follow, begun bool
	stream              string
	// failures counts the failures since the last byte.
	failures int
}

// run sends first, which ends at the position of the stream, and everything from there on. Each
// turn of the loop sends one part, wherever its bytes are at that moment: they move from the node
// to the store while the answer runs.
func (o *outputAnswer) run(ctx context.Context, first []byte) {
	if len(first) > 0 {
		al, err := o.s.Alloc()
		if err != nil {
			o.broken(ctx, err)
			return
		}
		o.begin(al, o.s.Pos-int64(len(first)))
		if _, err := door.Write(o.w, first, true); err != nil || o.head {
			return
		}
	}
	for {
		p, al, err := o.s.Next(ctx)
		switch {
		case err == io.EOF:
			o.finish(ctx, al)
			return
		case err == inside.ErrWait:
			// The client is told that it is served, before anything is there.
			o.begin(al, o.s.Pos)
			_ = http.NewResponseController(o.w).Flush()
			if o.head {
				return
			}
			var most time.Duration
			if o.s.Why != nil {
				most = o.pause()
			}
			if err := o.s.Wait(ctx, al, most); err != nil {
				o.broken(ctx, err)
				return
			}
			continue
		case err != nil:
			if !o.again(ctx, err) {
				o.broken(ctx, err)
				return
			}
			continue
		}
		if o.begun && p.Start != o.s.Pos {
			// What comes next was dropped before it could be sent: only a new answer can say where
			// it begins.
			_ = p.Close()
			door.Abort(o.w)
		}
		o.begin(al, p.Start)
		o.s.Pos = p.Start
		if o.head {
			_ = p.Close()
			return
		}
		done, err := o.copy(p)
		if err != nil && !o.again(ctx, err) {
			o.broken(ctx, err)
			return
		}
		if done {
			return
		}
	}
}

// pause counts a failure and returns how long to wait after it.
func (o *outputAnswer) pause() time.Duration {
	o.failures++
	return min(retryFirst<<min(o.failures-1, 10), retryMost)
}

// again waits before another attempt, and reports whether there is one. There is none if the client
// has left, the bytes are gone for good, or the allocation is. An answer with follow that has begun
// goes on for ever: its client expects to wait.
func (o *outputAnswer) again(ctx context.Context, err error) bool {
	var f *muster.Fault
	if errors.As(err, &f) && f.Kind == muster.FaultTooOld || errors.Is(err, problem.ErrClientGone) || ctx.Err() != nil {
		return false
	}
	if al, _ := o.s.Alloc(); al == nil {
		return false
	}
	pause := o.pause()
	if o.failures > retries && !(o.follow && o.begun) {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// begin sends the headers, once. start is the offset of the first byte. What they say of the end
// depends on how far the output is stored: only a complete stream has a length.
func (o *outputAnswer) begin(al *state.Alloc, start int64) {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(headerStart, strconv.FormatInt(start, 10))
	h.Set(headerState, present.OutputStage(&al.Output))
	st := inside.StreamOf(al, o.stream)
	switch al.Output.Stage {
	case state.OutputOpen:
		h.Set("Trailer", headerNote)
	case state.OutputComplete:
		h.Set(headerEnd, strconv.FormatInt(st.Size, 10))
		// With a length the client notices missing bytes by itself.
		h.Set("Content-Length", strconv.FormatInt(max(st.Size-start, 0), 10))
	case state.OutputIncomplete:
		end := o.s.End()
		if st.Inline != nil {
			end = st.Start + int64(len(st.Inline))
		}
		h.Set(headerEnd, strconv.FormatInt(end, 10))
	}
}

// finish ends an answer that is whole. If the node could not be asked, a note in the trailer says
// that there may be more.
func (o *outputAnswer) finish(ctx context.Context, al *state.Alloc) {
	if !o.begun && o.s.Why != nil {
		// Nothing is stored and the node cannot be asked: not the same as nothing.
		o.broken(ctx, &muster.Fault{Kind: muster.FaultUnavailable, Message: "output of allocation " + string(al.ID) + " on node " + string(al.Node), Err: plain(o.s.Why)})
		return
	}
	o.begin(al, o.s.Pos)
	if o.s.Why != nil {
		o.w.Header().Set(headerNote, problem.Clip(o.s.Why.Error()))
	}
	door.EndWrite(o.w)
}

// plain drops the kind of an error, so that the kind of the fault around it counts.
func plain(err error) error { return errors.New(err.Error()) }

// broken ends an answer that is not whole: with a problem if nothing was sent yet, else by breaking
// the connection off.
func (o *outputAnswer) broken(ctx context.Context, err error) {
	if o.begun || errors.Is(err, problem.ErrClientGone) {
		door.Abort(o.w)
	}
	o.a.fail(ctx, "get-output", err).Write(o.w)
}

// copy sends a part, with one buffer however slow the client is. Each piece that the client takes
// moves the position on, so that an attempt after a failure sends no byte twice. done says that the
// stream ends with the part.
func (o *outputAnswer) copy(p *inside.Part) (done bool, err error) {
	defer func() { _ = p.Close() }()
	err = door.Send(o.w, p, p.Live, func(n int) {
		o.failures = 0
		o.s.Pos += int64(n)
	})
	if err != nil || !p.Live {
		return false, err
	}
	// With follow the stream has ended for ever. Without, this is all that there is now.
	door.EndWrite(o.w)
	return true, nil
}

type outputListOut struct{ Body api.OutputFileList }

func (a outputHandlers) listOutputs(_ context.Context, in *AllocPath) (*outputListOut, error) {
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	out := &outputListOut{api.OutputFileList{Files: []api.OutputFile{}}}
	for _, f := range al.Output.Files {
		out.Body.Files = append(out.Body.Files, api.OutputFile{Path: f.Path, Size: f.Size})
	}
	return out, nil
}

type declaredIn struct {
	AllocPath
	N int `path:"n" minimum:"0" doc:"Its index in the list, from 0."`
}

func (a outputHandlers) getDeclaredOutput(ctx context.Context, in *declaredIn) (*huma.StreamResponse, error) {
	size, from, err := a.cfg.Inside.Output.Declared(ctx, in.ID, in.N)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer func() { _ = from.Close() }()
		r, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		if r.Method == http.MethodHead {
			return
		}
		if door.Send(w, from, false, nil) != nil {
			panic(http.ErrAbortHandler)
		}
		door.EndWrite(w)
	}}, nil
}
