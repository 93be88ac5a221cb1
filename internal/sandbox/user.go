package sandbox

import (
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// identity is who a program in a container runs as.
type identity struct {
	uid, gid uint32
	groups   []uint32
	// home is its home directory; "/" if nobody knows.
	home string
	// name and shell are those of its entry; empty if it has none.
	name, shell string
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	// maxAccounts bounds what is read of each of those: they are the image's.
	maxAccounts = 4 << 20
)

// accounts are the users and groups of a container, as its own files have them.
type accounts struct{ passwd, group string }

// readAccounts reads them; an image may have none.
func readAccounts() (accounts, error) {
	var a accounts
	var err error
	if a.passwd, err = system.ReadBounded(passwdFile, maxAccounts); err != nil {
		return a, err
	}
	a.group, err = system.ReadBounded(groupFile, maxAccounts)
	return a, err
}

// who resolves NAME, UID, NAME:GROUP or UID:GID; empty is root. A number needs no entry, a name does.
// Further groups come with a user whose group is not named, as images expect it.
func (a accounts) who(spec string) (*identity, *initwire.Failed) {
	user, group, named := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	id := &identity{home: "/"}
	found := false
	number, numeric := parseID(user)
	each(a.passwd, 7, func(f []string) bool {
		uid, ok := parseID(f[2])
		if !ok || f[0] != user && !(numeric && uid == number) {
			return true
		}
		gid, _ := parseID(f[3])
		id.uid, id.gid, id.name, found = uid, gid, f[0], true
		if strings.HasPrefix(f[5], "/") {
			id.home = f[5]
		}
		if id.shell = f[6]; id.shell == "" {
			id.shell = "/bin/sh" // as passwd(5) has it
		}
		return false
	})
	switch {
	case found:
	case numeric:
		id.uid = number
	default:
		return nil, initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(user)+" is not in "+passwdFile+" of the container")
	}
	if named && group != "" {
		gid, ok := a.groupID(group)
		if !ok {
			return nil, initwire.UserFault(initwire.ReasonSpec, "group "+strconv.Quote(group)+" is not in "+groupFile+" of the container")
		}
		id.gid = gid
		return id, nil
	}
	if found {
		id.groups = a.groupsOf(id.name, id.gid)
	}
	return id, nil
}

func (a accounts) groupID(group string) (gid uint32, ok bool) {
	each(a.group, 4, func(f []string) bool {
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

// groupsOf are the groups that list a user, but its first.
func (a accounts) groupsOf(user string, first uint32) (all []uint32) {
	const most = 65536 // NGROUPS_MAX
	each(a.group, 4, func(f []string) bool {
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

// parseID reads a number of a user or group; the highest means "leave it" to the kernel, and is nobody's.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}
