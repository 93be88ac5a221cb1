package transfer

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// showEvery is how often progress is drawn.
const showEvery = 200 * time.Millisecond

// moved counts what is copied, and shows it on a terminal.
type moved struct {
	screen *term.Screen
	n      atomic.Int64

	mu    sync.Mutex
	what  string
	began time.Time
}

// begin is the next source.
func (m *moved) begin(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.Store(0)
	m.what, m.began = what, time.Now()
}

func (m *moved) bytes() int64 { return m.n.Load() }

func (m *moved) reader(r io.Reader) io.Reader { return &countingReader{r, &m.n} }

type countingReader struct {
	io.Reader
	n *atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// show draws progress until it is stopped.
func (m *moved) show(ctx context.Context) (stop func()) {
	if !m.screen.HasBar() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer m.screen.SetBar("")
		ticker := time.NewTicker(showEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			m.mu.Lock()
			what, took, n := m.what, time.Since(m.began), m.n.Load()
			m.mu.Unlock()
			m.screen.SetBar(fmt.Sprintf("%s  %s  %s/s", what, muster.Bytes(n), muster.Bytes(float64(n)/max(took.Seconds(), 0.001))))
		}
	}()
	return func() {
		cancel()
		<-over
	}
}
