package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/fxamacker/cbor/v2"

	"github.com/musterhq/muster"
)

// An image is a stream of CBOR items: a header, then one tagged item per row,
// then an end mark with the count. Rows come in the order of their trees, so
// equal states write equal bytes. Derived indexes are not written.

type rowTable uint8

const (
	rowEnd rowTable = iota
	rowMeta
	rowRun
	rowJob
	rowMember
	rowAlloc
	rowNode
	rowPool
	rowOffering
	rowReceipt
	rowBreaker
	rowCost
	rowPoolCost
	rowShares
	rowLimits
	rowPace
	rowClaim
	rowLoaded
	rowServers
	rowConfig
	rowStarts rowTable = 40

	rowBlock   rowTable = 30
	rowShelter rowTable = 31
	rowHost    rowTable = 32
)

type row struct {
	_     struct{} `cbor:",toarray"`
	Table rowTable
	Body  cbor.RawMessage
}

// imageHeader is what every version reads, so its fields are never changed.
type imageHeader struct {
	Magic  string `cbor:"1,keyasint"`
	Format Format `cbor:"2,keyasint"`
	// By is a version that reads it; empty: not known.
	By string `cbor:"3,keyasint,omitempty"`
}

const imageMagic = "muster-state"

// Image writes a snapshot out.
type Image struct {
	snap  *Snapshot
	codec codec
}

// Image of the latest snapshot, in O(1). Writing may go on beside Apply.
func (s *State) Image() *Image { return &Image{s.Latest(), s.codec} }

// WriteTo writes the image.
func (im *Image) WriteTo(w io.Writer) (int64, error) {
	bw := bufio.NewWriterSize(w, 1<<20)
	iw := &imageWriter{enc: im.codec.enc, w: bw}
	iw.item(imageHeader{imageMagic, im.format(), im.snap.meta.FormatBy})
	im.writeRows(iw)
	rows := iw.rows
	iw.row(rowEnd, rows)
	if iw.err == nil {
		iw.err = bw.Flush()
	}
	return iw.n, iw.err
}

// format is what a reader must know: the gate's format. Logs from before there was a gate may have
// brought more, and then it is what the rows need.
func (im *Image) format() Format {
	gate := im.snap.meta.LogFormat()
	if gate >= FormatNewest {
		return gate
	}
	needs := &imageWriter{needs: &need{format: gate}}
	im.writeRows(needs)
	return needs.needs.format
}

func (im *Image) writeRows(iw *imageWriter) {
	iw.row(rowMeta, &im.snap.meta)
	t := im.snap.t
	runs := map[*Run]bool{}
	run := func(r *Run) {
		if !runs[r] {
			runs[r] = true
			iw.row(rowRun, r)
		}
	}
	t.jobsUID.Scan(func(j *Job) bool { run(j.Run); iw.row(rowJob, j); return iw.err == nil })
	t.members.Scan(func(m *Member) bool { iw.row(rowMember, m); return iw.err == nil })
	t.nodes.Scan(func(n *Node) bool { iw.row(rowNode, n); return iw.err == nil })
	t.allocs.Scan(func(a *Alloc) bool { run(a.Run); iw.row(rowAlloc, a); return iw.err == nil })
	t.pools.Scan(func(p *Pool) bool { iw.row(rowPool, p); return iw.err == nil })
	t.breakers.Scan(func(b *Breaker) bool { iw.row(rowBreaker, b); return iw.err == nil })
	t.offers.Scan(func(o *muster.Offering) bool { iw.row(rowOffering, o); return iw.err == nil })
	t.receipts.Scan(func(r *Receipt) bool { iw.row(rowReceipt, r); return iw.err == nil })
	cost := func(c *Cost) bool { iw.row(rowCost, c); return iw.err == nil }
	t.sumCosts.Scan(cost)
	t.jobCosts.Scan(cost)
	t.poolCosts.Scan(func(c *PoolCost) bool { iw.row(rowPoolCost, c); return iw.err == nil })
	if t.shares != nil {
		iw.row(rowShares, t.shares)
	}
	if t.config != nil {
		iw.row(rowConfig, t.config)
	}
	t.limits.Scan(func(l *NamespaceLimits) bool { iw.row(rowLimits, l); return iw.err == nil })
	t.loaded.Scan(func(im *LoadedImage) bool { iw.row(rowLoaded, im); return iw.err == nil })
	if len(t.serverList()) > 0 {
		iw.row(rowServers, t.servers)
	}
	t.paces.Scan(func(p *Pace) bool { iw.row(rowPace, p); return iw.err == nil })
	t.claims.Scan(func(c *Claim) bool { iw.row(rowClaim, c); return iw.err == nil })
	t.starts.Scan(func(m *starts) bool { iw.row(rowStarts, m); return iw.err == nil })
	t.blocks.Scan(func(b *Block) bool { iw.row(rowBlock, b); return iw.err == nil })
	t.shelters.Scan(func(s *Shelter) bool { iw.row(rowShelter, s); return iw.err == nil })
	t.hosts.Scan(func(h *Host) bool { iw.row(rowHost, h); return iw.err == nil })
}

type imageWriter struct {
	// needs, unless nil, gets what the rows need, and nothing is written.
	needs *need

	enc  cbor.EncMode
	w    io.Writer
	n    int64
	rows uint64
	err  error
}

func (w *imageWriter) item(v any) {
	if w.err != nil {
		return
	}
	b, err := w.enc.Marshal(v)
	if err == nil {
		_, err = w.w.Write(b)
		w.n += int64(len(b))
	}
	w.err = err
}

func (w *imageWriter) row(t rowTable, v any) {
	if w.err != nil {
		return
	}
	if w.needs != nil {
		name := "row " + strconv.Itoa(int(t))
		w.needs.raise(since[name], name)
		w.needs.walk(reflect.ValueOf(v))
		return
	}
	b, err := w.enc.Marshal(v)
	if err != nil {
		w.err = fmt.Errorf("encode %T: %w", v, err)
		return
	}
	w.rows++
	w.item(row{Table: t, Body: b})
}

// Restore replaces the whole state by an image. On error the state is unchanged.
func (s *State) Restore(r io.Reader) error {
	dec := s.codec.dec.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	var h imageHeader
	if err := dec.Decode(&h); err != nil {
		return fmt.Errorf("read state image: %w", err)
	}
	if h.Magic != imageMagic {
		return errors.New("read state image: this is not one")
	}
	if h.Format > FormatNewest {
		return &NewerError{Format: h.Format, By: h.By}
	}
	in := &imageReader{s: &State{codec: s.codec, t: newTables(), feed: newFeed(16),
		uses: map[muster.Namespace]*NamespaceUse{}, used: map[muster.Namespace]bool{}}, runs: map[runKey]*Run{}}
	for {
		var item row
		if err := dec.Decode(&item); err != nil {
			return fmt.Errorf("read state image after %d rows: %w", in.rows, err)
		}
		if item.Table == rowEnd {
			var n uint64
			if err := s.codec.dec.Unmarshal(item.Body, &n); err != nil || n != in.rows {
				return fmt.Errorf("read state image: it has %d rows, its end mark says %d", in.rows, n)
			}
			break
		}
		if err := in.row(item); err != nil {
			return fmt.Errorf("read state image, row %d: %w", in.rows+1, err)
		}
		in.rows++
	}
	s.t, s.meta, s.uses, s.used = in.s.t, in.s.meta, in.s.uses, in.s.used
	s.publish()
	s.feed.reset(s.meta.Index)
	return nil
}

type runKey struct {
	uid     muster.JobUID
	version uint64
}

type imageReader struct {
	s    *State
	runs map[runKey]*Run
	rows uint64
}

// newRow is an empty row of a table; nil if the table is unknown.
func newRow(table rowTable) any {
	switch table {
	case rowMeta:
		return &Meta{}
	case rowRun:
		return &Run{}
	case rowJob:
		return &Job{}
	case rowMember:
		return &Member{}
	case rowAlloc:
		return &Alloc{}
	case rowNode:
		return &Node{}
	case rowPool:
		return &Pool{}
	case rowOffering:
		return &muster.Offering{}
	case rowReceipt:
		return &Receipt{}
	case rowBreaker:
		return &Breaker{}
	case rowCost:
		return &Cost{}
	case rowPoolCost:
		return &PoolCost{}
	case rowShares:
		return &Shares{}
	case rowConfig:
		return &AppliedConfig{}
	case rowLimits:
		return &NamespaceLimits{}
	case rowLoaded:
		return &LoadedImage{}
	case rowServers:
		return &Servers{}
	case rowPace:
		return &Pace{}
	case rowClaim:
		return &Claim{}
	case rowStarts:
		return &starts{}
	case rowBlock:
		return &Block{}
	case rowShelter:
		return &Shelter{}
	case rowHost:
		return &Host{}
	}
	return nil
}

func (in *imageReader) row(item row) error {
	v := newRow(item.Table)
	if v == nil {
		return fmt.Errorf("table %d is unknown: %w", item.Table, &NewerError{})
	}
	if err := in.s.codec.read(item.Body, v); err != nil {
		return err
	}
	return in.put(v)
}

// put puts a row into its tree, as it is.
func (in *imageReader) put(v any) error {
	s := in.s
	switch v := v.(type) {
	case *Meta:
		s.meta = *v
	case *Run:
		in.runs[runKey{v.UID, v.Version}] = v
		return v.derive()
	case *Job:
		if v.Run = in.runs[runKey{v.UID, v.Version}]; v.Run == nil {
			return fmt.Errorf("job %s has no spec", v.Key)
		}
		modified := v.Modified
		s.putJob(nil, v, "")
		v.Modified = modified
	case *Member:
		s.putMember(nil, v)
	case *Alloc:
		if v.Run = in.runs[runKey{v.UID, v.Version}]; v.Run == nil {
			return fmt.Errorf("allocation %s has no spec", v.ID)
		}
		modified := v.Modified
		s.putAlloc(nil, v, "")
		v.Modified = modified
	case *Node:
		modified := v.Modified
		s.putNode(nil, v, "")
		v.Modified = modified
	case *Pool:
		s.t.pools.Set(v)
	case *Breaker:
		s.t.breakers.Set(v)
	case *muster.Offering:
		s.t.offers.Set(v)
	case *Receipt:
		s.t.putReceipt(v)
	case *Cost:
		s.t.putCost(v)
	case *PoolCost:
		s.t.poolCosts.Set(v)
	case *Claim:
		modified := v.Modified
		s.putClaim(nil, v, "")
		v.Modified = modified
	case *Shares:
		s.t.shares = v
	case *AppliedConfig:
		s.t.config = v
	case *NamespaceLimits:
		s.t.limits.Set(v)
	case *LoadedImage:
		s.t.loaded.Set(v)
	case *Servers:
		s.t.servers = v
	case *Pace:
		s.t.paces.Set(v)
		s.t.paceN.Set(v)
	case *starts:
		s.t.starts.Set(v)
	case *Block:
		s.t.blocks.Set(v)
	case *Shelter:
		s.t.shelters.Set(v)
	case *Host:
		s.t.putHost(v)
	}
	return nil
}
