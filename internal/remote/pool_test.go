package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
)

// runPool runs a pool until the test ends.
func runPool(t *testing.T, c PoolConfig) *Pool {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	p, err := NewPool(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

func TestPoolReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newServer(t, true)
		var mu sync.Mutex
		var came, went int
		p := runPool(t, PoolConfig{Changed: func(name string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if name != "one" {
				t.Errorf("told of %s", name)
			}
			if err == nil {
				came++
			} else {
				went++
			}
		}})
		if _, err := p.Get(t.Context(), "one"); !muster.IsKind(err, muster.FaultNotFound) {
			t.Error(err)
		}
		if err := p.Set("one", c); err != nil {
			t.Fatal(err)
		}
		first, err := p.Get(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := p.Get(t.Context(), "one"); err != nil || again != first {
			t.Error("it is not kept", err)
		}
		s.cut()
		_ = first.Wait()
		synctest.Wait()
		_, err = p.Get(t.Context(), "one")
		wantKind(t, err, muster.FaultUnavailable)
		var f *muster.Fault
		if errors.As(err, &f); f.After <= 0 || f.After > defaultFirstWait {
			t.Errorf("come again after %s", f.After)
		}
		time.Sleep(f.After)
		second, err := p.Get(t.Context(), "one")
		if err != nil || second == first {
			t.Fatal(err)
		}
		synctest.Wait()
		mu.Lock()
		if came != 2 || went != 1 {
			t.Errorf("it came %d times and went %d times", came, went)
		}
		mu.Unlock()

		// The same configuration once more changes nothing; another user does.
		if err := p.Set("one", c); err != nil {
			t.Fatal(err)
		}
		if again, err := p.Get(t.Context(), "one"); err != nil || again != second {
			t.Error("it was dialled anew", err)
		}
		c.User = "ada"
		if err := p.Set("one", c); err != nil {
			t.Fatal(err)
		}
		third, err := p.Get(t.Context(), "one")
		if err != nil || third == second || third.User() != "ada" {
			t.Error(err)
		}
		_ = second.Wait()
		p.Remove("one")
		_ = third.Wait()
		if _, err := p.Get(t.Context(), "one"); !muster.IsKind(err, muster.FaultNotFound) {
			t.Error(err)
		}
	})
}

// A host that stays away is asked for less and less often; one whose key is wrong seldom from the start. Retry does not wait.
func TestPoolBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, away := newServer(t, true)
		tries := 0
		var mu sync.Mutex
		away.Through = func(context.Context, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			tries++
			return nil, errors.New("no route to host")
		}
		s, wrong := newServer(t, true)
		wrong.HostKeys = []HostKey{newKey(t).PublicKey()}
		p := runPool(t, PoolConfig{})
		for name, c := range map[string]Config{"away": away, "wrong": wrong} {
			if err := p.Set(name, c); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		mu.Lock()
		if tries < 3600/30 || tries > 3600/15+20 {
			t.Errorf("%d tries in an hour", tries)
		}
		before := tries
		mu.Unlock()
		_, err := p.Get(t.Context(), "away")
		wantKind(t, err, muster.FaultUnavailable)
		p.Retry("away")
		synctest.Wait()
		mu.Lock()
		if tries != before+1 {
			t.Errorf("%d tries after Retry", tries-before)
		}
		mu.Unlock()
		_, err = p.Get(t.Context(), "wrong")
		wantKind(t, err, muster.FaultAuth)
		var key *HostKeyError
		if !errors.As(err, &key) {
			t.Errorf("what is wrong is lost: %v", err)
		}
		if s.attempts() != 0 {
			t.Errorf("%d logins at a host with the wrong key", s.attempts())
		}
	})
}

// shaking counts the handshakes that go on: each takes a while with its first read.
type shaking struct {
	net.Conn
	once  sync.Once
	count func(by int)
}

func (c *shaking) Read(p []byte) (int, error) {
	c.once.Do(func() {
		c.count(1)
		time.Sleep(50 * time.Millisecond)
		c.count(-1)
	})
	return c.Conn.Read(p)
}

// Hosts that hang hold up nobody, whether they take no connection or say nothing on one, and handshakes are bounded.
func TestPoolOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newServer(t, true)
		through := c.Through
		var mu sync.Mutex
		now, most := 0, 0
		good := c
		good.Through = func(ctx context.Context, a string) (net.Conn, error) {
			conn, err := through(ctx, a)
			return &shaking{Conn: conn, count: func(by int) {
				mu.Lock()
				defer mu.Unlock()
				now += by
				most = max(most, now)
			}}, err
		}
		hanging, dead := c, c
		hanging.Through = func(context.Context, string) (net.Conn, error) {
			here, _ := memPair()
			return here, nil
		}
		dead.Through = func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		p := runPool(t, PoolConfig{Dials: 8})
		for i := range 20 {
			if err := p.Set(fmt.Sprint("dead-", i), dead); err != nil {
				t.Fatal(err)
			}
		}
		const many = 100
		for i := range many {
			if err := p.Set(fmt.Sprint(i), good); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Set("hanging", hanging); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range many {
			if _, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("all are there after %s", took)
		}
		if most > 8 || most < 7 {
			t.Errorf("%d handshakes at once", most)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Get(ctx, "hanging")
		wantKind(t, err, muster.FaultUnavailable)
		if !strings.Contains(err.Error(), "not connected yet") {
			t.Error(err)
		}
	})
}

// Whatever goes on when the pool ends, nothing is left of it.
func TestPoolEndsAtAnyTime(t *testing.T) {
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			s, c := newServer(t, true)
			p, err := NewPool(PoolConfig{Logger: c.Logger})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { _ = p.Run(ctx) })
			for j := range 5 {
				all.Go(func() {
					_ = p.Set(fmt.Sprint(j), c)
					_, _ = p.Get(ctx, fmt.Sprint(j))
					if j == 3 {
						s.cut()
					}
					if j == 4 {
						p.Remove("4")
					}
				})
			}
			time.Sleep(time.Duration(i) * 20 * time.Millisecond)
			cancel()
			all.Wait()
		})
	}
}
