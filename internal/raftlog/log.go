package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/clock"
)

// Defaults of Config.
const (
	DefaultSnapshotEvery  = 8192
	DefaultSnapshotBytes  = 64 << 20
	DefaultSnapshotRetain = 2
	DefaultSegmentSize    = 64 << 20
)

// Config is what a Log is made of. Dir and Machine are needed.
type Config struct {
	Dir     string
	Machine Machine
	Logger  *slog.Logger

	// A snapshot is due after this many entries or bytes of log, and when the
	// log since the last one is as large as that one was.
	SnapshotEvery  uint64
	SnapshotBytes  uint64
	SnapshotRetain int // snapshots kept; the log reaches back to the oldest
	SegmentSize    int // bytes of one file of the log, allocated at once

	// LowWater is the free space below which users' writes are refused, for a
	// file system of the given size; nil means the larger of 1 GiB and 5 %.
	LowWater func(total uint64) uint64

	// Fatal is told of the first storage error, or of an entry that is not
	// understood, and should not return: nil
	// means one sentence on standard error and exit status 74. It must not call
	// the log. If it returns, everybody who waits is told, and Run ends with the
	// error. Either way nothing is acknowledged that was not on disk before.
	Fatal func(error)

	Cluster *Cluster // nil: a server alone
	Fault   Fault    // for tests and simulation
}

func (c Config) withDefaults() Config {
	c.Logger = cmp.Or(c.Logger, discard)
	c.SnapshotEvery = cmp.Or(c.SnapshotEvery, DefaultSnapshotEvery)
	c.SnapshotBytes = cmp.Or(c.SnapshotBytes, DefaultSnapshotBytes)
	c.SnapshotRetain = cmp.Or(c.SnapshotRetain, DefaultSnapshotRetain)
	c.SegmentSize = cmp.Or(c.SegmentSize, DefaultSegmentSize)
	if c.LowWater == nil {
		c.LowWater = defaultLowWater
	}
	if c.Fatal == nil {
		c.Fatal = exit
	}
	return c
}

var discard = slog.New(slog.DiscardHandler)

// Log is an open log. Its methods may be called by many goroutines.
type Log struct {
	log    *slog.Logger
	dir    *directory
	latch  *latch
	store  *store
	snaps  *snapshots
	driver *driver
	gather *gatherer
	lead   *leadership
	disk   *disk
	raft   *raft.Raft
	notify chan bool // raft tells of leadership
	used   atomic.Bool
	// address is where others reach this server; empty for a server alone.
	address string
	// stopping is closed when Run or Close begins to stop.
	stopping chan struct{}
	// ask asks another server for its term, in rounds that last for patience at most. Nil for a server alone.
	ask      func(context.Context, Member) (uint64, error)
	patience time.Duration
	rounds   rounds
	endReads context.CancelFunc

	restored struct {
		mu   sync.Mutex
		info BackupInfo
		is   bool
	}
}

// Open locks the data directory, brings what a crash left into order, restores
// the newest snapshot and starts raft. The machine is called from here on. Run
// or Close must follow.
func Open(c Config) (_ *Log, err error) {
	if c.Dir == "" || c.Machine == nil {
		return nil, errors.New("raftlog: a directory and a machine are needed")
	}
	if c.Cluster != nil && (c.Cluster.Transport == nil || c.Cluster.Term == nil) {
		return nil, errors.New("raftlog: a cluster needs Transport and Term")
	}
	c = c.withDefaults()
	l := &Log{
		log:    c.Logger,
		latch:  newLatch(c.Dir, c.Fault, c.Fatal),
		gather: newGatherer(),
		lead:   newLeadership(),
		disk:   &disk{dir: c.Dir, mark: c.LowWater},
		notify: make(chan bool), stopping: make(chan struct{}),
	}
	if l.dir, err = openDirectory(c.Dir); err != nil {
		return nil, err
	}
	l.rounds.ending, l.endReads = context.WithCancel(context.Background())
	if c.Cluster != nil {
		l.ask, l.patience = c.Cluster.Term, cmp.Or(c.Cluster.Heartbeat, heartbeat)
		l.address = string(c.Cluster.Address)
		l.dir.server = cmp.Or(string(c.Cluster.self), l.dir.server)
	}
	defer func() {
		if err == nil {
			return
		}
		if e := l.latch.early.Load(); e != nil { // raft and raft-wal flatten it to text
			err = e
		}
		err = errors.Join(err, l.closeStores())
	}()
	if err := l.openStores(c); err != nil {
		return nil, err
	}
	l.driver = &driver{
		machine: c.Machine,
		latch:   l.latch,
		due:     make(chan struct{}, 1),
		every:   c.SnapshotEvery,
		bytes:   c.SnapshotBytes,
		size:    l.snaps.newestSize,
		clock:   clock.Steady{Logger: l.log},
	}
	if err := l.startRaft(c); err != nil {
		return nil, err
	}
	return l, nil
}

// openStores opens everything below raft.
func (l *Log) openStores(c Config) (err error) {
	if l.restored.info, l.restored.is, err = l.dir.readRestored(); err != nil {
		return err
	}
	_, noLog := os.Lstat(l.dir.file(logName))
	if err := l.dir.begin(); err != nil {
		return err
	}
	if l.snaps, err = openSnapshots(l.dir.file(snapshotName), c.SnapshotRetain, l.latch, c.Logger); err != nil {
		return err
	}
	oldest, some := l.snaps.oldest()
	if some && noLog != nil {
		return fmt.Errorf("data directory %s: %w: it has snapshots but no %q", l.dir.path, ErrDamaged, logName)
	}
	logger := &hcLogger{to: c.Logger, name: "log", alone: c.Cluster == nil}
	entries := 1 // the committer has only one on its way
	if c.Cluster != nil {
		entries = raft.DefaultConfig().MaxAppendEntries + 1 // what a follower may get, and a leader one more
	}
	if l.store, err = openStore(l.dir.file(logName), c.SegmentSize, entries, l.latch, logger); err != nil {
		return err
	}
	if c.Cluster != nil {
		l.store.recent = &recent{}
	}
	if err := atomicfile.SyncDir(l.dir.path); err != nil { // the two may be new in it
		return l.latch.trip(OpSegment, err)
	}
	l.store.oldestSnapshot = l.snaps.oldest
	first, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	if first > 1 && (!some || oldest+1 < first) {
		return fmt.Errorf("data directory %s: %w: the entries before %d are gone and no snapshot has them; restore a backup", l.dir.path, ErrDamaged, first)
	}
	return nil
}

// startRaft founds the cluster if everything is fresh, and starts raft's
// goroutines.
func (l *Log) startRaft(c Config) (err error) {
	conf := raft.DefaultConfig()
	conf.Logger = &hcLogger{to: c.Logger, name: "raft", alone: c.Cluster == nil}
	conf.NotifyCh = l.notify
	conf.NoLegacyTelemetry = true
	conf.ShutdownOnRemove = false
	// Snapshots are taken when the driver says so. Everything that may go then
	// goes, but for the last entry: a deletion of all means something else to
	// the store. DeleteRange keeps what the older snapshots need.
	conf.SnapshotThreshold = math.MaxUint64
	conf.SnapshotInterval = time.Hour
	conf.TrailingLogs = 1

	conf.LocalID = raft.ServerID(l.dir.server)
	servers, transport := configurationAlone(l.dir.server), raft.Transport(nil)
	if c.Cluster == nil {
		conf.PreVoteDisabled = true
		transport = newAlone()
	} else {
		transport = c.Cluster.Transport
		servers.Servers[0].Address = c.Cluster.Address
		if len(c.Cluster.Servers) > 0 {
			servers.Servers = c.Cluster.Servers
		}
		conf.HeartbeatTimeout = cmp.Or(c.Cluster.Heartbeat, heartbeat)
		conf.ElectionTimeout = conf.HeartbeatTimeout
		conf.LeaderLeaseTimeout = conf.HeartbeatTimeout / 2
	}
	if err := l.found(conf, transport, servers); err != nil {
		return err
	}
	// It panics where it cannot read an entry. While it starts, that is an error.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("data directory %s: %w: %v", l.dir.path, ErrDamaged, p)
		}
	}()
	l.raft, err = raft.NewRaft(conf, l.driver, l.store, l.store, l.snaps, transport)
	if unknown := (*Fatal)(nil); err != nil && errors.As(l.driver.restoreErr, &unknown) {
		return &StorageError{Dir: l.dir.path, Op: OpDecode, Err: fmt.Errorf("snapshot: %w", unknown)}
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w", l.dir.path, errors.Join(err, l.driver.restoreErr))
	}
	if err := l.arm(); err != nil {
		return err
	}
	if a, ok := transport.(alone); ok {
		if err := l.checkAlone(); err != nil {
			return errors.Join(err, l.raft.Shutdown().Error())
		}
		a.elect()
	}
	return nil
}

// checkAlone refuses to run without the others what is one of several: it could never be elected, and
// would say nothing about it.
func (l *Log) checkAlone() error {
	var others []string
	for _, m := range l.Members() {
		if m.Votes && m.ID != l.Self() {
			others = append(others, m.Address)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("data directory %s: it belongs to one of %d servers, and the configuration has no address for the others to reach it; the others are at %s",
		l.dir.path, len(others)+1, strings.Join(others, ", "))
}

// arm makes storage errors fatal from here on. raft runs already: what it may
// have been given to apply before is an error of Open's.
func (l *Log) arm() error {
	l.latch.armed.Store(true)
	if err := l.driver.stuck(); err != nil {
		return errors.Join(&StorageError{Dir: l.dir.path, Op: OpDecode, Err: err}, l.raft.Shutdown().Error())
	}
	return nil
}

// found writes the first configuration into a fresh log. raft records the term
// before the entry; after a crash between the two it would neither found the
// cluster nor have one, so that is taken back.
func (l *Log) found(conf *raft.Config, transport raft.Transport, servers raft.Configuration) error {
	last, err := l.store.LastIndex()
	if err != nil {
		return err
	}
	term, err := l.store.GetUint64(keyCurrentTerm)
	if err != nil {
		return err
	}
	_, some := l.snaps.oldest()
	_, single := transport.(alone)
	joining, err := l.dir.joining()
	switch {
	case err != nil:
		return err
	case joining && last == 0 && !some:
		return nil // the leader sends the configuration, too
	case joining:
		if err := l.dir.joined(); err != nil {
			return err
		}
	}
	switch {
	case last == 0 && !some && term == 1:
		if err := l.store.SetUint64(keyCurrentTerm, 0); err != nil {
			return err
		}
	case last == 0 && !some && term > 1, last == 0 && some && single && !l.restored.is:
		// Nobody is elected before the first entry is on disk, and a server alone keeps
		// the last one. Begun anew, it would wait for a leader for ever, or go on from an old state.
		return fmt.Errorf("data directory %s: %w: its log is empty and was not before, so a segment was deleted or emptied; restore a backup", l.dir.path, ErrDamaged)
	}
	err = raft.BootstrapCluster(conf, l.store, l.store, l.snaps, transport, servers)
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("data directory %s: %w", l.dir.path, err)
	}
	return nil
}

// Run does the log's work until ctx ends or the disk fails; then it lets the
// entries that are on their way arrive, refuses the rest with ErrStopping, and
// closes everything. It returns nil, or the StorageError.
func (l *Log) Run(ctx context.Context) error {
	if !l.used.CompareAndSwap(false, true) {
		return errors.New("raftlog: Run or Close was called before")
	}
	var commit, rest sync.WaitGroup
	stopWatch := make(chan struct{})
	rest.Go(func() { l.watch(stopWatch) })
	snapCtx, stopSnaps := context.WithCancel(ctx)
	defer stopSnaps()
	rest.Go(func() { l.snapshotWhenDue(snapCtx) })
	rest.Go(func() { l.endJoining(snapCtx) })
	commit.Go(l.commit)
	select {
	case <-ctx.Done():
	case <-l.latch.failed:
	}
	l.snaps.stopping.Store(true)
	close(l.stopping)
	l.endReads()
	stopSnaps()
	why := cmp.Or(l.latch.err(), ErrStopping)
	l.lead.stop(why)
	l.gather.stop(why)
	l.finish(&commit)
	close(stopWatch)
	rest.Wait()
	return errors.Join(l.latch.err(), l.closeStores())
}

// finish waits for the entries on their way and stops raft. In this order,
// because raft forgets to answer what it drops in a shutdown. With a disk that
// failed, raft may be too dead to answer: then nobody waits for long.
func (l *Log) finish(commit *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		commit.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-l.latch.failed:
		l.lead.stop(l.latch.err())
		l.gather.abandon(l.latch.err())
		select {
		case <-done:
		case <-time.After(failedPatience):
		}
	}
	if err := l.raft.Shutdown().Error(); err != nil {
		l.log.Error("raft did not stop", "error", err)
	}
	select {
	case <-done:
	case <-time.After(failedPatience):
		l.log.Error("raft did not answer for entries that were on their way")
	}
}

// failedPatience is for committers that raft will never answer.
const failedPatience = 200 * time.Millisecond

// Close is for a log that Run was never called on.
func (l *Log) Close() error {
	if !l.used.CompareAndSwap(false, true) {
		return nil
	}
	l.snaps.stopping.Store(true)
	close(l.stopping)
	l.endReads()
	l.lead.stop(ErrStopping)
	l.gather.stop(ErrStopping)
	return errors.Join(l.raft.Shutdown().Error(), l.latch.err(), l.closeStores())
}

func (l *Log) closeStores() error {
	var errs []error
	if l.store != nil {
		errs = append(errs, l.store.close())
	}
	return errors.Join(append(errs, l.dir.close())...)
}

// commit carries one entry after the other from gathering to answer. Only one
// is on its way at a time: a second one, sealed and waiting for the disk, makes
// entries half as large and the log a quarter slower.
//
// Those who were just answered often have the next proposal ready. The two
// yields let them add it before the next entry is sealed; without, the
// proposers fall into two halves that take turns. Nothing waits on a timer.
func (l *Log) commit() {
	for {
		b := l.gather.next()
		if b == nil {
			return
		}
		l.gather.answer(b, l.commitBatch(b))
		runtime.Gosched()
		runtime.Gosched()
	}
}

// Now is the log's time: that of an entry that would be written now. It never goes back, and steps of the system's clock
// do not move it. All loops decide by it.
func (l *Log) Now() muster.Time { return muster.Time(l.driver.clock.Next()) }

func (l *Log) commitBatch(b *batch) commitResult {
	if err := l.latch.err(); err != nil {
		return commitResult{err: err}
	}
	if b.deserted() {
		return commitResult{}
	}
	f := l.raft.ApplyLog(raft.Log{Data: encodeEntry(l.driver.clock.Next(), b.proposals())}, 0)
	if err := f.Error(); err != nil {
		return commitResult{err: l.explain(err)}
	}
	out, ok := f.Response().(*outcome)
	if !ok {
		return commitResult{err: fmt.Errorf("%w: raft gave no outcome", ErrAmbiguous)}
	}
	if out.err != nil {
		return commitResult{err: ambiguous(out.err)}
	}
	return commitResult{index: f.Index(), term: out.term, values: out.values}
}

// explain says in this package's words why raft did not commit an entry.
func (l *Log) explain(err error) error {
	if failed := l.latch.err(); failed != nil {
		return ambiguous(failed)
	}
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return ambiguous(ErrStopping)
	}
	return ambiguous(err)
}

// snapshotRetry is the time between a snapshot that could not be taken and the next try.
const snapshotRetry = time.Second

// snapshotWhenDue takes a snapshot whenever the driver asks for one.
func (l *Log) snapshotWhenDue(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.driver.due:
			if err := l.Snapshot(); err != nil && ctx.Err() == nil {
				l.log.Warn("no snapshot was taken; it is tried again", "error", err)
				// It stays due with every entry: not every one of them needs to try, and to be told of.
				select {
				case <-ctx.Done():
				case <-time.After(snapshotRetry):
				}
			}
		}
	}
}

// Snapshot writes a snapshot now and drops the entries that nothing needs any
// more. Nobody has to call it: snapshots are taken when they are due.
func (l *Log) Snapshot() error {
	start := time.Now()
	err := l.raft.Snapshot().Error()
	switch {
	case err == nil:
		l.log.Debug("snapshot taken", "bytes", l.snaps.newestSize(), "took", time.Since(start))
		return nil
	case errors.Is(err, raft.ErrNothingNewToSnapshot):
		return nil
	case l.latch.err() != nil:
		return l.latch.err()
	case l.snaps.stopping.Load():
		return ErrStopping
	}
	return fmt.Errorf("snapshot: %w", err)
}
