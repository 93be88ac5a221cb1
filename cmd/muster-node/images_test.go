package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/imagetest"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// preload runs muster-node images with a directory of caches, and returns what it prints.
func preload(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), nodeProgram, append([]string{"images"}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// needContainers skips where containers cannot be had at all.
func needContainers(t *testing.T) {
	t.Helper()
	layertest.NeedRoot(t)
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("crun is not installed")
	}
}

// printed are the images that a command printed as JSON.
func printed(t *testing.T, stdout string) map[string]shownImage {
	t.Helper()
	var out struct{ Images []shownImage }
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	all := map[string]shownImage{}
	for _, i := range out.Images {
		all[i.Image] = i
	}
	return all
}

// What was preloaded runs in a container of the first agent, by its tag and without its registry. What
// is pinned stays when everything else that is unused goes.
func TestPreloadedImagesNeedNoRegistry(t *testing.T) {
	needContainers(t)
	reg := imagetest.NewRegistry(t, imagetest.Token)
	pinned := reg.Push(t, "team/tool:1", imagetest.Busybox(t))
	loose := reg.Push(t, "team/other:1", imagetest.New(t, v1.Config{}, imagetest.Layer(t, imagetest.File("other", "other", 0o644))))
	dir := filepath.Join(t.TempDir(), "images")
	flags := []string{"--images", dir, "--json", "--insecure", reg.Host, "--username", imagetest.User, "--password-file", "-"}
	stdout, stderr, err := preload(t, imagetest.Password+"\n", append([]string{"preload", "--pin", pinned}, flags...)...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if i := printed(t, stdout)[pinned]; !i.Pinned || i.Layers != 1 || i.Size < muster.MiB/2 {
		t.Errorf("%s", stdout)
	}
	// One that cannot be had does not keep the next away. The password is shown nowhere.
	missing := reg.Host + "/team/missing:1"
	stdout, stderr, err = preload(t, imagetest.Password, append([]string{"preload", missing, loose}, flags...)...)
	if i := printed(t, stdout)[loose]; err == nil || i.Pinned || i.Layers != 1 || !strings.Contains(stderr, "1 image not preloaded: "+missing) {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, imagetest.Password) {
		t.Error("the password is printed")
	}
	reg.Strike(imagetest.Fault{Times: -1, Status: http.StatusServiceUnavailable})
	served := len(reg.Served())

	n := newNode(t)
	n.start(nodeProgram, "--images", dir)
	// While the agent is there, nobody else works with its cache.
	if _, stderr, err := preload(t, "", "list", "--images", dir); err == nil || !strings.Contains(stderr, "belongs to the agent of "+n.dir) {
		t.Errorf("%v: %s", err, stderr)
	}
	a := shell("a1", "echo hello from $(busybox | head -1 | cut -d' ' -f1)")
	a.Spec.Image = pinned
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{a}})
	if r := n.until("a1", muster.AllocEnded); r.Outcome != muster.OutcomeSucceeded {
		t.Errorf("%+v", r)
	}
	if out := n.output("a1", "stdout"); !strings.HasPrefix(out, "hello from BusyBox") {
		t.Errorf("%q", out)
	}
	if len(reg.Served()) != served {
		t.Errorf("the registry was asked: %v", reg.Served()[served:])
	}
	n.send(wire.Desired{Forget: []muster.AllocID{"a1"}})
	n.eventually("the image is not in use", func() bool {
		list, err := n.client.Images(t.Context())
		return err == nil && len(list.Images) == 2 && list.Images[0].InUse+list.Images[1].InUse == 0
	})
	if _, err := n.client.PruneImages(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	list, err := n.client.Images(t.Context())
	if err != nil || len(list.Images) != 1 || list.Images[0].Ref != pinned {
		t.Errorf("%+v, %v", list, err)
	}
}

// A pin that is taken away lets the image go; a command that was killed holds nothing.
func TestUnpin(t *testing.T) {
	needContainers(t)
	reg := imagetest.NewRegistry(t, imagetest.Anonymous)
	ref := reg.Push(t, "tool:1", imagetest.New(t, v1.Config{}, imagetest.Layer(t, imagetest.File("tool", "tool", 0o644))))
	dir := filepath.Join(t.TempDir(), "images")
	if _, stderr, err := preload(t, "", "preload", "--pin", "--images", dir, "--insecure", reg.Host, ref); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	stdout, stderr, err := preload(t, "", "list", "--json", "--images", dir)
	if err != nil || !printed(t, stdout)[ref].Pinned {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	if stdout, stderr, err = preload(t, "", "unpin", "--json", "--images", dir, ref); err != nil || printed(t, stdout)[ref].Pinned {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
	if _, stderr, err = preload(t, "", "unpin", "--images", dir, "none:1"); err == nil || !strings.Contains(stderr, "image none:1 is not on this machine") {
		t.Errorf("%v: %s", err, stderr)
	}
}

// Bad input is refused in sentences, before anything is pulled.
func TestPreloadRefusals(t *testing.T) {
	layertest.NeedRoot(t)
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"requires at least 1 arg":  {},
		"is malformed":             {"Not:An:Image"},
		"belong together":          {"--username", "u", "a:1"},
		"of docker.io and ghcr.io": {"--username", "u", "--password-file", "images_test.go", "a:1", "ghcr.io/b/c:1"},
		"it has 0 bytes":           {"--username", "u", "--password-file", file, "a:1"},
		"no such file":             {"--username", "u", "--password-file", file + "x", "a:1"},
		"--image-cache":            {"--image-cache", "much", "a:1"},
		"an agent could not run containers on this machine": {"--oci-runtime", "/no/runtime", "a:1"},
	} {
		dir := t.TempDir()
		if _, stderr, err := preload(t, "", append([]string{"preload", "--images", dir}, args...)...); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %v: %s", args, err, stderr)
		}
	}
}
