package initbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// EndForgotten ends all sandboxes of an agent but those that are known, and returns how many they were. Their directories
// are gone: somebody deleted them while the sandboxes ran. The server gives their members to another node once it hears that
// nothing is known of them, so it must not hear that before they have ended.
//
// With cgroups it finds them by these. Without, it finds their inits by the directory below sandboxes that each holds open.
func EndForgotten(ctx context.Context, groups *cgroup.Groups, sandboxes string, known []muster.AllocID) (int, error) {
	found := forgottenInits(sandboxes, known)
	if groups != nil {
		found = forgottenGroups(groups, known)
	}
	ended := 0
	var errs []error
	for _, record := range found {
		if len(members(record)) > 0 {
			ended++
		}
		name := "the sandbox " + record.Sandbox.Alloc + ", whose directory is gone,"
		err := killAll(ctx, name, func() (*initwire.Record, error) { return record, nil })
		errs = append(errs, errors.Join(err, cgroup.RemoveAll(record.Sandbox.Cgroups)))
	}
	return ended, errors.Join(errs...)
}

// forgottenGroups are the sandboxes with a cgroup that are not known. Of these the cgroup is all that a record needs to have.
func forgottenGroups(groups *cgroup.Groups, known []muster.AllocID) (found []*initwire.Record) {
	keep := map[string]bool{}
	for _, id := range known {
		keep[cgroup.Name(id, "")] = true
	}
	for _, name := range groups.Names() {
		if !keep[name] {
			found = append(found, &initwire.Record{Sandbox: &initwire.Sandbox{Alloc: name, Cgroups: groups.Everywhere(name)}})
		}
	}
	return found
}

// forgottenInits are the sandboxes that are not known whose init holds a directory below sandboxes open.
func forgottenInits(sandboxes string, known []muster.AllocID) (found []*initwire.Record) {
	for pid, st := range allStats() {
		text, _ := cgroup.ReadSmall("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if !strings.HasPrefix(text, InitName+"\x00") {
			continue
		}
		id, ok := openBelow(pid, sandboxes)
		if ok && !slices.Contains(known, muster.AllocID(id)) {
			found = append(found, &initwire.Record{Sandbox: &initwire.Sandbox{Alloc: id}, Init: &initwire.Process{Pid: pid, Start: st.Start}})
		}
	}
	return found
}

// InitName is the first argument of each init.
const InitName = "muster-init"

// openBelow is the name of that directory directly below dir which a process holds open, even if it has been deleted.
func openBelow(pid int, dir string) (name string, ok bool) {
	descriptors := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, _ := os.ReadDir(descriptors) // none, where it is another user's
	for _, e := range entries {
		path, _ := os.Readlink(filepath.Join(descriptors, e.Name()))
		path = strings.TrimSuffix(path, " (deleted)")
		if rest, below := strings.CutPrefix(path, dir+"/"); below && filepath.Base(rest) == rest {
			return rest, true
		}
	}
	return "", false
}
