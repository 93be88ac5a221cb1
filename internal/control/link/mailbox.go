package link

import (
	"sync"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

// mailbox is where the dispatcher leaves what changed for a node. It never
// blocks and is bounded: past maxMail it only knows that everything is to be looked at.
type mailbox struct {
	// wake holds a token when there is something, urgent when it should not wait.
	wake, urgent chan struct{}

	mu  sync.Mutex
	ids []muster.AllocID // in the order in which they came
	has map[muster.AllocID]struct{}
	all bool
}

const maxMail = 8192

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), has: map[muster.AllocID]struct{}{}}
}

func (m *mailbox) add(id muster.AllocID, urgent bool) {
	m.put(id)
	m.poke(urgent)
}

// put leaves something and wakes nobody.
func (m *mailbox) put(id muster.AllocID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.has[id]; !there && !m.all {
		m.has[id] = struct{}{}
		m.ids = append(m.ids, id)
		if len(m.ids) > maxMail {
			m.all = true
			m.ids = nil
			clear(m.has)
		}
	}
}

func (m *mailbox) addAll() {
	m.mu.Lock()
	m.all = true
	m.ids = nil
	clear(m.has)
	m.mu.Unlock()
	m.poke(true)
}

func (m *mailbox) poke(urgent bool) {
	if urgent {
		wait.Poke(m.urgent)
	}
	wait.Poke(m.wake)
}

// take empties it, and takes back its wakes: they were for what is taken.
func (m *mailbox) take() (ids []muster.AllocID, all bool) {
	for _, c := range []chan struct{}{m.urgent, m.wake} {
		select {
		case <-c:
		default:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ids, all = m.ids, m.all
	m.ids, m.all = nil, false
	clear(m.has)
	return ids, all
}
