package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/imagetest"
)

// With image_cache a node gets its image from the server: the registry is asked once for each part,
// and not at all when the image is gone from the node. Its password, which the registry wants with
// each request, stays on the server.
func TestImageFromTheServersCache(t *testing.T) {
	t.Parallel()
	needContainers(t)
	registry := imagetest.NewRegistry(t, imagetest.Basic)
	ref := registry.Push(t, "team/app:1", imagetest.Busybox(t))
	h := newHost(t, func(c *api.ServerConfig) {
		c.Log.Level = "debug"
		c.ImageCache.Size = 1 << 30
	})
	h.write("password", imagetest.Password+"\n")
	h.config.Registries = []api.RegistrySpec{{Host: registry.Host, Username: imagetest.User, PasswordFile: h.path("password"), Insecure: true}}
	h.start()
	run, work := h.container("work", ref, nil, "sh", "-c", "echo hello; until [ -e /gate ]; do sleep 0.05; done; echo over")
	h.noSecret("work")
	h.open(work, "/gate")
	run.says(0)
	fetched := map[string]int{}
	for _, line := range registry.Served() {
		if strings.HasPrefix(line, "GET ") && strings.Contains(line, "sha256:") && strings.HasSuffix(line, " 200") {
			fetched[line]++
		}
	}
	for line, n := range fetched {
		if n != 1 {
			t.Errorf("%d times: %s", n, line)
		}
	}
	if len(fetched) < 2 {
		t.Errorf("the registry sent %v", fetched)
	}
	// The node goes with its images, and the registry is out of order: the server still has it.
	h.idle()
	h.stop()
	if err := os.RemoveAll(filepath.Join(h.instances(), "images")); err != nil {
		t.Fatal(err)
	}
	registry.Strike(imagetest.Fault{Times: -1, Status: 503})
	h.start()
	again := h.cli("run", "--name", "again", "--image", ref, "--", "echo", "again")
	again.says(0)
	if again.stdout.String() != "again\n" {
		t.Errorf("%q", again.stdout)
	}
	if !h.logged("registry does not answer, the cached image is used") {
		t.Error("the registry was not asked, or it answered")
	}
	h.idle()
	h.noSecret("again")
	h.nothingLeft()
	h.quiet("registry does not answer, the cached image is used")
}

// Credentials of a registry that are for one namespace are used for that alone, also when the image is
// on the node already: with and without the server's cache, and after a restart of server and agent.
func TestPrivateImageOfANamespace(t *testing.T) {
	t.Parallel()
	needContainers(t)
	for _, cached := range []bool{false, true} {
		registry := imagetest.NewRegistry(t, imagetest.Token)
		ref := registry.Push(t, "team/app:1", imagetest.Busybox(t))
		h := newHost(t, func(c *api.ServerConfig) {
			if cached {
				c.ImageCache.Size = 1 << 30
			}
		})
		h.write("password", imagetest.Password+"\n")
		h.config.Registries = []api.RegistrySpec{{Host: registry.Host, Username: imagetest.User, PasswordFile: h.path("password"), Insecure: true, Namespaces: []string{"web"}},
			// Plain HTTP is for tests; who has no entry would not even come to the registry.
			{Host: registry.Host, Insecure: true}}
		h.start()
		for round := range 2 {
			run := h.cli("run", "-n", "web", "--image", ref, "--", "echo", "mine")
			run.says(0)
			if run.stdout.String() != "mine\n" {
				t.Errorf("%q", run.stdout)
			}
			other := h.cli("run", "-n", "other", "--image", ref, "--", "echo", "stolen")
			other.says(1)
			if strings.Contains(other.stdout.String(), "stolen") || !strings.Contains(other.stderr.String(), ref) {
				t.Errorf("round %d, cached %v: %q %q", round, cached, other.stdout, other.stderr)
			}
			h.stop()
			h.start()
		}
		h.noSecret("web")
		h.idle()
		h.nothingLeft()
	}
}
