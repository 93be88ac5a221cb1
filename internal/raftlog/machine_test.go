package raftlog

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/testwait"
)

// recorder is a Machine that keeps every proposal, in order. Its image is O(1):
// a prefix of a slice that only grows.
type recorder struct {
	mu      sync.Mutex
	all     []string
	index   uint64
	term    uint64
	at      int64
	backAt  bool // at went backwards
	backIdx bool // index did not grow
	restore int  // calls
	broken  error
}

// refuse is a proposal that the recorder answers with an error.
const refuse = "refuse"

var errRefused = errors.New("refused by the machine")

func (r *recorder) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backAt = r.backAt || at < r.at
	r.backIdx = r.backIdx || index <= r.index
	r.index, r.term, r.at = index, term, at
	out := make([]any, len(proposals))
	for i, p := range proposals {
		if string(p) == refuse {
			out[i] = errRefused
			continue
		}
		r.all = append(r.all, string(p))
		out[i] = len(r.all)
	}
	return out
}

func (r *recorder) Snapshot() (Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return recorded(r.all[:len(r.all):len(r.all)]), r.broken
}

type recorded []string

func (all recorded) WriteTo(w io.Writer) (int64, error) {
	b := bufio.NewWriter(w)
	var n int64
	var size [4]byte
	for _, s := range all {
		binary.LittleEndian.PutUint32(size[:], uint32(len(s)))
		k, err := b.Write(append(size[:4:4], s...))
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, b.Flush()
}

func (r *recorder) Restore(src io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restore++
	if r.broken != nil {
		return r.broken
	}
	r.all, r.index, r.at = nil, 0, 0
	b := bufio.NewReader(src)
	for {
		var size [4]byte
		if _, err := io.ReadFull(b, size[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		s := make([]byte, binary.LittleEndian.Uint32(size[:]))
		if _, err := io.ReadFull(b, s); err != nil {
			return err
		}
		r.all = append(r.all, string(s))
	}
}

func (r *recorder) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[:len(r.all):len(r.all)]
}

// seen is what the last entry said.
func (r *recorder) seen() (index, term uint64, at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.index, r.term, r.at
}

func (r *recorder) restored() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restore
}

// counts says how often each proposal was applied.
func (r *recorder) counts() map[string]int {
	m := make(map[string]int)
	for _, s := range r.list() {
		m[s]++
	}
	return m
}

// running is a log under test that runs.
type running struct {
	*Log
	machine *recorder
	cancel  context.CancelFunc
	end     chan error
	once    sync.Once
	err     error
}

// small is a configuration whose files fit into a test's directory, and whose
// storage errors end Run and not the test.
func small(dir string, m Machine) Config {
	return Config{
		Dir:         dir,
		Machine:     m,
		SegmentSize: 256 << 10,
		LowWater:    func(uint64) uint64 { return 0 },
		Fatal:       func(error) {},
	}
}

// start opens and runs a log and waits until it leads.
func start(t testing.TB, c Config) *running {
	t.Helper()
	r := startFollower(t, c)
	testwait.Until(t, "the server leads", r.IsLeader)
	return r
}

func startFollower(t testing.TB, c Config) *running {
	t.Helper()
	if c.Machine == nil {
		c.Machine = &recorder{}
	}
	l, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Log: l, end: make(chan error, 1)}
	r.machine, _ = c.Machine.(*recorder)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.end <- l.Run(ctx) }()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends Run and gives its error.
func (r *running) stop() error {
	r.once.Do(func() {
		r.cancel()
		select {
		case r.err = <-r.end:
		case <-time.After(20 * time.Second):
			r.err = errors.New("Run did not return")
		}
	})
	return r.err
}

func (r *running) mustStop(t testing.TB) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func (r *running) mustPropose(t testing.TB, s string) Result {
	t.Helper()
	res, err := r.Propose(t.Context(), []byte(s))
	if err != nil {
		t.Fatalf("propose %q: %v", s, err)
	}
	return res
}

func name(i int) string { return fmt.Sprintf("p%06d", i) }

func infoLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
