package clouds

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/azure/azuretest"
	"github.com/musterhq/muster/internal/cloud/standin/netns"
)

// openAzure is a resource group of Azure in one location. It has spot machines, and says by a scheduled
// event that it evicts one. The server has a managed identity, and logs in as azureuser, since Azure
// makes no user root.
func openAzure(t *testing.T, script string) *stand {
	t.Helper()
	var c *azuretest.Cloud
	m := machinesOf(t, netns.Config{Service: netns.Azure, User: "azureuser", Notice: func(id string) (time.Time, bool) { return c.Notice(id) }})
	c = azuretest.New(t, azuretest.Options{Machines: m, Page: 50})
	if err := c.Play(script); err != nil {
		t.Fatal(err)
	}
	return &stand{
		api: c.URL, cut: cutter(m), take: c.Take, play: c.Play, env: c.Environment,
		provider: func(name, api string) string {
			return fmt.Sprintf(`- name: %s
  type: azure
  subscription: %s
  resource_group: %s
  location: %s
  zones: ["1", "2"]
  subnet: %s
  types: [Standard_D2s_v5]
  markets: [on-demand, spot]
  endpoint: %s
  boot_probe: {command: "true"}
`, name, azuretest.Subscription, azuretest.Group, azuretest.Location, azuretest.Subnet, api)
		},
		changes: func(r *http.Request, _ []byte) bool { return r.Method != http.MethodGet },
		books: func(testing.TB) books {
			b := books{byToken: map[string][]string{}, hosts: m.Running()}
			b.machines, b.leftovers, _ = c.Books()
			for _, made := range c.Ever() {
				b.byToken[made.Token] = append(b.byToken[made.Token], made.ID)
			}
			return b
		},
	}
}
