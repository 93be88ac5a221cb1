package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/fxamacker/cbor/v2"

	"github.com/musterhq/muster"
)

// An image is a stream of CBOR items: a header, then one tagged item per row,
// then an end mark with the count. Rows come in the order of their trees, so
// equal states write equal bytes. Derived indexes are not written.

const imageVersion = 1

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
	rowStarts rowTable = 40
)

type row struct {
	_     struct{} `cbor:",toarray"`
	Table rowTable
	Body  cbor.RawMessage
}

type imageHeader struct {
	Magic   string `cbor:"1,keyasint"`
	Version int    `cbor:"2,keyasint"`
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
	iw.item(imageHeader{imageMagic, imageVersion})
	iw.row(rowMeta, im.snap.meta)
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
	t.limits.Scan(func(l *NamespaceLimits) bool { iw.row(rowLimits, l); return iw.err == nil })
	t.paces.Scan(func(p *Pace) bool { iw.row(rowPace, p); return iw.err == nil })
	t.claims.Scan(func(c *Claim) bool { iw.row(rowClaim, c); return iw.err == nil })
	t.starts.Scan(func(m *starts) bool { iw.row(rowStarts, m); return iw.err == nil })
	rows := iw.rows
	iw.row(rowEnd, rows)
	if iw.err == nil {
		iw.err = bw.Flush()
	}
	return iw.n, iw.err
}

type imageWriter struct {
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
	if h.Version > imageVersion {
		return fmt.Errorf("read state image: version %d is newer than this Muster's %d", h.Version, imageVersion)
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

func (in *imageReader) row(item row) error {
	s := in.s
	read := func(v any) error { return s.codec.dec.Unmarshal(item.Body, v) }
	switch item.Table {
	case rowMeta:
		return read(&s.meta)
	case rowRun:
		r := &Run{}
		if err := read(r); err != nil {
			return err
		}
		in.runs[runKey{r.UID, r.Version}] = r
		return r.derive()
	case rowJob:
		j := &Job{}
		if err := read(j); err != nil {
			return err
		}
		if j.Run = in.runs[runKey{j.UID, j.Version}]; j.Run == nil {
			return fmt.Errorf("job %s has no spec", j.Key)
		}
		modified := j.Modified
		s.putJob(nil, j, "")
		j.Modified = modified
	case rowMember:
		m := &Member{}
		if err := read(m); err != nil {
			return err
		}
		s.putMember(nil, m)
	case rowAlloc:
		a := &Alloc{}
		if err := read(a); err != nil {
			return err
		}
		if a.Run = in.runs[runKey{a.UID, a.Version}]; a.Run == nil {
			return fmt.Errorf("allocation %s has no spec", a.ID)
		}
		modified := a.Modified
		s.putAlloc(nil, a, "")
		a.Modified = modified
	case rowNode:
		n := &Node{}
		if err := read(n); err != nil {
			return err
		}
		modified := n.Modified
		s.putNode(nil, n, "")
		n.Modified = modified
	case rowPool:
		p := &Pool{}
		if err := read(p); err != nil {
			return err
		}
		s.t.pools.Set(p)
	case rowBreaker:
		b := &Breaker{}
		if err := read(b); err != nil {
			return err
		}
		s.t.breakers.Set(b)
	case rowOffering:
		o := &muster.Offering{}
		if err := read(o); err != nil {
			return err
		}
		s.t.offers.Set(o)
	case rowReceipt:
		r := &Receipt{}
		if err := read(r); err != nil {
			return err
		}
		s.t.receipts.Set(r)
		s.t.receiptN.Set(r)
	case rowCost:
		c := &Cost{}
		if err := read(c); err != nil {
			return err
		}
		s.putCost(c)
	case rowPoolCost:
		c := &PoolCost{}
		if err := read(c); err != nil {
			return err
		}
		s.t.poolCosts.Set(c)
	case rowClaim:
		c := &Claim{}
		if err := read(c); err != nil {
			return err
		}
		modified := c.Modified
		s.putClaim(nil, c, "")
		c.Modified = modified
	default:
		return in.ofNamespaces(item.Table, read)
	}
	return nil
}

// ofNamespaces reads a row of shares, limits or paces, and of what is measured of pools.
func (in *imageReader) ofNamespaces(table rowTable, read func(any) error) error {
	s := in.s
	switch table {
	case rowShares:
		sh := &Shares{}
		if err := read(sh); err != nil {
			return err
		}
		s.t.shares = sh
	case rowLimits:
		l := &NamespaceLimits{}
		if err := read(l); err != nil {
			return err
		}
		s.t.limits.Set(l)
	case rowPace:
		p := &Pace{}
		if err := read(p); err != nil {
			return err
		}
		s.t.paces.Set(p)
		s.t.paceN.Set(p)
	case rowStarts:
		m := &starts{}
		if err := read(m); err != nil {
			return err
		}
		s.t.starts.Set(m)
	default:
		return fmt.Errorf("table %d is unknown", table)
	}
	return nil
}
