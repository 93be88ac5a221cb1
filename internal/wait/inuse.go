package wait

import "sync"

// InUse are things that one may use at a time, by their keys. Nobody waits for one: who finds it in
// use does something else, or says so. The zero value is ready.
type InUse[K comparable] struct {
	mu   sync.Mutex
	keys map[K]struct{}
}

// TryTake takes the thing with a key. It is false if somebody has it; otherwise Leave must be called.
func (u *InUse[K]) TryTake(key K) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, taken := u.keys[key]; taken {
		return false
	}
	if u.keys == nil {
		u.keys = map[K]struct{}{}
	}
	u.keys[key] = struct{}{}
	return true
}

// Leave lets others have what TryTake took.
func (u *InUse[K]) Leave(key K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.keys, key)
}
