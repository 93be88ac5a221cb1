package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
)

// State is what is read.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config is what metrics are read from.
type Config struct {
	State State
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	// BlobBytes is how much is stored. Optional.
	BlobBytes func() int64
	Version   string
}

// Metrics are the server's metrics. What is true of the state is read off a
// snapshot when somebody asks, not kept up to date; a nil *Metrics counts nothing.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec

	executions  *prometheus.CounterVec
	firstOutput prometheus.Histogram
}

// New makes them, with every counter at 0.
func New(c Config) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_http_requests_total", Help: "Requests answered, by route and status code.",
		}, []string{"route", "code"}),
	}
	m.executions, m.firstOutput = executionMetrics()
	m.registry.MustRegister(
		m.requests, m.executions, m.firstOutput, &stateCollector{cfg: c},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Registry takes the metrics of other packages.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler shows the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Request counts a request.
func (m *Metrics) Request(route string, code int) {
	if m != nil {
		m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
	}
}

// Route makes the counter of a route's success, so that it is there at 0.
func (m *Metrics) Route(route string, code int) {
	if m != nil {
		m.requests.WithLabelValues(route, strconv.Itoa(code))
	}
}

// stateCollector reads a snapshot. Its cost is a walk over the rows of jobs,
// live allocations and nodes; ended allocations are counted by their tree.
type stateCollector struct {
	cfg      Config
	spending spending

	mu    sync.Mutex
	sums  *sums
	index uint64
}

type nodeLabels struct{ stage, health, offering string }

// sums are the figures of one snapshot.
type sums struct {
	jobs      map[muster.JobStage]int
	members   map[muster.MemberStatus]int
	running   int
	allocs    map[muster.AllocStatus]int
	nodes     map[nodeLabels]int
	instances map[instanceLabels]instanceSum
	pools     map[muster.PoolName]int
	price     float64
	unsettled int
}

func sumUp(snap *state.Snapshot) *sums {
	s := &sums{
		jobs: map[muster.JobStage]int{}, members: map[muster.MemberStatus]int{},
		allocs: map[muster.AllocStatus]int{}, nodes: map[nodeLabels]int{},
		instances: instances(snap), pools: map[muster.PoolName]int{},
		unsettled: snap.UnsettledCount(),
	}
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if j.Env != nil {
			return true // counted by what they are
		}
		s.jobs[j.Stage]++
		s.members[muster.MemberWaiting] += j.Waiting()
		s.members[muster.MemberPlaced] += j.Placed
		s.members[muster.MemberSucceeded] += j.Succeeded
		s.members[muster.MemberFailed] += j.Failed
		s.members[muster.MemberStopped] += j.Stopped
		s.running += j.Running
		return true
	})
	snap.LiveAllocs(func(a *state.Alloc) bool {
		s.allocs[a.Status]++
		return true
	})
	s.allocs[muster.AllocEnded] = snap.AllocCount() - snap.LiveAllocCount()
	snap.LiveNodes(func(n *state.Node) bool {
		s.nodes[nodeLabels{string(n.Stage), string(n.Health), string(n.Offering.Name)}]++
		s.price += float64(n.Offering.Price) / 1e6
		s.pools[n.Pool]++
		return true
	})
	return s
}

// latest are the figures of the newest snapshot; counted once however many ask.
func (c *stateCollector) latest() (*sums, *state.Snapshot) {
	snap := c.cfg.State.Latest()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sums == nil || c.index != snap.Index() {
		c.sums, c.index = sumUp(snap), snap.Index()
	}
	return c.sums, snap
}

var (
	descBuild     = desc("muster_build_info", "Always 1.", "version")
	descJobs      = desc("muster_jobs", "Jobs by stage.", "stage")
	descMembers   = desc("muster_members", "Members of jobs by status.", "status")
	descRunning   = desc("muster_members_running", "Members whose allocation runs; the rest of those placed are starting.")
	descAllocs    = desc("muster_allocations", "Allocations by status.", "status")
	descNodes     = desc("muster_nodes", "Nodes that are not gone.", "stage", "health", "offering")
	descPrice     = desc("muster_nodes_price_per_hour", "List price of the nodes that are not gone, in the operator's currency.")
	descUnsettled = desc("muster_jobs_unsettled", "Jobs with members that the scheduler has not placed yet.")
	descIndex     = desc("muster_log_index", "Index of the last log entry applied.")
	descTerm      = desc("muster_log_term", "Term of the newest leader.")
	descFeed      = desc("muster_feed_oldest_index", "Changes after this index are kept for /v1/events.")
	descBlobs     = desc("muster_blob_bytes", "Bytes in the blob store.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe names the metrics.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range append([]*prometheus.Desc{
		descBuild, descJobs, descMembers, descRunning, descAllocs, descNodes, descPrice, descUnsettled, descIndex, descTerm, descFeed, descBlobs,
	}, append(append(fleetDescs(), runnerDescs()...), namespaceDescs()...)...) {
		out <- d
	}
}

// Collect reads them. Every stage and status is there, at 0 if need be.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	s, snap := c.latest()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descBuild, 1, c.cfg.Version)
	for _, stage := range []muster.JobStage{muster.JobLive, muster.JobStopping, muster.JobEnded} {
		gauge(descJobs, float64(s.jobs[stage]), string(stage))
	}
	for _, status := range []muster.MemberStatus{muster.MemberWaiting, muster.MemberPlaced, muster.MemberSucceeded, muster.MemberFailed, muster.MemberStopped} {
		gauge(descMembers, float64(s.members[status]), string(status))
	}
	gauge(descRunning, float64(s.running))
	for _, status := range []muster.AllocStatus{muster.AllocPlaced, muster.AllocStarting, muster.AllocRunning, muster.AllocEnded} {
		gauge(descAllocs, float64(s.allocs[status]), string(status))
	}
	for l, n := range s.nodes {
		gauge(descNodes, float64(n), l.stage, l.health, l.offering)
	}
	gauge(descPrice, s.price)
	c.collectFleet(s, snap, out)
	collectRunners(snap, out)
	collectNamespaces(snap, gauge)
	gauge(descUnsettled, float64(s.unsettled))
	gauge(descIndex, float64(snap.Index()))
	gauge(descTerm, float64(snap.Meta().Term))
	gauge(descFeed, float64(c.cfg.State.Feed().Oldest().Index))
	if c.cfg.BlobBytes != nil {
		gauge(descBlobs, float64(c.cfg.BlobBytes()))
	}
}

func executionMetrics() (*prometheus.CounterVec, prometheus.Histogram) {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_executions_total", Help: "Executions that somebody saw the end of, by how they ended.",
	}, []string{"result"})
	for _, r := range inside.Results() {
		results.WithLabelValues(r)
	}
	return results, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "muster_claim_first_output_seconds", Help: "From a claim to the first output of an execution in its runner.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30, 120},
	})
}

// Execution counts an execution that somebody saw the end of.
func (m *Metrics) Execution(result string) {
	if m != nil {
		m.executions.WithLabelValues(result).Inc()
	}
}

// FirstOutput is told how long it took from a claim to the first output of an execution in its runner.
func (m *Metrics) FirstOutput(took time.Duration) {
	if m != nil {
		m.firstOutput.Observe(took.Seconds())
	}
}
