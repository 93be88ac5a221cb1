package api

import (
	"path"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// IsVolumePath reports whether a directory may be mounted at the path in a container. What the
// system itself mounts is not covered.
func IsVolumePath(at string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
	return strings.HasPrefix(at, "/") && path.Clean(at) == at && at != "/" && !slices.Contains([]string{"proc", "sys", "dev"}, first)
}

// volumes checks what a container has mounted.
func (c *checks) volumes(s *JobSpec) {
	if !c.Count("volumes", len(s.Volumes)) || len(s.Volumes) == 0 {
		return
	}
	if s.Image == "" {
		c.Add("volumes", "need an image: a job without one is a process of its node, and sees the node's directories where they are")
	}
	for i := range s.Volumes {
		v, at := &s.Volumes[i], validate.Index("volumes", i)
		if !c.Text(at+".path", v.Path, 4095) {
			continue
		}
		switch {
		case v.Path == "":
			c.Add(at+".path", "is missing; give the absolute path in the container")
		case !IsVolumePath(v.Path):
			c.Add(at+".path", "is %s; give an absolute path without . or .. in it, not / and not in /proc, /sys or /dev", validate.Quote(v.Path))
		case slices.IndexFunc(s.Volumes, func(o VolumeSpec) bool { return o.Path == v.Path }) < i:
			c.Add(at+".path", "is %s, where another volume is already", v.Path)
		case v.Path == "/workspace" && len(s.Inputs)+len(s.Outputs) > 0:
			c.Add(at+".path", "is /workspace, where the inputs and outputs are")
		}
		switch {
		case v.Name == "" && v.Tmpfs == 0:
			c.Add(at+".name", "is missing; name a volume of the pool, or give tmpfs a size")
		case v.Name != "" && v.Tmpfs != 0:
			c.Add(at+".tmpfs", "is given beside name; a volume is one or the other")
		case v.Tmpfs != 0:
			if v.Tmpfs < MinTmpfs || v.Tmpfs.Bytes() > maxTmpfs {
				c.Add(at+".tmpfs", "is %s; it is %s to %s", v.Tmpfs, MinTmpfs, maxTmpfs)
			}
			if v.Writable {
				c.Add(at+".writable", "is about volumes with a name; a tmpfs can always be written")
			}
		default:
			c.Name(at+".name", v.Name)
			if v.Name == muster.VolumeTmpfs {
				c.Add(at+".name", "is %s; for a file system in memory give tmpfs a size", v.Name)
			}
		}
	}
}

// MinTmpfs is the smallest size of a tmpfs: a page.
const MinTmpfs = Size(4096)

// maxTmpfs is more memory than a member can ask for.
const maxTmpfs = muster.Bytes(1 << 44)
