package raftlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/raftlog/image"
)

// keyCurrentTerm is where raft keeps its term in the StableStore.
var keyCurrentTerm = []byte("CurrentTerm")

// restoreSegment is the size of the empty segment that the next server replaces.
const restoreSegment = 64 << 10

// BackupInfo says what a backup holds.
type BackupInfo struct {
	Index uint64    `json:"index"` // the last entry that is in it
	Term  uint64    `json:"term"`
	Made  time.Time `json:"made"` // by the leader's clock, of that entry
}

// Backup writes the state as it is now to w, as one file that Restore reads. It
// holds up nothing, needs no room on the server's disk, and contains everything
// that this server has confirmed before the call.
func (l *Log) Backup(ctx context.Context, w io.Writer) (BackupInfo, error) {
	p, err := l.driver.take()
	if err != nil {
		return BackupInfo{}, fmt.Errorf("backup: %w", err)
	}
	if p.index == 0 {
		return BackupInfo{}, errors.New("backup: there is nothing yet to back up")
	}
	out, err := image.NewWriter(ctxWriter{ctx, w}, image.Header{Made: p.at, Index: p.index, Term: p.term})
	if err == nil {
		_, err = p.WriteTo(out)
	}
	if err == nil {
		err = out.Finish()
	}
	if err != nil {
		return BackupInfo{}, fmt.Errorf("backup: %w", err)
	}
	return p.info(), nil
}

// ReadBackup reads a whole backup and says what it holds. A cut, a changed bit or bytes behind the end are
// ErrDamaged. Whether a server of this version understands the state in it, only Restore finds out.
func ReadBackup(r io.Reader) (BackupInfo, error) {
	body, h, err := image.NewReader(r)
	if err != nil {
		return BackupInfo{}, err
	}
	p, err := readPoint(body, h)
	if err != nil {
		return BackupInfo{}, err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return BackupInfo{}, err
	}
	return p.info(), atEnd(r)
}

// readPoint reads what comes before the machine's own bytes, which is to agree with the header.
func readPoint(body *image.Reader, h image.Header) (p point, err error) {
	err = p.readFrom(body)
	if err == nil && (p.index != h.Index || p.term != h.Term || p.index == 0) {
		err = fmt.Errorf("%w: its header and its state disagree", ErrDamaged)
	}
	return p, err
}

// atEnd says whether nothing follows a backup in its file.
func atEnd(r io.Reader) error {
	if n, err := r.Read(make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows its end", ErrDamaged)
	}
	return nil
}

func (p *point) info() BackupInfo {
	return BackupInfo{Index: p.index, Term: p.term, Made: time.UnixMicro(p.at).UTC()}
}

// ctxWriter stops writing when ctx ends.
type ctxWriter struct {
	ctx context.Context
	w   io.Writer
}

func (w ctxWriter) Write(b []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	return w.w.Write(b)
}

// Restore makes a data directory from a backup. The directory must be empty or
// missing; if Restore fails, it is empty again. The server that opens it next
// is alone, whatever the one was that the backup is of, and Restored tells it
// where it comes from.
func Restore(dir string, r io.Reader) (_ BackupInfo, err error) {
	dir = filepath.Clean(dir)
	wrap := func(err error) error { return fmt.Errorf("restore into %s: %w", dir, err) }
	switch empty, err := emptyBut(dir, lostFound); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return BackupInfo{}, wrap(err)
	case err == nil && !empty:
		return BackupInfo{}, wrap(ErrNotEmpty)
	}
	d, err := openDirectory(dir)
	if err != nil {
		return BackupInfo{}, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	info, err := d.restoreIfEmpty(r)
	if err != nil {
		return BackupInfo{}, wrap(err)
	}
	return info, nil
}

// restoreIfEmpty looks once more: between the first look and the lock somebody
// else may have been quick, and what is there then is not for this one to wipe.
func (d *directory) restoreIfEmpty(r io.Reader) (_ BackupInfo, err error) {
	empty, err := emptyBut(d.path, lostFound, lockName)
	if err != nil {
		return BackupInfo{}, err
	}
	if !empty {
		return BackupInfo{}, ErrNotEmpty
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.wipe())
		}
	}()
	return d.restore(r)
}

// restore writes the format file last: without it the directory is refused.
func (d *directory) restore(r io.Reader) (BackupInfo, error) {
	body, h, err := image.NewReader(r)
	if err != nil {
		return BackupInfo{}, fmt.Errorf("the backup: %w", err)
	}
	p, err := d.restoreSnapshot(body, h)
	if err != nil {
		return BackupInfo{}, err
	}
	if err := atEnd(r); err != nil {
		return BackupInfo{}, fmt.Errorf("the backup: %w", err)
	}
	// The term goes on where the backup left it: what was fenced stays fenced.
	l := newLatch(d.path, nil, nil) // never armed: errors are returned
	st, err := openStore(d.file(logName), restoreSegment, 1, l, &hcLogger{to: discard, alone: true})
	if err != nil {
		return BackupInfo{}, err
	}
	if err := errors.Join(st.SetUint64(keyCurrentTerm, p.term), st.close(), atomicfile.SyncDir(d.file(logName))); err != nil {
		return BackupInfo{}, err
	}
	info := p.info()
	b, err := json.Marshal(info)
	if err != nil {
		return BackupInfo{}, err
	}
	if err := atomicfile.Write(d.file(restoredName), append(b, '\n')); err != nil {
		return BackupInfo{}, err
	}
	return info, d.begin()
}

// restoreSnapshot makes the backup the first snapshot of a server alone.
func (d *directory) restoreSnapshot(body *image.Reader, h image.Header) (p point, err error) {
	dir := d.file(snapshotName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, err
	}
	f, err := os.OpenFile(filepath.Join(dir, snapshotID(h.Index, h.Term)+snapshotSuffix), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if p, err = readPoint(body, h); err != nil {
		return p, fmt.Errorf("the backup: %w", err)
	}
	h.Configuration, h.ConfigurationIndex = configurationAlone(d.server), 1
	w, err := image.NewWriter(f, h)
	if err != nil {
		return p, err
	}
	p.image = readerImage{body}
	if _, err := p.WriteTo(w); err != nil {
		return p, fmt.Errorf("the backup: %w", err)
	}
	if err := w.Finish(); err != nil {
		return p, err
	}
	return p, errors.Join(f.Sync(), atomicfile.SyncDir(dir), atomicfile.SyncDir(d.path))
}

// readerImage is the rest of an image that is being read.
type readerImage struct{ r io.Reader }

func (i readerImage) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, i.r) }

func configurationAlone(server string) raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(server), Address: aloneAddress,
	}}}
}

// wipe removes what this package may have put into a directory that was empty.
func (d *directory) wipe() error {
	var errs []error
	for _, name := range []string{formatName, restoredName, joiningName, logName, snapshotName, lockName} {
		errs = append(errs, os.RemoveAll(d.file(name)))
	}
	return errors.Join(errs...)
}

// Restored says whether this directory comes from a backup and has not begun a
// new epoch since. Whoever sees true proposes a new epoch and then calls
// TakeRestored. After a crash between the two there is one epoch more, which
// does no harm.
func (l *Log) Restored() (BackupInfo, bool) {
	l.restored.mu.Lock()
	defer l.restored.mu.Unlock()
	return l.restored.info, l.restored.is
}

// TakeRestored makes Restored false, durably.
func (l *Log) TakeRestored() error {
	if _, is := l.Restored(); !is {
		return nil
	}
	if err := os.Remove(l.dir.file(restoredName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory %s: %w", l.dir.path, err)
	}
	if err := atomicfile.SyncDir(l.dir.path); err != nil {
		return fmt.Errorf("data directory %s: %w", l.dir.path, err)
	}
	l.restored.mu.Lock()
	defer l.restored.mu.Unlock()
	l.restored.is = false
	return nil
}

// readRestored reads the marker that Restore left.
func (d *directory) readRestored() (info BackupInfo, is bool, err error) {
	b, err := os.ReadFile(d.file(restoredName))
	if errors.Is(err, fs.ErrNotExist) {
		return info, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &info)
	}
	if err != nil {
		return info, false, fmt.Errorf("data directory %s: %s: %w", d.path, restoredName, err)
	}
	return info, true, nil
}
