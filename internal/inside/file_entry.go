package inside

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Entry is an entry of a directory, or a file, as clients are shown it.
func Entry(e *initwire.FileEntry) api.FileEntry {
	kind := map[byte]string{
		initwire.TypeFile: api.FileRegular, initwire.TypeDirectory: api.FileDirectory, initwire.TypeLink: api.FileSymlink,
		initwire.TypePipe: api.FileFIFO, initwire.TypeSocket: api.FileSocket, initwire.TypeBlock: api.FileBlock, initwire.TypeChar: api.FileChar,
	}[e.Type]
	return api.FileEntry{
		Path: e.Path, Name: e.Name, Type: kind, Size: max(e.Size, 0), Mode: Mode(e.Mode), Modified: Modified(e.ModTime),
		UID: e.UID, GID: e.GID, User: e.User, Group: e.Group, Target: e.Target, Unsized: e.Unsized, Problem: e.Problem,
	}
}

// Mode shows permission bits in octal, as 0644.
func Mode(mode uint32) string { return fmt.Sprintf("%04o", mode) }

// Modified is a time of init's, in nanoseconds since 1970, that JSON can show: 64 bits of
// nanoseconds are within its years.
func Modified(n int64) time.Time { return time.Unix(0, n).UTC() }

// maxListBytes bounds the names in one list, whatever init sends.
const maxListBytes = 16 << 20

var errEnough = errors.New("enough")

// ListSome is a directory's entries, at most limit of them, and whether there are more. list.Limit
// is not looked at.
func (f *Files) ListSome(ctx context.Context, id string, list initwire.FileList, limit int) (*api.FileList, error) {
	out := &api.FileList{Entries: []api.FileEntry{}}
	size := 0
	list.Limit = int64(limit) + 1 // one more than is wanted tells whether there are more
	err := f.List(ctx, id, list, func(e *initwire.FileEntry) error {
		size += len(e.Path) + len(e.Name) + len(e.Target) + len(e.Problem)
		if len(out.Entries) == limit || size > maxListBytes {
			out.More = true
			return errEnough
		}
		out.Entries = append(out.Entries, Entry(e))
		return nil
	})
	if err != nil && err != errEnough {
		return nil, err
	}
	return out, nil
}
