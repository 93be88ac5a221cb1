package clouds

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/cloud/openstack/openstacktest"
)

// openOpenStack is a project of an OpenStack cloud with two zones. It has one market and no notices.
// The calls go where its catalog says, which is where the server signs in.
func openOpenStack(t *testing.T, script string) *stand {
	t.Helper()
	m := machines(t, nil)
	c := openstacktest.New(t, openstacktest.Options{Machines: m, Script: script})
	return &stand{
		api: c.URL, cut: cutter(m), play: c.Play,
		provider: func(name, api string) string {
			return fmt.Sprintf(`- name: %s
  type: openstack
  cloud: %s
  network: %s
  image: %s
  types: [m1.medium]
  prices: {m1.medium: 0.04}
  credentials: {file: %s}
  ssh: {user: root, shutdown: %q}
  boot_probe: {command: "true"}
`, name, openstacktest.Cloud, openstacktest.Network, openstacktest.Image, c.CloudsFileAt(api), noShutdown)
		},
		changes: func(r *http.Request, _ []byte) bool {
			return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/compute/")
		},
		books: func(testing.TB) books {
			b := books{byToken: map[string][]string{}, hosts: m.Running()}
			// A server that is killed leaves its lock for some minutes. It costs nothing.
			b.machines, b.leftovers, _ = c.Books()
			for _, made := range c.Ever() {
				b.byToken[made.Token] = append(b.byToken[made.Token], made.ID)
			}
			return b
		},
	}
}
