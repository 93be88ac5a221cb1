package link

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// recall lists what is stored of an output, if that is not known: an earlier leader may have
// shipped it, or a call to the store failed and may have stored something.
func (l *Link) recall(ctx context.Context, sh *ship, row *state.Alloc) error {
	sh.mu.Lock()
	listed := sh.listed
	sh.mu.Unlock()
	if listed {
		return nil
	}
	for i := range sh.streams {
		st := &sh.streams[i]
		infos, err := l.cfg.Blobs.List(ctx, blob.StreamPrefix(row.Run.Key.Namespace, row.UID, row.ID, st.name))
		if err != nil {
			return err
		}
		sh.mu.Lock()
		st.chunks, st.start, st.end = nil, 0, 0
		for _, info := range infos {
			offset, ok := blob.StreamOffset(info.Key)
			if !ok {
				continue
			}
			if n := len(st.chunks); n > 0 && st.chunks[n-1].offset+st.chunks[n-1].size != offset {
				// The output limit has dropped what is older than a gap.
				st.chunks = nil
			}
			st.chunks = append(st.chunks, chunk{offset, info.Size})
			st.end = offset + info.Size
		}
		if len(st.chunks) > 0 {
			st.start = st.chunks[0].offset
			sh.touched = true
		}
		sh.mu.Unlock()
	}
	sh.mu.Lock()
	sh.listed = true
	sh.mu.Unlock()
	return nil
}

// bulkFrom is from how many bytes on output uses the bulk connection. For less, it is not worth it.
const bulkFrom = 1 << 20

// backlog is how many bytes of a stream are on the node and not shipped, as last reported.
func (s *session) backlog(id muster.AllocID, st *stream) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[id]
	if k == nil || k.report == nil {
		return 0
	}
	if st.name == wire.Stderr {
		return k.report.Stderr.Size - st.end
	}
	return k.report.Stdout.Size - st.end
}

// shipStream stores a stream from the first byte that is not shipped up to its current end. final
// reports that the node says that no more will come. The caller holds the ship.
func (s *session) shipStream(ctx context.Context, sh *ship, st *stream, row *state.Alloc) (final bool, err error) {
	if err := s.n.l.tight(); err != nil {
		return false, err
	}
	client := s.n.client
	if s.backlog(sh.id, st) > bulkFrom {
		client = s.n.bulk
	}
	r, err := client.Stream(ctx, sh.id, st.name, st.end, false)
	if err != nil {
		return false, err
	}
	defer func() { _ = r.Close() }()
	if r.Start > st.end {
		// The node has dropped the bytes in between by the output limit. The stored ones are older.
		if err := s.dropChunks(ctx, sh, st, row, len(st.chunks)); err != nil {
			return false, err
		}
		// touched is set before the blob is stored: it may be stored from then on.
		sh.mu.Lock()
		st.start, st.end = r.Start, r.Start
		sh.mu.Unlock()
	}
	in := bufio.NewReaderSize(r, 32<<10)
	for {
		if _, err := in.Peek(1); err == io.EOF {
			return r.Final, nil
		} else if err != nil {
			return false, err
		}
		key := blob.StreamKey(row.Run.Key.Namespace, row.UID, row.ID, st.name, st.end)
		// The blob may have been stored all the same. Have it listed before the next attempt.
		sh.mu.Lock()
		sh.touched = true
		sh.mu.Unlock()
		size, err := s.n.l.cfg.Blobs.Put(ctx, key, io.LimitReader(in, maxChunk))
		if err != nil {
			// It may have been stored all the same: looked for before the next.
			sh.mu.Lock()
			sh.listed = false
			sh.mu.Unlock()
			return false, fmt.Errorf("%s: %w", st.name, err)
		}
		s.n.l.stats.shipped.Add(uint64(size))
		sh.mu.Lock()
		st.chunks = append(st.chunks, chunk{st.end, size})
		st.end += size
		spare := st.spare(sh.limit)
		sh.mu.Unlock()
		if err := s.dropChunks(ctx, sh, st, row, spare); err != nil {
			return false, err
		}
		if err := s.n.l.tight(); err != nil {
			return false, err
		}
	}
}

// spare is how many of the oldest chunks the output limit does not need.
func (st *stream) spare(limit int64) int {
	k, kept := 0, st.bytes()
	for limit > 0 && k < len(st.chunks)-1 && kept-st.chunks[k].size >= limit {
		kept -= st.chunks[k].size
		k++
	}
	return k
}

// dropChunks deletes the k oldest chunks. The blob goes first: after an error the chunk is still
// known and is deleted by the next attempt.
func (s *session) dropChunks(ctx context.Context, sh *ship, st *stream, row *state.Alloc, k int) error {
	for range k {
		old := st.chunks[0]
		err := s.n.l.cfg.Blobs.Delete(ctx, blob.StreamKey(row.Run.Key.Namespace, row.UID, row.ID, st.name, old.offset))
		if err != nil && !muster.IsKind(err, muster.FaultNotFound) {
			return fmt.Errorf("%s past its limit: %w", st.name, err)
		}
		sh.mu.Lock()
		st.chunks = st.chunks[1:]
		if len(st.chunks) > 0 {
			st.start = st.chunks[0].offset
		}
		sh.mu.Unlock()
	}
	return nil
}

// giveUpOutputs commits that the rest of a terminating node's output will not come. It runs when
// contact to the node has ended, or the node is gone. The node may have been terminating for a
// while by then.
func (l *Link) giveUpOutputs(ctx context.Context, row *state.Node, nl *nodeLink) {
	// After gone is closed nothing is shipped any more, so what is stored is final.
	select {
	case <-nl.gone:
	case <-ctx.Done():
		return
	}
	why := fmt.Sprintf("node %s was ended before all of it was stored", row.ID)
	if row.StageReason != "" {
		why += " (" + row.StageReason + ")"
	}
	snap := l.cfg.State.Latest()
	var left []*state.Alloc
	snap.OpenOutputs(row.ID, func(a *state.Alloc) bool {
		left = append(left, a)
		return true
	})
	// Allocations that ran until the node was gone are incomplete in the state already, but it does
	// not know how much of their output is stored.
	nl.mu.Lock()
	for id := range nl.ships {
		if a := snap.Alloc(id); a != nil && !a.Live() && a.Output.Stage == state.OutputIncomplete {
			left = append(left, a)
		}
	}
	nl.mu.Unlock()
	slices.SortFunc(left, func(a, b *state.Alloc) int { return cmp.Compare(a.ID, b.ID) })
	for _, a := range left {
		out := l.incomplete(ctx, nl, a)
		switch {
		case a.Output.Stage == state.OutputOpen:
			out.Why = why
		case a.Output.BlobBytes > 0 || out.BlobBytes == 0:
			// The state has that already, or there is nothing to add.
			continue
		}
		if err := nl.propose(ctx, &state.OutputStored{Alloc: a.ID, Output: out}); err != nil && ctx.Err() == nil {
			l.log.Warn("output not given up", "alloc", a.ID, "error", err)
		}
	}
}

// lookFor bounds the listing of an output that gets no more.
const lookFor = 10 * time.Second

// incomplete returns an output with what is stored of it. If the store cannot be listed in time, it
// counts what this link knows.
func (l *Link) incomplete(ctx context.Context, nl *nodeLink, a *state.Alloc) state.Output {
	out := state.Output{Stage: state.OutputIncomplete, Why: a.Output.Why, BlobBytes: a.Output.BlobBytes}
	nl.mu.Lock()
	sh := nl.ships[a.ID]
	nl.mu.Unlock()
	if sh == nil {
		sh = l.newShip(a)
	}
	lookCtx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	if err := l.recall(lookCtx, sh, a); err != nil {
		l.log.Debug("not known what is stored of an output", "alloc", a.ID, "error", err)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i, said := range [2]*state.Stream{&out.Stdout, &out.Stderr} {
		st := &sh.streams[i]
		*said = state.Stream{Size: st.end, Start: st.start}
		out.BlobBytes += st.bytes()
	}
	return out
}
