package failure

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsSystem reports whether an error is the machine's, and not that of what was to be read or
// unpacked.
func IsSystem(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM,
		unix.EPERM, unix.EACCES, unix.EBADF, unix.ESTALE, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
