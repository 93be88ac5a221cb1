package fake

import (
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent"
	"github.com/musterhq/muster/internal/agent/runtimetest"
)

// nodes gives every case a node of its own, and both agents of a case the same.
func suite(bubble bool) runtimetest.Suite {
	nodes := map[string]*Node{}
	return runtimetest.Suite{
		Scripted: true, Bubble: bubble,
		New: func(t *testing.T) agent.Runtime {
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
