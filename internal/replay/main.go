// Command replay puts the tasks of a recorded GPU cluster, in the order of their arrival, on its nodes: by Muster's
// own placement, by first fit and at random, all in one run.
//
//	go run ./internal/replay DIR
//
// DIR has openb_node_list_all_node.csv and openb_pod_list_default.csv of the openb trace. Nothing leaves: the tasks
// ask for more than there is, and what counts is how many find a place. It must never be run by a test: the trace is not part of the project.
package main

import (
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: replay DIR (of the trace)")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	nodes, err := readNodes(filepath.Join(dir, "openb_node_list_all_node.csv"))
	if err != nil {
		return err
	}
	tasks, err := readTasks(filepath.Join(dir, "openb_pod_list_default.csv"))
	if err != nil {
		return err
	}
	gpus := 0
	for _, n := range nodes {
		gpus += n.gpus
	}
	fmt.Printf("%d nodes with %d GPUs, %d tasks\n\n", len(nodes), gpus, len(tasks))
	fmt.Printf("%-10s %8s %8s %10s %14s %13s\n", "", "placed", "not", "GPUs used", "fragmentation", "decisions/s")
	for _, p := range []struct {
		name  string
		place func([]node, []task) ([]machine, int, time.Duration, error)
	}{{"muster", byMuster}, {"first fit", firstFit}, {"random", random}} {
		machines, placed, took, err := p.place(nodes, tasks)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		used := 0
		for i := range machines {
			for _, u := range machines[i].parts {
				used += u
			}
		}
		fmt.Printf("%-10s %8d %8d %9.1f%% %13.1f%% %13.0f\n", p.name, placed, len(tasks)-placed, float64(used)/float64(gpus*muster.WholeDevice)*100,
			fragmentation(machines, tasks)*100, float64(len(tasks))/took.Seconds())
	}
	return nil
}

// node is a machine as the trace has it.
type node struct {
	name     string
	capacity muster.Resources
	gpus     int
	model    string
}

// task is a pod: so many whole GPUs, or a part of one.
type task struct {
	name   string
	ask    muster.Resources
	gpus   int
	part   int
	models []string
	at     int64
}

func rows(file string) ([]map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out []map[string]string
	for _, r := range all[1:] {
		row := map[string]string{}
		for i, name := range all[0] {
			row[name] = r[i]
		}
		out = append(out, row)
	}
	return out, nil
}

func number(row map[string]string, name string) int64 {
	n, _ := strconv.ParseFloat(row[name], 64)
	return int64(n)
}

func readNodes(file string) ([]node, error) {
	all, err := rows(file)
	var out []node
	for _, r := range all {
		out = append(out, node{
			r["sn"], muster.Resources{CPU: muster.MilliCPU(number(r, "cpu_milli")), Memory: muster.Bytes(number(r, "memory_mib")) * muster.MiB},
			int(number(r, "gpu")), r["model"],
		})
	}
	return out, err
}

func readTasks(file string) ([]task, error) {
	all, err := rows(file)
	var out []task
	for _, r := range all {
		t := task{
			name: r["name"], gpus: int(number(r, "num_gpu")), at: number(r, "creation_time"),
			ask: muster.Resources{CPU: muster.MilliCPU(number(r, "cpu_milli")), Memory: muster.Bytes(number(r, "memory_mib")) * muster.MiB},
		}
		if part := int(number(r, "gpu_milli")); t.gpus == 1 && part > 0 && part < muster.WholeDevice {
			t.gpus, t.part = 0, part
		}
		if spec := r["gpu_spec"]; spec != "" && t.gpus+t.part > 0 {
			t.models = strings.Split(spec, "|")
		}
		out = append(out, t)
	}
	slices.SortStableFunc(out, func(a, b task) int { return int(a.at - b.at) })
	return out, err
}

// machine is a node and what is free on it.
type machine struct {
	node
	free  muster.Resources
	parts []int // in use, of each GPU
}

func machinesOf(nodes []node) []machine {
	out := make([]machine, len(nodes))
	for i, n := range nodes {
		out[i] = machine{n, n.capacity, make([]int, n.gpus)}
	}
	return out
}

// usable is how much of the free GPUs a task could be given there, were it there many times over.
func (m *machine) usable(t *task) int {
	if !t.ask.Fits(m.free) || t.gpus+t.part > 0 && len(t.models) > 0 && !slices.Contains(t.models, m.model) {
		return 0
	}
	whole, sum := 0, 0
	for _, u := range m.parts {
		left := muster.WholeDevice - u
		if u == 0 {
			whole++
		}
		if t.part > 0 && left >= t.part {
			sum += left
		}
	}
	switch {
	case t.part > 0:
		return sum
	case t.gpus == 0:
		return 0 // it needs none: what is free is of no use to it
	case whole < t.gpus:
		return 0
	}
	return whole * muster.WholeDevice
}

func (m *machine) fits(t *task) bool {
	return t.ask.Fits(m.free) && (t.gpus+t.part == 0 || m.usable(t) > 0)
}

// put takes the first GPUs that will do.
func (m *machine) put(t *task) {
	m.free = m.free.Sub(t.ask)
	n := t.gpus
	for i, u := range m.parts {
		switch {
		case t.part > 0 && muster.WholeDevice-u >= t.part:
			m.parts[i] += t.part
			return
		case n > 0 && u == 0:
			m.parts[i] = muster.WholeDevice
			n--
		}
	}
}

// fragmentation is which part of the free GPUs a task of the trace, drawn
// blindly, has no use for.
func fragmentation(machines []machine, tasks []task) float64 {
	type kind struct {
		cpu        muster.MilliCPU
		memory     muster.Bytes
		gpus, part int
		models     string
	}
	weight, of := map[kind]int{}, map[kind]*task{}
	for i := range tasks {
		t := &tasks[i]
		k := kind{t.ask.CPU, t.ask.Memory, t.gpus, t.part, strings.Join(t.models, "|")}
		weight[k]++
		of[k] = t
	}
	free, lost := 0.0, 0.0
	for i := range machines {
		m := &machines[i]
		left := 0
		for _, u := range m.parts {
			left += muster.WholeDevice - u
		}
		if left == 0 {
			continue
		}
		free += float64(left)
		for k, w := range weight {
			lost += float64(w) / float64(len(tasks)) * float64(left-m.usable(of[k]))
		}
	}
	if free == 0 {
		return 0
	}
	return lost / free
}

func firstFit(nodes []node, tasks []task) ([]machine, int, time.Duration, error) {
	machines, placed, began := machinesOf(nodes), 0, time.Now()
	for i := range tasks {
		for k := range machines {
			if machines[k].fits(&tasks[i]) {
				machines[k].put(&tasks[i])
				placed++
				break
			}
		}
	}
	return machines, placed, time.Since(began), nil
}

func random(nodes []node, tasks []task) ([]machine, int, time.Duration, error) {
	machines, placed, r, began := machinesOf(nodes), 0, rand.New(rand.NewPCG(1, 2)), time.Now()
	for i := range tasks {
		var fit []int
		for k := range machines {
			if machines[k].fits(&tasks[i]) {
				fit = append(fit, k)
			}
		}
		if len(fit) > 0 {
			machines[fit[r.IntN(len(fit))]].put(&tasks[i])
			placed++
		}
	}
	return machines, placed, time.Since(began), nil
}
