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

// moved counts what is copied, and shows that on a terminal. Bytes are those of the archive,
// headers included: what is shown is how busy the connection is.
type moved struct {
	screen *term.Screen
	// n is written by the copy and read by show.
	n atomic.Int64

	// mu guards what is below it.
	mu    sync.Mutex
	what  string
	began time.Time
	// total is how much there is to copy, where that is known; else 0.
	total int64
}

// begin says what the next source is and how much there is to copy, 0 if that is not known. It counts
// from zero.
func (m *moved) begin(what string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.Store(0)
	m.what, m.began, m.total = what, time.Now(), total
}

// bytes is what was copied of the present source.
func (m *moved) bytes() int64 { return m.n.Load() }

// reader counts what is read through it.
func (m *moved) reader(r io.Reader) io.Reader { return &countingReader{r, &m.n} }

// countingReader adds what is read to n.
type countingReader struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// show draws progress until stop is called, which returns when the bar is gone: what is printed
// after it must not meet it.
func (m *moved) show(ctx context.Context) (stop func()) {
	if !m.screen.HasBar() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer m.screen.SetBar("")
		// It draws at fixed times and not at each read: there may be thousands of those in a
		// second.
		ticker := time.NewTicker(showEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			m.mu.Lock()
			line := ""
			if !m.began.IsZero() {
				line = progressLine(m.what, m.n.Load(), m.total, time.Since(m.began))
			}
			m.mu.Unlock()
			m.screen.SetBar(line)
		}
	}()
	return func() {
		cancel()
		<-over
	}
}

// progressLine is what the bar says after n bytes of a source. A total of 0 is not known.
func progressLine(what string, n, total int64, took time.Duration) string {
	rate := fmt.Sprintf("%s/s", muster.Bytes(float64(n)/max(took.Seconds(), 0.001)))
	if total <= 0 {
		return fmt.Sprintf("%s  %s  %s", what, muster.Bytes(n), rate)
	}
	left := term.Remaining(n, total-n, took)
	return fmt.Sprintf("%s  %s of %s  %s  %s", what, muster.Bytes(n), muster.Bytes(total), term.Percent(n, total), rate) + term.SuffixIf(left != "", "  "+left)
}
