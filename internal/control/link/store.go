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

// store stores the declared outputs of an allocation that succeeded on its
// node; only then has it succeeded. Until then the log has it running.
func (s *session) store(ctx context.Context, row *state.Alloc, r *wire.AllocReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storing[r.ID] {
		return
	}
	s.storing[r.ID] = true
	report := *r
	// Not more than were asked for, whatever the agent says.
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

// storeFiles stores until it is done or given up; not ok if the contact ends first.
func (s *session) storeFiles(ctx context.Context, row *state.Alloc, r *wire.AllocReport) (state.AllocUpdate, bool) {
	s.n.mu.Lock()
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
		// Also if it is given up: what is stored by then is counted, and goes with the job.
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
			u.Failure = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonOutputNotStored, Message: fmt.Sprintf("output %s: node %s %v", muster.Truncate(longer.of.Path, maxMessage/2), s.n.id, longer)}
			return u, true
		case muster.IsKind(err, muster.FaultNotFound), time.Since(since) >= s.n.l.cfg.StoreFor:
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

// unstored is an allocation whose command has succeeded and whose declared outputs could not be stored yet.
type unstored struct {
	job muster.JobUID
	why error
}

// noteUnstored keeps why the declared outputs of an allocation were not stored; nil: that is over.
func (l *Link) noteUnstored(id muster.AllocID, job muster.JobUID, why error) {
	l.unstoredMu.Lock()
	defer l.unstoredMu.Unlock()
	if why == nil {
		delete(l.unstored, id)
		return
	}
	l.unstored[id] = unstored{job, why}
}

// Unstored returns how many members of a job have come to the end of their command and wait for their
// declared outputs to be stored, after that has failed, and the error of one of them.
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

// storeOnce brings each declared output from the node to the blob store.
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
		in, err := s.n.bulk.Outputs(ctx, r.ID, i)
		if err != nil {
			return nil, total, fmt.Errorf("output %s: %w", o.Path, err)
		}
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

// watchEvery is how many bytes of a declared output come between two looks at the free disk.
const watchEvery = 8 << 20

// outputTooLarge: the declared outputs of an allocation are larger than the store may be.
type outputTooLarge struct{ most int64 }

func (e *outputTooLarge) Error() string {
	return fmt.Sprintf("its declared outputs are larger than %s together, the most that the server stores (blob.quota); declare less, or raise the quota", muster.Bytes(e.most))
}

// outputLonger: a node sends more of an output than it has reported, maybe without an end.
type outputLonger struct{ of wire.OutputReport }

func (e *outputLonger) Error() string {
	return fmt.Sprintf("sent more than the %s that it reported", muster.Bytes(e.of.Size))
}

// checkOutputs refuses outputs that together are larger than most bytes by the word of their node; 0: no limit.
func checkOutputs(outputs []wire.OutputReport, most int64) error {
	left := most
	for _, o := range outputs {
		if left -= max(o.Size, 0); most > 0 && left < 0 {
			return &outputTooLarge{most}
		}
	}
	return nil
}

// watched ends with errTight once the disk is, as a declared output may be larger than what is free, and with outputLonger after
// left bytes.
type watched struct {
	r     io.Reader
	tight func() error
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

const pushRetry = 3 * time.Second

// push hands over inputs that the agent asks for, each by one at a time.
func (s *session) push(ctx context.Context, digests []string) {
	due := s.n.due()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range digests {
		// Uploads are everybody's: a node gets those of its own allocations only.
		if s.pushing[digest] || blob.CheckDigest(digest) != nil || !due[digest] || len(s.pushing) >= maxAsked {
			continue
		}
		s.pushing[digest] = true
		s.g.Go(func() error {
			if err := s.pushOne(ctx, digest); err != nil && ctx.Err() == nil {
				s.n.log.Warn("input not pushed", "digest", digest, "error", err)
				// The agent asks with each heartbeat until it gives up.
				wait.For(ctx, pushRetry)
			}
			s.mu.Lock()
			delete(s.pushing, digest)
			s.mu.Unlock()
			return nil
		})
	}
}

func (s *session) pushOne(ctx context.Context, digest string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.n.l.ships <- struct{}{}:
		defer func() { <-s.n.l.ships }()
	}
	in, err := s.n.l.cfg.Blobs.Open(ctx, blob.UploadKey(digest), 0)
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

// OpenOutput reads a stream of an allocation live from its node. It returns
// the offset of the first byte, later than asked for if what is between was dropped. An error other than io.EOF
// while reading says that bytes are missing.
func (l *Link) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	nl := l.node(a.Node)
	if nl == nil {
		return nil, 0, muster.Faultf(muster.FaultUnavailable, "node %s cannot be reached", a.Node)
	}
	r, err := nl.client.Output(ctx, a.ID, stream, offset, follow)
	if err != nil {
		return nil, 0, ofNode(a.Node, err)
	}
	return r, r.Start, nil
}
