package process

import (
	"context"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// What can be done with a sandbox of any runtime from its directory alone, see package initbox.
type (
	// Member is one living process of a sandbox.
	Member = initbox.Member
	// Role is what a process is in its sandbox.
	Role = initbox.Role
	// Condition is what can be told of a sandbox from its directory alone.
	Condition = initbox.Condition
)

// Roles and conditions.
const (
	RoleInit       = initbox.RoleInit
	RoleCommand    = initbox.RoleCommand
	RoleDescendant = initbox.RoleDescendant

	None    = initbox.None
	Running = initbox.Running
	Ended   = initbox.Ended
	Died    = initbox.Died
)

// Members lists every living process of the sandbox of dir, init first.
func Members(dir string) ([]Member, error) { return initbox.Members(dir) }

// KillAll ends every process of the sandbox of dir.
func KillAll(ctx context.Context, dir string) error { return initbox.KillAll(ctx, dir) }

// Destroy ends whatever of the sandbox of dir runs and deletes all but its files.
func Destroy(ctx context.Context, dir string) error { return initbox.Destroy(ctx, dir) }

// Look tells the condition of the sandbox of dir.
func Look(dir string) (Condition, error) { return initbox.Look(dir) }

// RemoveCgroupParent deletes the parent cgroup of an agent that is gone.
func RemoveCgroupParent(parent string) error { return cgroup.RemoveParent(parent) }
