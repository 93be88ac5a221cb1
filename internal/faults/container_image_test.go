package faults

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/imagetest"
)

// An image that cannot be had says so in a sentence that names it, at once where trying again would be the same.
func TestImageMissing(t *testing.T) {
	t.Parallel()
	needContainers(t)
	busybox := imagetest.Busybox(t)
	registry := imagetest.NewRegistry(t, imagetest.Anonymous)
	registry.Push(t, "team/app:latest", busybox)
	private := imagetest.NewRegistry(t, imagetest.Token)
	private.Push(t, "team/app:latest", busybox)
	h := newHost(t)
	ref := h.archive("busybox", busybox)
	h.write("no.tar", "this is no archive")
	h.plain(registry, private)
	h.start()
	for name, c := range map[string]struct {
		image  string
		reason muster.Reason
		says   []string
	}{
		"no-tag-is-latest": {registry.Host + "/team/app", "", nil},
		"no-such-tag":      {registry.Host + "/team/app:7", muster.ReasonImageNotFound, []string{"team/app:7"}},
		"no-such-image":    {registry.Host + "/team/none", muster.ReasonImageNotFound, []string{"team/none"}},
		"no-such-digest":   {registry.Host + "/team/app@sha256:" + strings.Repeat("0", 64), muster.ReasonImageNotFound, []string{"team/app@sha256:000"}},
		"private":          {private.Host + "/team/app", muster.ReasonImageNotFound, []string{"team/app", "credentials"}},
		"archive":          {ref, "", nil},
		"no-archive":       {"docker-archive:" + h.path("none.tar"), muster.ReasonImageNotFound, []string{h.path("none.tar")}},
		"broken-archive":   {"docker-archive:" + h.path("no.tar"), muster.ReasonImage, []string{h.path("no.tar")}},
		"no-layout":        {"oci:" + h.path("none"), muster.ReasonImageNotFound, []string{h.path("none")}},
	} {
		t.Run(name, func(t *testing.T) {
			run := h.cli("run", "--name", name, "--image", c.image, "--cpu", "0.1", "--on", "any", "--attempts", "3", "--", "echo", "hello")
			all := h.allocs(name)
			if c.reason == "" {
				run.says(0)
				if len(all) == 1 && (run.stdout.String() != "hello\n" || !strings.HasPrefix(all[0].Image, "sha256:")) {
					t.Errorf("%q, image %q", run.stdout, all[0].Image)
				}
				return
			}
			run.says(1, c.says...)
			if len(all) != 1 {
				t.Fatalf("%d attempts", len(all))
			}
			t.Logf("%s", failed(t, all[0], muster.FailureUser, c.reason))
		})
	}
	h.nothingLeft()
	h.quiet()
}

// A registry that is out of order is nobody's fault here: it is asked again, and what waited for it runs when it is back.
func TestRegistryDown(t *testing.T) {
	t.Parallel()
	needContainers(t)
	registry := imagetest.NewRegistry(t, imagetest.Anonymous)
	ref := registry.Push(t, "team/app:1", imagetest.Busybox(t))
	registry.Strike(imagetest.Fault{Times: -1, Status: 503})
	h := newHost(t)
	h.plain(registry)
	h.start()
	run := h.muster("run", "--name", "work", "--image", ref, "--", "echo", "hello")
	h.eventually("it was tried twice", func() bool {
		return strings.Contains(run.stderr.String(), "attempt 2 failed")
	})
	for _, a := range h.allocs("work") {
		if a.Failure != nil {
			t.Logf("attempt %d: %s", a.Attempt, failed(t, a, muster.FailureOutside, muster.ReasonImage))
		}
	}
	if waits := h.job("work").Waits; !(strings.Contains(waits, "next attempt") && strings.Contains(waits, "503")) && h.job("work").Counts.Waiting > 0 {
		t.Errorf("it waits for %q", waits)
	}
	h.kill() // what was learned stays
	registry.Heal()
	h.start()
	run.says(0, ref, "503")
	if run.stdout.String() != "hello\n" {
		t.Errorf("%q", run.stdout)
	}
	all := h.allocs("work")
	if last := all[len(all)-1]; len(all) < 3 || last.Outcome != string(muster.OutcomeSucceeded) {
		t.Errorf("%+v", all)
	}
	// An image that is here is used without the registry.
	registry.Strike(imagetest.Fault{Times: -1, Status: 503})
	again := h.cli("run", "--image", ref, "--", "echo", "again")
	again.says(0)
	h.nothingLeft()
	h.quiet()
}

// A pull that breaks off in the middle, and one whose bytes are not what the digest says, are
// tried again; nothing wrong is ever run or kept.
func TestPullBroken(t *testing.T) {
	t.Parallel()
	needContainers(t)
	registry := imagetest.NewRegistry(t, imagetest.Anonymous)
	ref := registry.Push(t, "team/app:1", imagetest.With(t, imagetest.Busybox(t), imagetest.Layer(t, imagetest.File("word", "right\n", 0o644))))
	for name, fault := range map[string]imagetest.Fault{
		"cut":     {Path: "/blobs/", Times: 2, Cut: 1000},
		"corrupt": {Path: "/blobs/", Times: 2, Cut: -1, Corrupt: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.plain(registry)
			h.start()
			registry.Strike(fault)
			defer registry.Heal()
			run := h.cli("run", "--name", "work", "--image", ref, "--", "cat", "/word")
			run.says(0)
			if run.stdout.String() != "right\n" {
				t.Errorf("%q", run.stdout)
			}
			t.Logf("%s", strings.TrimSpace(run.stderr.String()))
			h.nothingLeft()
		})
	}
}

// The server's password opens a private registry, and never leaves the server: nodes get a token.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	needContainers(t)
	for _, login := range []imagetest.Login{imagetest.Token, imagetest.Basic} {
		t.Run(string(login), func(t *testing.T) {
			registry := imagetest.NewRegistry(t, login)
			ref := registry.Push(t, "team/app:1", imagetest.Busybox(t))
			h := newHost(t, func(c *api.ServerConfig) { c.Log.Level = "debug" })
			h.write("password", imagetest.Password+"\n")
			spec := api.RegistrySpec{Host: registry.Host, Username: imagetest.User, PasswordFile: h.path("password"), Insecure: true}
			h.config.Registries = []api.RegistrySpec{spec}
			h.start()
			if login == imagetest.Basic {
				// There is no token to be had: not without the operator's word.
				run := h.cli("run", "--name", "refused", "--image", ref, "--", "true")
				run.says(1, "send_credentials")
				t.Logf("%s", strings.TrimSpace(run.stderr.String()))
				h.noSecret("refused")
				h.config.Registries[0].SendCredentials = true
				h.stop()
				h.start()
			}
			run, work := h.container("work", ref, nil, "sh", "-c", "echo hello; until [ -e /gate ]; do sleep 0.05; done; echo over")
			if login == imagetest.Token {
				h.noSecret("work")
			}
			h.open(work, "/gate")
			run.says(0)
			if login == imagetest.Token {
				h.idle()
				h.noSecret("work")
			}
			h.nothingLeft()
			h.quiet()
		})
	}
}

// noSecret fails the test if the registry's password is anywhere but where the
// operator has written it: in files of the server, of nodes and what they cache, in logs, a backup, the events, what the API tells of a job.
func (h *host) noSecret(job string) {
	h.t.Helper()
	backup := h.path("backup")
	_ = os.Remove(backup)
	h.cli("backup", backup).says(0)
	defer func() { _ = os.Remove(backup) }()
	h.write("told", h.cli("job", "show", "--json", job).stdout.String()+h.cli("events").stdout.String()+h.cli("node", "list", "--json").stdout.String())
	pair := imagetest.User + ":" + imagetest.Password
	secrets := [][]byte{[]byte(imagetest.Password)}
	for k := range 3 { // in base64 wherever it begins
		code := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", k) + pair))
		secrets = append(secrets, []byte(strings.TrimRight(code[4:], "=")[:16]))
	}
	var holders []string
	files := 0
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // what is gone meanwhile holds nothing
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer func() { _ = f.Close() }()
		files++
		if holds(f, secrets) {
			holders = append(holders, path)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range touching(h.dir) {
		for _, name := range []string{"cmdline", "environ"} {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, name)); bytes.Contains(b, secrets[0]) {
				holders = append(holders, p.command())
			}
		}
	}
	if !slices.Equal(holders, []string{h.path("password")}) {
		h.t.Errorf("of %d files these hold the password: %q", files, holders)
	}
	for _, name := range []string{"server.log", "backup", "told"} {
		if h.file(name) == "" {
			h.t.Errorf("%s is empty", name)
		}
	}
}

// holds reports whether one of the words is in a file, whose holes are left out: writable layers are mostly that.
func holds(f *os.File, words [][]byte) bool {
	for at := int64(0); ; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			return false
		}
		end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return false
		}
		data := make([]byte, end-begin)
		n, _ := f.ReadAt(data, begin)
		if slices.ContainsFunc(words, func(w []byte) bool { return bytes.Contains(data[:n], w) }) {
			return true
		}
		at = end
	}
}

// Three images that share layers, many members of each, all at once: each runs its own, and each layer is fetched once a node.
func TestThreeImages(t *testing.T) {
	t.Parallel()
	needContainers(t)
	registry := imagetest.NewRegistry(t, imagetest.Anonymous)
	base := imagetest.Busybox(t)
	h := newHost(t, func(c *api.ServerConfig) {
		c.Pools[0].Max = 1
		c.Pools[0].Offerings = []string{"large"}
	})
	h.plain(registry)
	h.start()
	const members = 6
	runs := map[string]*program{}
	for _, name := range []string{"red", "green", "blue"} {
		image := imagetest.With(t, base, imagetest.Layer(t, imagetest.File("colour", name+"\n", 0o644)))
		image = imagetest.Configured(t, image, func(c *v1.Config) { c.Entrypoint = []string{"sh", "-c", "cat /colour; hostname"} })
		ref := registry.Push(t, "colours/"+name+":1", image)
		runs[name] = h.muster("run", "--name", name, "--image", ref, "--count", fmt.Sprint(members), "--cpu", "0.1", "--memory", "32MiB")
	}
	for name, run := range runs {
		run.says(0, "all 6 members succeeded")
		var want []string
		for i := range members {
			want = append(want, fmt.Sprintf("[%d] %s", i, name), fmt.Sprintf("[%d] %s-%d", i, name, i))
		}
		slices.Sort(want)
		if got := run.stdout.lines(); !slices.Equal(got, want) {
			t.Errorf("%s printed\n%s", name, run.stdout)
		}
		var digests []string
		for _, a := range h.allocs(name) {
			digests = append(digests, a.Image)
		}
		if slices.Sort(digests); len(slices.Compact(digests)) != 1 {
			t.Errorf("%s ran %q", name, digests)
		}
	}
	// The common layer, and of each image its own layer and its configuration.
	if n := registry.Blobs(); n != 7 {
		t.Errorf("%d blobs were fetched, want 7:\n%s", n, strings.Join(registry.Served(), "\n"))
	}
	h.nothingLeft()
	h.quiet()
}
