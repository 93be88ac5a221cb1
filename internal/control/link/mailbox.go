package link

import (
	"sync"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

// mailbox is where Run's goroutine leaves the ids of changed allocations for the sender of one
// node. It never blocks. It is bounded: above maxMail ids it only remembers that the sender must
// look at everything.
type mailbox struct {
	// wake holds a token when the mailbox is not empty; urgent holds one when the sender should not
	// wait for more mail.
	wake, urgent chan struct{}

	// mu guards the fields below. ids are in the order in which they arrived.
	mu  sync.Mutex
	ids []muster.AllocID // in the order in which they came
	has map[muster.AllocID]struct{}
	all bool
}

// maxMail bounds the ids that a mailbox holds.
const maxMail = 8192

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), has: map[muster.AllocID]struct{}{}}
}

// add leaves an id and wakes the sender.
func (m *mailbox) add(id muster.AllocID, urgent bool) {
	m.put(id)
	m.poke(urgent)
}

// put leaves an id without waking the sender. An id that is there already is not added again.
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

// addAll asks for a whole set, at once. It includes the ids in the mailbox, which are dropped.
func (m *mailbox) addAll() {
	m.mu.Lock()
	m.all = true
	m.ids = nil
	clear(m.has)
	m.mu.Unlock()
	m.poke(true)
}

// poke wakes the sender. It pokes urgent first: a sender that wakes for wake then finds urgent set
// and does not linger.
func (m *mailbox) poke(urgent bool) {
	if urgent {
		wait.Poke(m.urgent)
	}
	wait.Poke(m.wake)
}

// take empties the mailbox and drains its tokens first. The order matters: mail that arrives after
// the drain leaves a new token, so no mail is left without one. The opposite order could lose a
// wake.
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
