package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const storeFirst, storeLongest = time.Second, 30 * time.Second

// store stores the declared outputs of an allocation whose command succeeded on its node. Only
// after that has the allocation succeeded: until then the log has it as running. A crash of the
// server before that is harmless. The agent reports the same end to the next leader, which stores
// the outputs again under the same keys.
func (s *session) store(ctx context.Context, row *state.Alloc, r *wire.AllocReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storing[r.ID] {
		return
	}
	s.storing[r.ID] = true
	report := *r
	// Take no more outputs than the job declared, whatever the agent says.
	report.Outputs = r.Outputs[:min(len(r.Outputs), len(row.Run.Spec.Outputs))]
	if rank(row.Status) < rank(muster.AllocRunning) {
		s.updateLocked(state.AllocUpdate{ID: r.ID, Status: muster.AllocRunning, Started: r.Started})
	}
	s.g.Go(func() error {
		if u, ok := s.storeFiles(ctx, row, &report); ok {
			s.update(u)
		}
		return nil
	})
}

// storeFiles tries until the outputs are stored or given up. It reports false if the contact ends
// first; the next contact then tries again.
func (s *session) storeFiles(ctx context.Context, row *state.Alloc, r *wire.AllocReport) (state.AllocUpdate, bool) {
	s.n.mu.Lock()
	// The time limit counts from the first attempt, also over sessions.
	since, again := s.n.storing[r.ID]
	if !again {
		since = time.Now()
		s.n.storing[r.ID] = since
	}
	s.n.mu.Unlock()
	defer s.n.l.noteUnstored(r.ID, row.UID, nil)
	var stored int64
	for delay := storeFirst; ; delay = min(2*delay, storeLongest) {
		files, size, err := s.storeOnce(ctx, r)
		if ctx.Err() != nil {
			return state.AllocUpdate{}, false
		}
		stored = max(stored, size)
		u := s.updateOf(row, r)
		if u.Output == nil {
			u.Output = &state.Output{}
		}
		// Count what is stored even if the rest is given up. It is deleted with the job.
		u.Output.BlobBytes = stored
		if err == nil {
			u.Output.Files, u.Output.BlobBytes = files, size
			return u, true
		}
		s.n.l.stats.shipFaults.Add(1)
		row = s.n.l.cfg.State.Latest().Alloc(r.ID)
		var large *outputTooLarge
		var longer *outputLonger
		switch {
		case row == nil || !row.Live():
			return u, false
		case row.Desired == muster.AllocStop:
			u.Outcome, u.Failure = muster.OutcomeStopped, nil
			return u, true
		case errors.As(err, &large):
			u.Outcome = muster.OutcomeFailed
			u.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonOutputNotStored, Message: large.Error()}
			return u, true
		case errors.As(err, &longer):
			u.Outcome = muster.OutcomeFailed
			// The node broke its word about the size.
			u.Failure = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonOutputNotStored, Message: fmt.Sprintf("output %s: node %s %v", muster.Truncate(longer.of.Path, maxMessage/2), s.n.id, longer)}
			return u, true
		case muster.IsKind(err, muster.FaultNotFound), time.Since(since) >= s.n.l.cfg.StoreFor:
			// The node no longer has them, or the blob store has failed for too long.
			u.Outcome = muster.OutcomeFailed
			u.Failure = &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonOutputNotStored,
				Message: fmt.Sprintf("its declared outputs could not be stored: %v", err)}
			return u, true
		}
		s.n.l.noteUnstored(r.ID, row.UID, err)
		if delay == storeFirst {
			s.n.log.Warn("declared outputs not stored, trying again", "alloc", r.ID, "error", err)
		}
		wait.For(ctx, delay)
	}
}

// unstored is an allocation whose command succeeded and whose declared outputs are not stored.
type unstored struct {
	job muster.JobUID
	why error
}

// noteUnstored records why the declared outputs of an allocation are not stored; nil ends that.
func (l *Link) noteUnstored(id muster.AllocID, job muster.JobUID, why error) {
	l.unstoredMu.Lock()
	defer l.unstoredMu.Unlock()
	if why == nil {
		delete(l.unstored, id)
		return
	}
	l.unstored[id] = unstored{job, why}
}

// Unstored returns how many members of a job have finished their command and wait for their
// declared outputs to be stored, after an attempt failed. It also returns the error of one of them.
func (l *Link) Unstored(job muster.JobUID) (members int, why error) {
	l.unstoredMu.Lock()
	defer l.unstoredMu.Unlock()
	for _, u := range l.unstored {
		if u.job == job {
			members, why = members+1, u.why
		}
	}
	return members, why
}

// storeOnce copies each declared output from the node to the blob store. It returns the files and
// their total size in bytes. With an error, the size is that of the outputs that were stored before
// it.
func (s *session) storeOnce(ctx context.Context, r *wire.AllocReport) ([]state.OutputFile, int64, error) {
	select {
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case s.n.l.ships <- struct{}{}:
		defer func() { <-s.n.l.ships }()
	}
	if err := s.n.l.tight(); err != nil {
		return nil, 0, err
	}
	row := s.n.l.cfg.State.Latest().Alloc(r.ID)
	if row == nil {
		return nil, 0, muster.Faultf(muster.FaultNotFound, "allocation %s: not found", r.ID)
	}
	if err := checkOutputs(r.Outputs, s.n.l.cfg.OutputMost()); err != nil {
		return nil, 0, err
	}
	var total int64
	files := make([]state.OutputFile, 0, len(r.Outputs))
	for i, o := range r.Outputs {
		in, err := s.n.bulk.CollectedOutput(ctx, r.ID, i)
		if err != nil {
			return nil, total, fmt.Errorf("output %s: %w", o.Path, err)
		}
		// The key depends on the allocation and the index of the output only, so a retry replaces
		// what an earlier attempt stored.
		size, err := s.n.l.cfg.Blobs.Put(ctx, blob.OutputKey(row.Run.Key.Namespace, row.UID, r.ID, i), &watched{r: in, tight: s.n.l.tight, left: o.Size, of: o})
		_ = in.Close()
		if err != nil {
			return nil, total, fmt.Errorf("output %s: %w", o.Path, err)
		}
		s.n.l.stats.shipped.Add(uint64(size))
		files = append(files, state.OutputFile{Path: muster.Truncate(o.Path, maxPath), Size: size})
		total += size
	}
	return files, total, nil
}

// watchEvery is how many bytes of a declared output are stored between two checks of the free disk.
const watchEvery = 8 << 20

type outputTooLarge struct{ most int64 }

func (e *outputTooLarge) Error() string {
	return fmt.Sprintf("its declared outputs are larger than %s together, the most that the server stores (blob.quota); declare less, or raise the quota", muster.Bytes(e.most))
}

type outputLonger struct{ of wire.OutputReport }

func (e *outputLonger) Error() string {
	return fmt.Sprintf("sent more than the %s that it reported", muster.Bytes(e.of.Size))
}

// checkOutputs refuses outputs whose reported sizes add up to more than most bytes; 0 means no
// limit.
func checkOutputs(outputs []wire.OutputReport, most int64) error {
	left := most
	for _, o := range outputs {
		if left -= max(o.Size, 0); most > 0 && left < 0 {
			return &outputTooLarge{most}
		}
	}
	return nil
}

// watched reads a declared output and stops early: with errTight once the disk is nearly full,
// because one output may be larger than what is free, and with outputLonger after left bytes.
type watched struct {
	r     io.Reader
	tight func() error
	// left is how many bytes may still come; since counts bytes since the last check.
	left  int64
	of    wire.OutputReport
	since int
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.left -= int64(n); n > 0 && w.left < 0 {
		return 0, &outputLonger{w.of}
	}
	if w.since += n; w.since >= watchEvery {
		w.since = 0
		if err := w.tight(); err != nil {
			return n, err
		}
	}
	return n, err
}

// pushRetry is the delay after a failed push or grant. The agent asks again anyway.
const pushRetry = 3 * time.Second

// push sends the inputs and the parts of images that the agent asks for. Each is sent by one
// goroutine at a time.
func (s *session) push(ctx context.Context, digests []string) {
	needed := s.n.neededUploads()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range digests {
		// Uploads of all namespaces share one store. A node gets only those of its own allocations.
		if s.pushing[digest] || blob.CheckDigest(digest) != nil || len(s.pushing) >= maxAsked {
			continue
		}
		open, slots := s.n.upload(digest), s.n.l.ships
		if !needed[digest] {
			open, slots = s.n.cached(digest), s.n.l.parts
		}
		if open == nil {
			continue
		}
		s.pushing[digest] = true
		s.g.Go(func() error {
			if err := s.pushOne(ctx, digest, open, slots); err != nil && ctx.Err() == nil {
				s.n.log.Warn("input or part of an image not pushed", "digest", digest, "error", err)
				// The digest stays in pushing meanwhile, so that no other attempt starts.
				wait.For(ctx, pushRetry)
			}
			s.mu.Lock()
			delete(s.pushing, digest)
			s.mu.Unlock()
			return nil
		})
	}
}

// opener opens what is pushed to a node.
type opener func(context.Context) (io.ReadCloser, error)

// upload returns how to open an upload of the blob store.
func (n *nodeLink) upload(digest string) opener {
	return func(ctx context.Context) (io.ReadCloser, error) {
		return n.l.cfg.Blobs.Open(ctx, blob.UploadKey(digest), 0)
	}
}

// pushOne sends one blob. An upload shares the limit of the shippers, because it uses the blob store
// too. A part of a cached image has a limit of its own, because it may wait for a registry.
func (s *session) pushOne(ctx context.Context, digest string, open opener, slots chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case slots <- struct{}{}:
		defer func() { <-slots }()
	}
	in, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := s.n.bulk.PutInput(ctx, digest, in); err != nil {
		return err
	}
	s.n.l.stats.inputs.Add(1)
	return nil
}

// OpenOutput reads a stream of an allocation live from its node. It returns the offset of the first
// byte, which is later than the requested one if the bytes between were dropped. A read error other
// than io.EOF means that bytes are missing. The caller must close the reader.
func (l *Link) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	nl := l.node(a.Node)
	if nl == nil {
		return nil, 0, muster.Faultf(muster.FaultUnavailable, "node %s cannot be reached", a.Node)
	}
	r, err := nl.client.Stream(ctx, a.ID, stream, offset, follow)
	if err != nil {
		return nil, 0, ofNode(a.Node, err)
	}
	return r, r.Start, nil
}
