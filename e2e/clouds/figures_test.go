package clouds

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/client"
)

var figures = flag.Bool("clouds.figures", false, "take the figures of docs/benchmarks.md (make bench-clouds)")

func needFigures(t *testing.T) {
	t.Helper()
	if !*figures {
		t.Skip("run by make bench-clouds")
	}
}

// How long it takes until 64 machines that are wanted at once are made within EC2's limits, and until
// the server knows all of them.
func TestFigureOf64Machines(t *testing.T) {
	needFigures(t)
	const wanted, times = 64, 5
	var made, known []time.Duration
	for range times {
		t.Run("", func(t *testing.T) {
			c := openAccount(t, "account: rates 1")
			w := serve(t, c, "1s")
			began := time.Now()
			if err := w.submit("many", wanted, "true", "--cpu", "1.5"); err != nil {
				t.Fatal(err)
			}
			w.Until("all are made", func() bool { return len(c.made()) >= wanted })
			w.Until("the server knows all", func() bool {
				n := 0
				for node, err := range w.Client.AllNodes(t.Context(), client.NodeQuery{}) {
					if err != nil {
						t.Fatal(err)
					}
					if node.Instance != "" {
						n++
					}
				}
				return n == wanted
			})
			known = append(known, time.Since(began))
			last := began
			for _, m := range c.made() {
				if m.Created.After(last) {
					last = m.Created
				}
			}
			made = append(made, last.Sub(began))
			w.tokens(c.books(t))
		})
	}
	slices.Sort(made)
	slices.Sort(known)
	t.Logf("64 machines: made after %v, median %s; known after %v, median %s", made, made[times/2], known, known[times/2])
}

// What 5,000 instances in the lists cost the server in a minute. They are its own, held by an operator,
// and nobody answers at their addresses.
func TestFigureOf5000Listed(t *testing.T) {
	needFigures(t)
	const listed = 5000
	c := openAccount(t, "")
	c.most = listed
	w := serve(t, c, "1s")
	info, err := w.Client.Server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cpu, memory := usage(t, w.PID())
	t.Logf("without instances: %s of CPU since the start, %d MiB", cpu, memory)
	c.populate(info.ClusterID, "main", listed)
	began := time.Now()
	w.Until("all are adopted", func() bool {
		n := 0
		for _, err := range w.Client.AllNodes(t.Context(), client.NodeQuery{}) {
			if err != nil {
				return false
			}
			n++
		}
		return n >= listed
	})
	adopted, _ := usage(t, w.PID())
	t.Logf("adopted after %s, with %s of CPU", time.Since(began).Round(100*time.Millisecond), adopted-cpu)
	from := time.Now()
	w.Until("a minute is over", func() bool { return time.Since(from) >= time.Minute })
	then, memory := usage(t, w.PID())
	t.Logf("%d listed: %s of CPU in %s, %d MiB", listed, then-adopted, time.Since(from).Round(time.Second), memory)
}

// usage is the CPU time of a process and its resident memory in MiB.
func usage(t *testing.T, pid int) (cpu time.Duration, mib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		cpu += time.Duration(n) * 10 * time.Millisecond // the kernel's clock tick for user space
	}
	b, err = os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return cpu, pages * os.Getpagesize() >> 20
}
