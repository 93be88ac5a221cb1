package agent

import "sync"

// crew is the goroutines that the agent's Run waits for.
type crew struct {
	mu     sync.Mutex
	ending bool
	wg     sync.WaitGroup
}

// spawn starts a goroutine that Run waits for. It is false, and nothing was started, when Run
// already waits.
func (c *crew) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return false
	}
	c.wg.Go(f)
	return true
}

// enter makes Run wait until leave is called; false when Run already waits.
func (c *crew) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return false
	}
	c.wg.Add(1)
	return true
}

func (c *crew) leave() { c.wg.Done() }

// end waits for all, and lets no further one begin.
func (c *crew) end() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.wg.Wait()
}
