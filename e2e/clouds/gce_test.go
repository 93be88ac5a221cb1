package clouds

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/gce/gcetest"
	"github.com/musterhq/muster/internal/cloud/standin/netns"
)

// openGCE is a project of Compute Engine, of which two zones are used. It has spot instances, and says
// that it takes one back by the metadata service alone.
func openGCE(t *testing.T, script string) *stand {
	t.Helper()
	var c *gcetest.Cloud
	m := machinesOf(t, netns.Config{Service: netns.GCE, Notice: func(id string) (time.Time, bool) { return c.Notice(id) }})
	c = gcetest.New(t, gcetest.Options{Machines: m, Script: script})
	return &stand{
		api: c.URL, cut: cutter(m), take: c.Take,
		provider: func(name, api string) string {
			return fmt.Sprintf(`- name: %s
  type: gce
  project: %s
  zones: [europe-west1-b, europe-west1-c]
  types: [n2-standard-2]
  prices: {n2-standard-2: 0.1, n2-standard-2/spot: 0.03}
  markets: [on-demand, spot]
  endpoint: %s
  credentials: {file: %s}
  ssh: {user: root, shutdown: %q}
  boot_probe: {command: "true"}
`, name, gcetest.Project, api, c.CredentialsFile(api), noShutdown)
		},
		changes: func(r *http.Request, _ []byte) bool {
			// A wait for an operation is a POST, and so is the way to a token.
			return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/instances")
		},
		books: func(testing.TB) books {
			b := books{byToken: map[string][]string{}, hosts: m.Running()}
			var addresses []string
			b.machines, b.leftovers, addresses, _ = c.Books()
			b.leftovers = append(b.leftovers, addresses...)
			for _, made := range c.Ever() {
				b.byToken[made.Token] = append(b.byToken[made.Token], made.ID)
			}
			return b
		},
	}
}
