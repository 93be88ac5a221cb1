package system

import (
	"os"
	"strings"
	"sync"
)

// GroupsDenied reports whether processes of this user namespace may not set groups, as in one that
// an ordinary user made. The answer is kept, because each execution asks and it does not change
// once the namespace has a map.
var GroupsDenied = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(b)) == "deny"
})
