package standin

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// FakeAddress is where all Fake machines are.
const FakeAddress = "10.9.9.9"

// Fake is machines by name, with nothing behind them. The zero value is ready to use.
type Fake struct {
	mu sync.Mutex
	on map[string]bool
}

// Start is Machines'. It refuses a machine without user data, in which nobody could log in.
func (f *Fake) Start(id string, userData []byte) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(userData) == 0 {
		return "", errors.New("standin: no user data")
	}
	if f.on == nil {
		f.on = map[string]bool{}
	}
	f.on[id] = true
	return FakeAddress, nil
}

// Stop is Machines'. Called by a test, the machine has shut itself down.
func (f *Fake) Stop(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.on, id)
}

// State is Machines'.
func (f *Fake) State(id string) (running bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on[id]
}

// Running are the ids of the machines that run, in order.
func (f *Fake) Running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.on))
}
