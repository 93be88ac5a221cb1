package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/atomicfile"
)

// Member is a server in the log's configuration.
type Member struct {
	ID      string
	Address string
	// Votes is false for a server that gets all entries and does not count towards a majority yet.
	Votes bool
}

// Errors of changes of the members. None of them was done then.
var (
	ErrNoMember  = errors.New("no server of the cluster has this id")
	ErrLastVoter = errors.New("it is the only server that votes")
)

// configTime bounds how long a change of the members may wait for one before it.
const configTime = 10 * time.Second

// ServerID is the id that the server of a data directory has for ever. It begins the directory if that
// is empty or missing. The directory must not be open.
func ServerID(dir string) (string, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return "", err
	}
	return d.server, errors.Join(d.begin(), d.close())
}

// SetJoining says that the server of a directory without a log will get it from others. A directory that
// has one is refused: to join another cluster is to leave this one. After a crash, or a failed try to
// join, it may be called again.
func SetJoining(dir string) (id string, err error) {
	d, err := openDirectory(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, err := os.Lstat(d.file(logName)); err == nil {
		if joining, err := d.joining(); err != nil || !joining {
			return "", errors.Join(err, fmt.Errorf("data directory %s: %w: it has a log already; use an empty one to join", dir, ErrNotEmpty))
		}
	}
	if err := d.begin(); err != nil {
		return "", err
	}
	return d.server, atomicfile.Write(d.file(joiningName), nil)
}

// joining says whether the log of this directory comes from others and nothing of it has arrived yet.
func (d *directory) joining() (bool, error) {
	_, err := os.Lstat(d.file(joiningName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// joined ends joining. From here on an empty log is a damage.
func (d *directory) joined() error {
	err := os.Remove(d.file(joiningName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, atomicfile.SyncDir(d.path))
}

// endJoining waits for the first entry or snapshot of the others.
func (l *Log) endJoining(ctx context.Context) {
	if l.Wait(ctx, 1) != nil {
		return
	}
	if err := l.dir.joined(); err != nil {
		l.log.Warn("the mark of a joining server could not be removed; it is tried again at the next start", "error", err)
	}
}

// Self is the id of this server.
func (l *Log) Self() string { return l.dir.server }

// Members are the servers of the newest configuration that this server has, by id. It is committed or about
// to be.
func (l *Log) Members() []Member {
	var out []Member
	f := l.raft.GetConfiguration()
	if f.Error() != nil {
		return nil // the log has stopped
	}
	for _, s := range f.Configuration().Servers {
		out = append(out, Member{ID: string(s.ID), Address: string(s.Address), Votes: s.Suffrage == raft.Voter})
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// member is one of Members.
func (l *Log) member(id string) (Member, bool) {
	for _, m := range l.Members() {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// Leader is the leader as this server knows it; false if it knows none. It may be over already.
func (l *Log) Leader() (Member, bool) {
	address, id := l.raft.LeaderWithID()
	return Member{ID: string(id), Address: string(address), Votes: true}, id != ""
}

// LastContact is when this server last heard from the leader, or now if it leads itself. It is zero before
// the first time.
func (l *Log) LastContact() time.Time {
	if led, confirmed := l.lead.current(); led != nil && confirmed {
		return time.Now()
	}
	return l.raft.LastContact()
}

// AddMember lets a server have the entries, without a vote; of one that is there already it sets the address.
// Like all changes of the members it is for the leader: others get ErrNotLeader.
func (l *Log) AddMember(ctx context.Context, id, address string) error {
	m, ok := l.member(id)
	if ok && m.Address == address {
		return nil
	}
	if ok && m.Votes {
		return l.change(ctx, func() raft.Future {
			return l.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(address), 0, configTime)
		})
	}
	return l.change(ctx, func() raft.Future {
		return l.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), 0, configTime)
	})
}

// Promote gives a server its vote. The caller has seen that it has caught up: a server that votes and has
// not is missing in majorities for as long as it needs.
func (l *Log) Promote(ctx context.Context, id string) error {
	m, ok := l.member(id)
	switch {
	case !ok:
		return fmt.Errorf("server %s: %w", id, ErrNoMember)
	case m.Votes:
		return nil
	}
	return l.change(ctx, func() raft.Future {
		return l.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(m.Address), 0, configTime)
	})
}

// RemoveMember takes a server out. The leader can take itself out; another one leads then. The caller has
// seen that a majority of the servers that stay is there: the change needs it.
func (l *Log) RemoveMember(ctx context.Context, id string) error {
	m, ok := l.member(id)
	if !ok {
		return fmt.Errorf("server %s: %w", id, ErrNoMember)
	}
	voters := 0
	for _, m := range l.Members() {
		if m.Votes {
			voters++
		}
	}
	if m.Votes && voters == 1 {
		return fmt.Errorf("server %s: %w", id, ErrLastVoter)
	}
	return l.change(ctx, func() raft.Future { return l.raft.RemoveServer(raft.ServerID(id), 0, configTime) })
}

// change does one change of the members.
func (l *Log) change(ctx context.Context, f func() raft.Future) error {
	if err := l.latch.err(); err != nil {
		return err
	}
	if !l.IsLeader() {
		return ErrNotLeader
	}
	return l.await(ctx, f())
}

// await waits for raft's answer or the end of ctx. The change goes on in the second case.
func (l *Log) await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		if err != nil {
			return l.explain(err)
		}
		return nil
	case <-ctx.Done():
		return ambiguous(context.Cause(ctx))
	}
}

// Transfer hands leadership to another server, which gets the missing entries first. It returns when that
// one has been told to run for election; its Lead says when it leads.
func (l *Log) Transfer(ctx context.Context, id string) error {
	m, ok := l.member(id)
	if !ok || !m.Votes {
		return fmt.Errorf("server %s: %w, or it has no vote yet", id, ErrNoMember)
	}
	if id == l.Self() && l.IsLeader() {
		return nil
	}
	return l.change(ctx, func() raft.Future {
		return l.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(m.Address))
	})
}

// Applied is the index of the newest entry that the machine has.
func (l *Log) Applied() uint64 { return l.driver.applied.Load() }

// Wait blocks until the machine has the entry of an index.
func (l *Log) Wait(ctx context.Context, index uint64) error {
	if l.Applied() >= index {
		return nil
	}
	reached, forget := l.driver.waiter(index)
	defer forget()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.latch.failed:
		return l.latch.err()
	case <-l.stopping:
		return ErrStopping
	}
}
