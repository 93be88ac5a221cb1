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

// State is what is read: the newest snapshot, and how far back the feed reaches.
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

// Metrics are the server's metrics. What is true of the state is read off a snapshot when somebody
// asks: it needs no upkeep and cannot be wrong. Only what leaves no trace in the state is counted
// as it happens. A nil *Metrics counts nothing.
type Metrics struct {
	registry *prometheus.Registry
	// requests by route and status code.
	requests *prometheus.CounterVec
	// executions by how they ended, one of inside.Results.
	executions *prometheus.CounterVec
	// firstOutput is the time from a claim to the first output of its runner.
	firstOutput prometheus.Histogram
}

// New makes the metrics. Every series that can be known now is there at 0: a counter that appears
// with its first event looks to Prometheus as if nothing had happened.
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

// Registry is where other packages register their metrics, so that all are on one page.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler shows the metrics in the text format. A scrape walks the state: more than four at a time
// are refused.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Request counts a request by the pattern of its route, and not by its path: paths have no end.
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

// stateCollector reads a snapshot. Its cost is a walk over the rows of jobs, live allocations and
// nodes; ended allocations are counted by their tree.
type stateCollector struct {
	cfg      Config
	spending spending

	// mu guards sums, those of the snapshot with this index.
	mu    sync.Mutex
	sums  *sums
	index uint64
}

// nodeLabels tell nodes apart in muster_nodes.
type nodeLabels struct{ stage, health, offering string }

// sums are the figures of one snapshot that take a walk over rows.
type sums struct {
	jobs    map[muster.JobStage]int
	members map[muster.MemberStatus]int
	// running are those of the placed members whose command runs.
	running   int
	allocs    map[muster.AllocStatus]int
	nodes     map[nodeLabels]int
	instances map[instanceLabels]instanceSum
	pools     map[muster.PoolName]int
	// price is per hour, in whole units of the operator's currency.
	price float64
	// unsettled are jobs with members that the scheduler has not placed yet.
	unsettled int
}

// sumUp walks over the rows. Environments are jobs to the state and not to those who read metrics:
// they have metrics of their own.
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
	// Ended allocations may be millions. Their number is known without a walk.
	s.allocs[muster.AllocEnded] = snap.AllocCount() - snap.LiveAllocCount()
	snap.LiveNodes(func(n *state.Node) bool {
		s.nodes[nodeLabels{string(n.Stage), string(n.Health), string(n.Offering.Name)}]++
		s.price += float64(n.Offering.Price) / 1e6
		s.pools[n.Pool]++
		return true
	})
	return s
}

// latest returns the figures of the newest snapshot. They are summed up once for each snapshot,
// however many scrapes ask.
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

// desc describes a metric with its labels.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe names the metrics to the registry, as prometheus.Collector wants it.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range append([]*prometheus.Desc{
		descBuild, descJobs, descMembers, descRunning, descAllocs, descNodes, descPrice, descUnsettled, descIndex, descTerm, descFeed, descBlobs,
	}, append(append(fleetDescs(), runnerDescs()...), namespaceDescs()...)...) {
		out <- d
	}
}

// Collect reads the metrics for one scrape. Every stage and status is there, at 0 if need be, so
// that a sum over all of them is never short of one.
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
	// Nodes are shown only as they are: stages, healths and offerings together make too many
	// series.
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

// executionMetrics makes what is counted of executions.
func executionMetrics() (*prometheus.CounterVec, prometheus.Histogram) {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_executions_total", Help: "Executions whose end was observed, by how they ended.",
	}, []string{"result"})
	// A counter that is missing until its first event hides that event from Prometheus.
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

// FirstOutput is told how long it took from a claim to the first output of an execution in its
// runner.
func (m *Metrics) FirstOutput(took time.Duration) {
	if m != nil {
		m.firstOutput.Observe(took.Seconds())
	}
}
