package faults

import (
	"os"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster/internal/imagetest"
)

// An image that is loaded on the server runs with no registry at all, also after the server was
// killed, as a job and in an environment. One in use is not removed, and one that was removed is
// gone.
func TestLoadedImage(t *testing.T) {
	t.Parallel()
	needContainers(t)
	h := newHost(t)
	// No registry answers here: whoever asks one fails.
	const name = "registry.invalid/team/web:1"
	said := func(word string) v1.Image {
		return imagetest.With(t, imagetest.Busybox(t), imagetest.Layer(t, imagetest.File("word", word+"\n", 0o644)))
	}
	imagetest.WriteArchive(t, h.path("web.tar"), name, said("one"))
	imagetest.WriteArchive(t, h.path("new.tar.gz"), name, said("two"))
	h.start()
	load := h.cli("image", "load", h.path("web.tar"))
	load.says(0)
	if got := load.stdout.String(); !strings.HasPrefix(got, name+" sha256:") {
		t.Errorf("loaded: %q", got)
	}
	cat := func(want string) {
		t.Helper()
		run := h.cli("run", "--image", name, "--cpu", "0.1", "--", "cat", "/word")
		run.says(0)
		if got := run.stdout.String(); got != want+"\n" {
			t.Errorf("it ran %q, want %q", got, want)
		}
	}
	cat("one")
	h.kill()
	h.start()
	cat("one")
	// The node has nothing of this one: the server sends it after the restart.
	h.cli("image", "load", h.path("new.tar.gz")).says(0)
	h.kill()
	h.start()
	cat("two")

	h.environment("work", name, 1)
	h.warm("work", 1)
	x := h.cli("x", "work", "--", "cat", "/word")
	x.says(0)
	if got := x.stdout.String(); got != "two\n" {
		t.Errorf("a runner has %q", got)
	}
	h.cli("image", "remove", name).says(1, "environment default/work uses it")
	list, err := h.client().LoadedImages(t.Context())
	if err != nil || len(list.Images) != 1 || list.Images[0].UsedBy != "environment default/work" || list.Used <= 0 {
		t.Errorf("%+v, %v", list, err)
	}
	h.cli("env", "delete", "work").says(0)
	h.eventually("it is removed", func() bool { return h.cli("image", "remove", name).wait() == 0 })
	h.cli("image", "remove", name).says(1, "not loaded on the server")
	if err := os.Remove(h.path("web.tar")); err != nil {
		t.Fatal(err)
	}
	h.cli("image", "load", h.path("web.tar")).says(1, h.path("web.tar"))
	// What the node still has of it is not taken for the registry's image.
	run := h.muster("run", "--name", "gone", "--image", name, "--cpu", "0.1", "--", "cat", "/word")
	h.eventually("the registry is asked", func() bool {
		return strings.Contains(run.stderr.String(), "registry registry.invalid cannot be reached")
	})
	h.cli("job", "stop", "gone").says(0)
	run.wait()
	h.nothingLeft()
	h.quiet()
}
