package initbox

import (
	"os"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// clockTick is USER_HZ, which Linux fixes at 100 towards programs.
const clockTick = time.Second / 100

func (s *sandbox) Usage() contract.Usage {
	if s.isDone() {
		return s.usage
	}
	now, _ := s.measure()
	s.checkFlood() // what it uses of the node without being asked
	if s.k.config.Disk != nil {
		now.Disk, now.DiskMax = s.k.config.Disk(s.dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cpu = max(s.cpu, now.CPU)
	now.CPU = s.cpu
	return now
}

func (s *sandbox) OOMKills() int64 { return cgroup.OOMKills(s.record.Cgroups) }

// measure tells what the sandbox uses now, by its cgroup as far as it can; peak is the most memory that was in that.
func (s *sandbox) measure() (u contract.Usage, peak muster.Bytes) {
	m := cgroup.Measure(s.record.Cgroups)
	u = contract.Usage{CPU: m.CPU, Memory: m.Memory, Pids: m.Pids, PidsMax: m.PidsMax}
	u.OOMKills, _ = cgroup.OutOfMemory(s.record.Cgroups)
	if m.HasMemory && m.HasCPU {
		return u, m.Peak
	}
	summed := usageOfProcesses(s.record.Cgroups, s.init)
	if !m.HasMemory {
		u.Memory = summed.Memory
	}
	if !m.HasCPU {
		u.CPU = summed.CPU
	}
	return u, m.Peak
}

// usageOfProcesses adds up what /proc says. What a dead process used is counted by whoever reaped it.
func usageOfProcesses(dirs []string, init initwire.Process) (u contract.Usage) {
	if st, ok := ReadStat(init.Pid); !ok || st.Start != init.Start {
		return u
	}
	pids, ok := cgroup.Pids(dirs)
	if !ok {
		pids = append(descendants(init.Pid), init.Pid)
	}
	page := int64(os.Getpagesize())
	for _, pid := range pids {
		st, ok := ReadStat(pid)
		if !ok {
			continue
		}
		u.CPU += time.Duration(st.Reaped) * clockTick
		if pid != init.Pid { // init's own use is ours, not the command's
			u.CPU += time.Duration(st.Ticks) * clockTick
			u.Memory += muster.Bytes(st.Pages * page)
		}
	}
	return u
}
