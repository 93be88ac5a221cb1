package initbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/musterhq/muster"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// maxDescriptors bounds how many of init's descriptors are looked at.
const maxDescriptors = 4096

// outBound is how much may lie in Out: twice of what an init that does as it is told ever has there.
func outBound(s *initwire.Sandbox) int64 {
	return 2 * (2*max(s.OutputLimit, initwire.MinOutputLimit) + initwire.SpoolsLimit)
}

// checkFlood ends a walled sandbox whose init fills this node's disk through Out. An honest one cannot: what commands print is
// dropped or waits long before. It is a look now and then and no wall: by the next look there can be more.
func (s *sandbox) checkFlood() {
	if !walled(s.record) || s.record.OutputLimit <= 0 || s.pidfd == nil {
		return
	}
	why := s.flood(outBound(s.record))
	if why == "" {
		return
	}
	s.mu.Lock()
	first := s.flooded == ""
	if first {
		s.flooded = why
	}
	s.mu.Unlock()
	if !first {
		return
	}
	s.k.log.Warn("a sandbox is ended from outside", "alloc", s.record.Alloc, "dir", s.dir, "why", why)
	go func() {
		if err := KillAll(context.Background(), s.dir); err != nil {
			s.k.log.Error("a sandbox does not end", "alloc", s.record.Alloc, "error", err)
		}
	}()
}

// flood says what is in Out that cannot be; empty: all is well.
func (s *sandbox) flood(bound int64) string {
	var out syscall.Stat_t
	path := filepath.Join(s.dir, Out)
	d, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(maxNames)
	if len(names) == maxNames {
		return fmt.Sprintf("its init made %d files and more in the directory of its output", maxNames)
	}
	if syscall.Lstat(path, &out) != nil {
		return ""
	}
	total := int64(0)
	for _, name := range names {
		var st syscall.Stat_t
		if syscall.Lstat(filepath.Join(path, name), &st) != nil {
			continue // dropped just now
		}
		if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			return fmt.Sprintf("its init made a directory, %q, in that of its output", name)
		}
		total += st.Blocks * 512
	}
	if total += hidden(s.init, out.Dev); total > bound {
		return fmt.Sprintf("its init has %s in the directory of its output, where it never needs more than %s", muster.Bytes(total), muster.Bytes(bound/2))
	}
	return ""
}

// hidden is what init holds open of files without a name on this device.
func hidden(init initwire.Process, device uint64) (total int64) {
	dir := "/proc/" + strconv.Itoa(init.Pid) + "/fd"
	d, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(maxDescriptors)
	for _, name := range names {
		var st syscall.Stat_t
		if syscall.Stat(dir+"/"+name, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Nlink == 0 && st.Dev == device {
			total += st.Blocks * 512
		}
	}
	// Looked at last: these were init's all along.
	if !Living(init) {
		return 0
	}
	return total
}
