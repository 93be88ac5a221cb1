package server

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/imagecache"
)

var update = flag.Bool("update", false, "write docs/metrics.md from the descriptions of the metrics")

var description = regexp.MustCompile(`^Desc\{fqName: "(muster_[a-z_]+)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// TestPageOfMetrics: docs/metrics.md is what the metrics say of themselves. With -update it is
// written, else compared.
func TestPageOfMetrics(t *testing.T) {
	const path = "../../docs/metrics.md"
	var rows []string
	synctest.Test(t, func(t *testing.T) {
		m := newMeasured(t, 1)
		(&Server{}).measureConnections(m.registry, &conns.Listener{})
		(&Server{}).measureConfig(m.registry)
		measureImageCache(m.registry, func() imagecache.Stats { return imagecache.Stats{} })
		m.registry.MustRegister(clusterMetrics{})
		descs := make(chan *prometheus.Desc)
		go func() {
			m.registry.Describe(descs)
			close(descs)
		}()
		for d := range descs {
			if f := description.FindStringSubmatch(d.String()); f != nil {
				labels := strings.ReplaceAll(f[3], ",", ", ")
				if labels != "" {
					labels = "`" + labels + "`"
				}
				rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", f[1], labels, strings.ReplaceAll(f[2], `\"`, `"`)))
			} else if strings.Contains(d.String(), `"muster_`) {
				t.Errorf("not understood: %s", d)
			}
		}
	})
	slices.Sort(rows)
	rows = slices.Compact(rows)
	page := `# Metrics

Generated from the metrics' own descriptions
(` + "`go test ./internal/server -run TestPageOfMetrics -update`" + `). The server serves them at ` + "`/metrics`" + `,
with its token, beside those of the Go runtime and of the process. Names that end in ` + "`_total`" + ` are
counters, those in ` + "`_seconds`" + ` that measure single events are histograms, the others are gauges.
[operations.md](operations.md#logs-metrics-health) says which ones to watch.

| metric | labels | meaning |
|---|---|---|
` + strings.Join(rows, "")
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if was, err := os.ReadFile(path); err != nil || string(was) != page {
		t.Errorf("docs/metrics.md is not what the metrics say; run this test with -update (%v)", err)
	}
	if len(rows) < 60 {
		t.Errorf("only %d metrics", len(rows))
	}
}
