package fake

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// nodes gives every case a node of its own, and both agents of a case the same.
func suite(bubble bool) runtimetest.Suite {
	var mu sync.Mutex // cases run in parallel
	nodes := map[string]*Node{}
	return runtimetest.Suite{
		Scripted: true, Bubble: bubble,
		New: func(t *testing.T) contract.Runtime {
			mu.Lock()
			defer mu.Unlock()
			node := nodes[t.Name()]
			if node == nil {
				node = NewNode()
				nodes[t.Name()] = node
				t.Cleanup(node.Close)
			}
			r, err := New(Config{Node: node, StartTime: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
	}
}

func TestConformance(t *testing.T)         { runtimetest.Run(t, suite(false)) }
func TestConformanceInBubble(t *testing.T) { runtimetest.Run(t, suite(true)) }

// TestInit: commands in a pretended sandbox end as they say, and stand with it.
func TestInit(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Start(t.Context(), contract.SandboxConfig{Dir: t.TempDir(), Work: t.TempDir(), Command: []string{"sleep", "1h"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Node().Close()
	for want, command := range map[int][]string{0: {"anything"}, 7: {"exit", "7"}} {
		conn, err := contract.Connect(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		x, err := initwire.StartExec(t.Context(), conn, &initwire.Exec{Command: command})
		if err != nil {
			t.Fatal(err)
		}
		_, _, ended, err := x.Next()
		if err != nil || ended == nil || ended.Exit != want {
			t.Errorf("%q: %+v, %v", command, ended, err)
		}
		_ = x.Close()
	}
	if err := contract.Freeze(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	conn, err := contract.Connect(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := initwire.StartExec(context.Background(), conn, &initwire.Exec{Command: []string{"x"}})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("it answered while it was frozen: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := contract.Thaw(s); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_ = conn.Close()
}
