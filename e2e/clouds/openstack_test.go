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
		locks: func() []string {
			_, _, pairs := c.Books()
			return pairs
		},
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

// A server is killed while it holds the lock of a machine. When it runs again it takes the lock for its
// own, which it may once Nova cannot be busy with the call before. That is a minute.
func TestKilledWithALock(t *testing.T) {
	needFull(t)
	t.Parallel()
	w := serve(t, openOpenStack(t, ""), "1s")
	locks := func(r *http.Request, _ []byte) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/os-keypairs")
	}
	w.killed(1, locks, true, func() error { return w.submit("a", 1, "true") })
	if left := w.c.locks(); len(left) != 1 {
		t.Fatalf("the locks are %v", left)
	}
	w.step("the job behind the lock", func() { w.ended("a") })
	w.step("nothing is left", w.empty)
	w.Until("the lock is gone", func() bool { return len(w.c.locks()) == 0 })
}
