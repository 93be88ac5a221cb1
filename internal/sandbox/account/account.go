package account

import (
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// User is the user that a program in a container runs as.
type User struct {
	UID, GID uint32
	// Groups are further groups, which count for rights on files as GID does.
	Groups []uint32
	// Home is its home directory; "/" if the files do not say.
	Home string
	// Name and shell come from its entry in the files; empty if it has none.
	Name, Shell string
}

// The files, and the bound of what is read of each.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	// maxAccounts bounds what is read of each of those: they are the image's.
	maxAccounts = 4 << 20
)

// Files are the texts of a container's /etc/passwd and /etc/group.
type Files struct{ Passwd, Group string }

// Read reads the files of the container that this process is in. A missing file is empty, because
// an image need not have one.
func Read() (Files, error) {
	var a Files
	var err error
	if a.Passwd, err = system.ReadBounded(passwdFile, maxAccounts); err != nil {
		return a, err
	}
	a.Group, err = system.ReadBounded(groupFile, maxAccounts)
	return a, err
}

// Who resolves NAME, UID, NAME:GROUP or UID:GID; empty is root. A number needs no entry, a name
// does. The user's further groups are added only if the text names no group, as images expect it.
// The failure is always the user's.
func (a Files) Who(spec string) (*User, *initwire.Failed) {
	user, group, named := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	id := &User{Home: "/"}
	found := false
	number, numeric := parseID(user)
	each(a.Passwd, 7, func(f []string) bool {
		uid, ok := parseID(f[2])
		if !ok || f[0] != user && !(numeric && uid == number) {
			return true
		}
		gid, _ := parseID(f[3])
		id.UID, id.GID, id.Name, found = uid, gid, f[0], true
		if strings.HasPrefix(f[5], "/") {
			id.Home = f[5]
		}
		if id.Shell = f[6]; id.Shell == "" {
			id.Shell = "/bin/sh" // as passwd(5) has it
		}
		return false
	})
	switch {
	case found:
	case numeric:
		id.UID = number
	default:
		return nil, initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(user)+" is not in "+passwdFile+" of the container")
	}
	if named && group != "" {
		gid, ok := a.groupID(group)
		if !ok {
			return nil, initwire.UserFault(initwire.ReasonSpec, "group "+strconv.Quote(group)+" is not in "+groupFile+" of the container")
		}
		id.GID = gid
		return id, nil
	}
	if found {
		id.Groups = a.groupsOf(id.Name, id.GID)
	}
	return id, nil
}

// groupID is the number of a group, by name or as a number.
func (a Files) groupID(group string) (gid uint32, ok bool) {
	each(a.Group, 4, func(f []string) bool {
		if f[0] == group {
			gid, ok = parseID(f[2])
		}
		return !ok
	})
	if !ok {
		gid, ok = parseID(group)
	}
	return gid, ok
}

// groupsOf are the groups that list a user, without its first.
func (a Files) groupsOf(user string, first uint32) (all []uint32) {
	const most = 65536 // NGROUPS_MAX
	each(a.Group, 4, func(f []string) bool {
		for member := range strings.SplitSeq(f[3], ",") {
			if gid, ok := parseID(f[2]); ok && member == user && gid != first {
				all = append(all, gid)
				break
			}
		}
		return len(all) < most
	})
	return all
}

// each calls f for the fields of every line that has at least n, until f says no.
func each(text string, n int, f func(fields []string) bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if fields := strings.Split(line, ":"); len(fields) >= n && fields[0] != "" && !f(fields) {
			return
		}
	}
}

// parseID reads the number of a user or group. The highest one is refused: to the kernel it means
// "leave the owner alone".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}
