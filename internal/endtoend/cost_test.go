package endtoend

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cost is processor time so far.
type cost struct {
	server, agents time.Duration
	// children are those that agents have reaped: inits, with the commands that they have reaped.
	children time.Duration
	client   time.Duration // this process
}

func (c cost) sub(d cost) cost {
	return cost{c.server - d.server, c.agents - d.agents, c.children - d.children, c.client - d.client}
}

func (c cost) total() time.Duration { return c.server + c.agents + c.children }

// per reports each share for one of n operations. The client's is not the system's.
func (c cost) per(b *testing.B, n int) {
	for _, x := range []struct {
		d    time.Duration
		unit string
	}{
		{c.total(), "cpu-µs/op"}, {c.server, "server-µs/op"}, {c.agents, "agents-µs/op"},
		{c.children, "sandboxes-µs/op"}, {c.client, "client-µs/op"},
	} {
		b.ReportMetric(float64(x.d.Microseconds())/float64(n), x.unit)
	}
}

func (h *host) cost() cost {
	h.tb.Helper()
	var c cost
	own, _ := times(h.tb, h.cmd.Process.Pid)
	c.server = own
	for _, pid := range h.agents() {
		own, reaped := times(h.tb, pid)
		c.agents += own
		c.children += reaped
	}
	var self syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	c.client = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return c
}

// agents are the processes of this host's instances.
func (h *host) agents() (pids []int) {
	records, _ := filepath.Glob(filepath.Join(h.data, "*", "i-*"))
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		words := bytes.Split(line, []byte{0})
		if len(words) < 2 || string(words[1]) != "agent" {
			continue
		}
		if slices.ContainsFunc(words, func(w []byte) bool { return slices.Contains(records, string(w)) }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// times are the processor times of a process and of the children that it has reaped.
func times(tb testing.TB, pid int) (own, reaped time.Duration) {
	tb.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		tb.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	ticks := func(fields ...int) (d time.Duration) {
		for _, i := range fields { // as numbered in proc(5)
			n, _ := strconv.ParseInt(f[i-3], 10, 64)
			d += time.Duration(n) * 10 * time.Millisecond
		}
		return d
	}
	return ticks(14, 15), ticks(16, 17)
}

// resident is what a process has in memory, in MiB.
func resident(tb testing.TB, pid int) float64 {
	tb.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			n, _ := strconv.ParseFloat(f[1], 64)
			return n / 1024
		}
	}
	tb.Fatalf("process %d: no VmRSS", pid)
	return 0
}

// spread reports the middle and the 99th of a hundred.
func spread(b *testing.B, name string, all []time.Duration) {
	b.Helper()
	if len(all) == 0 {
		b.Fatalf("%s: nothing was measured", name)
	}
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(all[len(all)/2]), name+"-p50-ms")
	b.ReportMetric(ms(all[min(len(all)*99/100, len(all)-1)]), name+"-p99-ms")
}
