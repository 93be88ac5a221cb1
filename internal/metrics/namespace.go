package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// maxNamespaceSeries bounds how many namespaces are told apart in metrics, the first by name. All
// of them together, as "*", are always there.
const maxNamespaceSeries = 500

var (
	descNamespaceAllocs  = desc("muster_namespace_allocations", "Allocations that have not ended, by namespace; * is all of them.", "namespace")
	descNamespaceWaiting = desc("muster_namespace_waiting_members", "Members that want an allocation, by namespace; * is all of them.", "namespace")
	descNamespaceCPU     = desc("muster_namespace_cpu_cores", "Cores that allocations hold, by namespace; * is all of them.", "namespace")
	descNamespaceMemory  = desc("muster_namespace_memory_bytes", "Memory that allocations hold, by namespace; * is all of them.", "namespace")
)

// namespaceDescs are the metrics of namespaces.
func namespaceDescs() []*prometheus.Desc {
	return []*prometheus.Desc{descNamespaceAllocs, descNamespaceWaiting, descNamespaceCPU, descNamespaceMemory}
}

// collectNamespaces shows what namespaces have and want, which the state keeps summed up.
func collectNamespaces(snap *state.Snapshot, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	send := func(u *state.NamespaceUse) {
		name := string(u.Name)
		gauge(descNamespaceAllocs, float64(u.Allocs), name)
		gauge(descNamespaceWaiting, float64(u.Waiting), name)
		gauge(descNamespaceCPU, float64(u.Used.CPU)/1000, name)
		gauge(descNamespaceMemory, float64(u.Used.Memory), name)
	}
	// The sum comes first and is the state's own: it counts also the namespaces that are left out.
	send(snap.Use(muster.AllNamespaces))
	n := 0
	snap.Uses(func(u *state.NamespaceUse) bool {
		if u.Name != muster.AllNamespaces {
			send(u)
			n++
		}
		return n < maxNamespaceSeries
	})
}
