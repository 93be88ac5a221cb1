package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/conns"
)

// measureConnections shows how close the API is to its limit of connections. The listener counts;
// the functions read its counters at each scrape.
func (s *Server) measureConnections(r prometheus.Registerer, l *conns.Listener) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_http_connections", Help: "Open connections to the API."},
			func() float64 { return float64(l.Open()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_http_connections_limit", Help: "Most connections to the API at once."},
			func() float64 { return float64(l.Total()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "muster_http_connections_closed_total", Help: "Connections without an admitted request that were closed in favour of new ones."},
			func() float64 { return float64(l.Closed()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "muster_http_connections_refused_total", Help: "Connections that were closed at once because all others served requests."},
			func() float64 { return float64(l.Refused()) }),
	)
}
