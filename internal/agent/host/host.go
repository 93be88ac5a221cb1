// Package host keeps one node at a time on a host that is reached over SSH: it
// starts the node's agent, detached, and takes everything apart when the node is given back.
//
// muster-node start and clear call it, which the server runs over SSH. It must never have
// two nodes on one host, bring back a node that was cleared, or touch a running agent of this build.
package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/teardown"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/filelock"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Names in the base directory.
const (
	lockName   = "host.lock"
	claimName  = "host.json"
	nodesName  = "nodes"
	goneSuffix = ".gone"
	// networkName is the file with the network settings of a node's agent, in its directory.
	networkName = "network.json"
	// logName is what the agent logs to when it is detached.
	logName = "agent.log"
)

const (
	helloTimeout = 3 * time.Second
	// settleFor is how long a start waits to see the agent answer, or fail.
	settleFor, settleEvery = 10 * time.Second, 10 * time.Millisecond
	// lockFor is how long another start or clear is waited for.
	lockFor, lockEvery = 30 * time.Second, 10 * time.Millisecond
	// markFor is how long it is remembered that a node was cleared.
	markFor = 7 * 24 * time.Hour
	// complaint is how much of an agent's log is told when it does not start.
	complaint = 2 << 10
)

// Exit statuses of muster-node start and clear.
const (
	ExitCleared = 66 // the node was cleared: it is not brought back
	ExitTaken   = 69 // the host belongs to another cluster
)

// Errors behind the exit statuses.
var (
	ErrCleared = errors.New("the node was cleared from this host")
	ErrTaken   = errors.New("the host is in use by another cluster")
)

// Exit is the status that a command should end with after err.
func Exit(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrCleared):
		return ExitCleared
	case errors.Is(err, ErrTaken):
		return ExitTaken
	}
	return 1
}

// Host is a directory on this host that belongs to Muster.
type Host struct {
	// Base is the directory: it holds nodes, and what they share.
	Base string
	// Program is muster-node itself.
	Program string
}

// Start is what to start.
type Start struct {
	Node    muster.NodeID
	Cluster string
	// Args are further arguments of muster-node agent.
	Args []string
	// Network are the agent's network settings, as package outbound encodes them. They may have a
	// password, so the agent gets them in a file. Empty: what its environment says.
	Network []byte
}

// claim is the content of host.json: whose the host is.
type claim struct {
	Cluster string        `json:"cluster"`
	Node    muster.NodeID `json:"node"`
}

// Dir is the directory of a node.
func (h Host) Dir(node muster.NodeID) string { return filepath.Join(h.Base, nodesName, string(node)) }

func (h Host) mark(node muster.NodeID) string { return h.Dir(node) + goneSuffix }

func validNode(id muster.NodeID) error {
	if id == "" || len(id) > 128 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("%q is not the id of a node", string(id))
	}
	return nil
}

// Start makes sure that the node's agent runs, and is this program: one that answers is left alone.
// A node of the same cluster that was there before is taken apart first: the server has given it back,
// and could not reach the host then.
func (h Host) Start(ctx context.Context, s Start) error {
	if err := validNode(s.Node); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(h.Base, nodesName), 0o700); err != nil {
		return err
	}
	unlock, err := h.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(h.mark(s.Node)); err == nil {
		return fmt.Errorf("node %s: %w", s.Node, ErrCleared)
	}
	if err := h.claim(ctx, claim{Cluster: s.Cluster, Node: s.Node}); err != nil {
		return err
	}
	dir := h.Dir(s.Node)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if r, err := journal.ReadRecord(dir); err == nil && r.Alive() && !r.Moved(dir) && h.sameProgram(r) && answers(ctx, dir) {
		return nil
	}
	if err := h.spawn(ctx, dir, s); err != nil {
		return err
	}
	h.dropPrograms()
	return nil
}

// dropPrograms deletes other builds beside this one: nothing is started by them any more.
func (h Host) dropPrograms() {
	if filepath.Dir(h.Program) != filepath.Join(h.Base, "bin") {
		return
	}
	others, _ := filepath.Glob(filepath.Join(h.Base, "bin", "muster-node-*"))
	for _, o := range others {
		if o != h.Program && !strings.HasSuffix(o, ".part") {
			_ = os.Remove(o)
		}
	}
}

// claim makes the host the node's. The lock is held.
func (h Host) claim(ctx context.Context, ours claim) error {
	path := filepath.Join(h.Base, claimName)
	var now claim
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &now)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if now == ours {
		return nil
	}
	// A claim without a directory is what a start that was killed has left.
	if _, there := os.Lstat(h.Dir(now.Node)); now.Cluster != "" && now.Cluster != ours.Cluster && there == nil {
		return fmt.Errorf("%w: %s, with node %s. If that one is no more: %s clear --base %s --node %s", ErrTaken, now.Cluster, now.Node, h.Program, h.Base, now.Node)
	}
	// Whatever else is there was given back: no server would have the host in use twice.
	others, err := os.ReadDir(filepath.Join(h.Base, nodesName))
	if err != nil {
		return err
	}
	for _, o := range others {
		id := muster.NodeID(o.Name())
		if !o.IsDir() || id == ours.Node || validNode(id) != nil {
			continue
		}
		if err := h.tearDown(ctx, id); err != nil {
			return fmt.Errorf("node %s, which was on this host before: %w", id, err)
		}
	}
	if b, err = json.Marshal(ours); err != nil {
		return err
	}
	return atomicfile.Replace(path, append(b, '\n'))
}

// sameProgram reports whether a running agent is this program.
func (h Host) sameProgram(r journal.Record) bool {
	runs, err1 := os.Stat(fmt.Sprintf("/proc/%d/exe", r.Pid))
	ours, err2 := os.Stat(h.Program)
	return err1 == nil && err2 == nil && os.SameFile(runs, ours)
}

func answers(ctx context.Context, dir string) bool {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	c := wire.NewClient(journal.Dialer(dir))
	defer c.Close()
	_, err := c.Hello(ctx)
	return err == nil
}

// spawn starts the agent in a session of its own, and waits until it answers or has failed.
func (h Host) spawn(ctx context.Context, dir string, s Start) error {
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	from, _ := log.Seek(0, 2)
	args := append([]string{"agent", "--dir", dir, "--node", string(s.Node), "--detached", "--replace"}, s.Args...)
	if len(s.Network) > 0 {
		settings := filepath.Join(dir, networkName)
		if err := atomicfile.Replace(settings, s.Network); err != nil {
			return err
		}
		args = append(args, "--network", settings)
	}
	cmd := exec.Command(h.Program, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	limit := time.NewTimer(settleFor)
	defer limit.Stop()
	look := time.NewTicker(settleEvery)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			b := make([]byte, complaint)
			n, _ := log.ReadAt(b, from)
			return fmt.Errorf("its agent ended at once (%v): %s", err, strings.TrimSpace(string(b[:n])))
		case <-limit.C:
			return nil // it lives, and may have much to find again
		case <-ctx.Done():
			return nil
		case <-look.C:
			if r, err := journal.ReadRecord(dir); err == nil && (r.Pid == cmd.Process.Pid || parent(r.Pid) == cmd.Process.Pid) && answers(ctx, dir) {
				return nil
			}
		}
	}
}

// parent is that of a process; 0: it is not known. The agent of an ordinary user is the child of the process that was started.
func parent(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	parent := 0
	if end := bytes.LastIndexByte(b, ')'); end >= 0 {
		var letter string
		_, _ = fmt.Sscan(string(b[end+1:]), &letter, &parent)
	}
	return parent
}

// Clear ends the node's agent and everything that runs below it, deletes what it left, and
// remembers that, so that a start which is late does not bring it back. A node that is not there is no error.
func (h Host) Clear(ctx context.Context, node muster.NodeID) error {
	if err := validNode(node); err != nil {
		return err
	}
	if _, err := os.Lstat(h.Base); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(h.Base, nodesName), 0o700); err != nil {
		return err
	}
	unlock, err := h.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	h.forgetMarks()
	if err := h.tearDown(ctx, node); err != nil {
		return err
	}
	path := filepath.Join(h.Base, claimName)
	var now claim
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &now) == nil && now.Node == node {
		return os.Remove(path)
	}
	return nil
}

// tearDown takes a node apart. The lock is held.
func (h Host) tearDown(ctx context.Context, node muster.NodeID) error {
	if err := os.WriteFile(h.mark(node), nil, 0o600); err != nil {
		return err
	}
	dir := h.Dir(node)
	gone := filepath.Join(h.Base, nodesName, "."+string(node))
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return journal.RemoveTree(gone)
	}
	return teardown.Do(ctx, teardown.Place{Dir: dir, Cgroup: Cgroup(node), Gone: gone})
}

// Cgroup is that below which the sandboxes of a node have theirs.
func Cgroup(node muster.NodeID) string { return "muster/" + string(node) }

// forgetMarks deletes the marks of nodes that were cleared long ago.
func (h Host) forgetMarks() {
	entries, _ := os.ReadDir(filepath.Join(h.Base, nodesName))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), goneSuffix) && time.Since(info.ModTime()) > markFor {
			_ = os.Remove(filepath.Join(h.Base, nodesName, e.Name()))
		}
	}
}

// lock keeps other starts and clears of this host away.
func (h Host) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(h.Base, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockFor)
	defer cancel()
	if !filelock.Take(ctx, f, lockEvery) {
		_ = f.Close()
		return nil, fmt.Errorf("%s is locked by another start or clear: %w", filepath.Join(h.Base, lockName), ctx.Err())
	}
	return func() { _ = f.Close() }, nil
}
