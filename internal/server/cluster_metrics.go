package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/api"
)

var (
	descLeads     = prometheus.NewDesc("muster_server_leads", "1 while this server leads its cluster, else 0. One server of a cluster has 1; none for long means that nothing is placed.", nil, nil)
	descApplied   = prometheus.NewDesc("muster_server_applied_index", "Index of the newest log entry that this server's state has. Compare servers: a difference that grows is a server that falls behind.", nil, nil)
	descLeaderAge = prometheus.NewDesc("muster_server_leader_age_seconds", "Time since this server heard from the leader; 0 on the leader.", nil, nil)
	descFormat    = prometheus.NewDesc("muster_log_format", "The log format in force.", nil, nil)
	descServers   = prometheus.NewDesc("muster_cluster_servers", "Servers of the cluster, by role.", []string{"role"}, nil)
	descUnheard   = prometheus.NewDesc("muster_cluster_servers_unheard", "Servers that do not answer the leader; on the leader only.", nil, nil)
)

// clusterMetrics are those of this server among others. Scrapes may overlap: it has no state of its own.
type clusterMetrics struct{ s *Server }

// Describe sends the descriptions.
func (clusterMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeads, descApplied, descLeaderAge, descFormat, descServers, descUnheard} {
		ch <- d
	}
}

// Collect sends the metrics.
func (m clusterMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	leads := m.s.leading.Load()
	if leads {
		gauge(descLeads, 1)
	} else {
		gauge(descLeads, 0)
	}
	gauge(descApplied, float64(m.s.raft.Applied()))
	if at := m.s.raft.LastContact(); !at.IsZero() {
		gauge(descLeaderAge, max(0, time.Since(at).Seconds()))
	}
	list := serversOf(m.s).List()
	gauge(descFormat, float64(list.Format))
	roles, unheard := map[string]int{api.RoleLeader: 0, api.RoleVoter: 0, api.RoleLearner: 0}, 0
	for i := range list.Servers {
		roles[list.Servers[i].Role]++
		if list.Servers[i].Problem != "" {
			unheard++
		}
	}
	for role, n := range roles {
		gauge(descServers, float64(n), role)
	}
	if leads {
		gauge(descUnheard, float64(unheard))
	}
}
