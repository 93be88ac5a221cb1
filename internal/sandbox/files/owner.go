package files

import (
	"strconv"

	"github.com/musterhq/muster/internal/sandbox/account"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// owner is the user and group that a file is given to; -1: who has it keeps it.
type owner struct{ uid, gid int }

// whoever leaves a file to whoever has it.
var whoever = owner{-1, -1}

// owner finds who is meant by a client: NAME, UID, NAME:GROUP or UID:GID by the sandbox's own
// files. Empty is the sandbox's user. Where sandboxes have no users of their own, files stay with
// the user that init runs as.
func (f *files) owner(user string) (owner, error) {
	// The client has named nobody.
	if user == "" {
		if !f.Contained {
			return whoever, nil
		}
		user = f.User
	}
	// They are read anew each time: a program of the sandbox may have changed them.
	known, err := account.Read()
	if err != nil {
		return whoever, wrong(initwire.FileInvalid, "", "user "+strconv.Quote(user)+": "+err.Error())
	}
	who, failed := known.Who(user)
	if failed != nil {
		return whoever, wrong(initwire.FileInvalid, "", failed.Message)
	}
	return owner{int(who.UID), int(who.GID)}, nil
}

// give gives a file that is open to its owner. It must come before the mode, because it takes
// set-id bits away.
func (w owner) give(fd int) error {
	// Nothing is changed, which needs no rights.
	if w == whoever {
		return nil
	}
	return w.because(unix.Fchown(fd, w.uid, w.gid))
}

// giveAt gives a name in a directory, even if it is a link.
func (w owner) giveAt(dir int, name string) error {
	if w == whoever {
		return nil
	}
	return w.because(unix.Fchownat(dir, name, w.uid, w.gid, unix.AT_SYMLINK_NOFOLLOW))
}

// notOwned says why a file could not be given to somebody.
type notOwned struct {
	owner
	// err is the kernel's.
	err error
}

// Error names the owner and the reason.
func (n notOwned) Error() string {
	why := n.err.Error()
	// A user namespace knows a range of numbers, and no others.
	if n.err == unix.EINVAL {
		why = "there are no such numbers in this sandbox"
	}
	return "cannot be given to " + strconv.Itoa(n.uid) + ":" + strconv.Itoa(n.gid) + ": " + why
}

// because makes a notOwned of an error.
func (w owner) because(err error) error {
	if err == nil {
		return nil
	}
	return notOwned{w, err}
}
