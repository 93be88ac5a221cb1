package state

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func loaded(name, digest string) *ImageLoaded {
	return &ImageLoaded{LoadedImage{Name: name, Digest: digest, Blobs: []LoadedBlob{{digest, 1}, {digest + "-layer", 9}}, Platforms: []string{"linux/amd64"}}}
}

// A loaded image is found by all spellings of its name and by its digest, and is in a snapshot.
func TestLoadedImageIsFound(t *testing.T) {
	l := newLog(t)
	l.must(loaded("docker.io/library/web:latest", "sha256:a"))
	l.must(loaded("ghcr.io/team/app:2", "sha256:b"))
	s, err := New(16)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"web": "sha256:a", "web:latest": "sha256:a", "library/web": "sha256:a", "docker.io/web": "sha256:a", "index.docker.io/library/web:latest": "sha256:a",
		"anything@sha256:a": "sha256:a", "ghcr.io/team/app:2": "sha256:b", "web:2": "", "other.io/web": "", "team/app:2": "", "": "", "oci:/web": "", "/web": "",
	} {
		got := ""
		if im := LoadedImagesOf(s.Latest()).Find(ref); im != nil {
			got = im.Digest
		}
		if got != want {
			t.Errorf("%q is %q, want %q", ref, got, want)
		}
	}
	images := LoadedImagesOf(s.Latest())
	if ref := images.Ref("web"); ref != "loaded:docker.io/library/web:latest@sha256:a" {
		t.Errorf("agents are told %q", ref)
	}
	if ref := images.Ref("web:2"); ref != "web:2" {
		t.Errorf("agents are told %q of an image that is not loaded", ref)
	}
}

// The version before is kept for those who still fetch it; a removed image leaves nothing.
func TestLoadedImageIsReplacedAndRemoved(t *testing.T) {
	l := newLog(t)
	const name = "docker.io/library/web:1"
	l.must(loaded(name, "sha256:a"))
	l.must(loaded(name, "sha256:b"))
	need := map[string]bool{}
	LoadedImagesOf(l.s.Latest()).AddBlobs(need, "web:1")
	now := muster.Time(l.now)
	kept := KeptUploads(l.s.Latest(), now, time.Hour)
	for _, digest := range []string{"sha256:a", "sha256:a-layer", "sha256:b", "sha256:b-layer"} {
		if !need[digest] || !kept[digest] {
			t.Errorf("%s: a node may have it: %v, it is kept: %v", digest, need[digest], kept[digest])
		}
	}
	if kept := KeptUploads(l.s.Latest(), now.Add(2*time.Hour), time.Hour); kept["sha256:a"] || !kept["sha256:b"] {
		t.Errorf("after two hours %v is kept", kept)
	}
	if _, err := l.do(&ImageRemoved{Name: name, Digest: "sha256:a"}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("a version that is not there was removed: %v", err)
	}
	l.must(&ImageRemoved{Name: name, Digest: "sha256:b"})
	if kept := KeptUploads(l.s.Latest(), now, time.Hour); len(kept) != 0 {
		t.Errorf("%v is kept of nothing", kept)
	}
	if _, err := l.do(&ImageRemoved{Name: name}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

// Jobs that have not ended use their images, and inputs of jobs are kept beside them.
func TestLoadedImageIsUsed(t *testing.T) {
	l := newLog(t)
	l.must(loaded("docker.io/library/web:1", "sha256:a"))
	l.submit("j", spec(1, func(s *api.JobSpec) {
		s.Image, s.Inputs = "library/web:1", []api.InputSpec{{Path: "p", Digest: "sha256:i"}}
	}))
	if j := LoadedImagesOf(l.s.Latest()).Users()["docker.io/library/web:1"]; j == nil || j.Key.Name != "j" {
		t.Errorf("used by %v", j)
	}
	if kept := KeptUploads(l.s.Latest(), 0, 0); len(kept) != 3 {
		t.Errorf("%v is kept", kept)
	}
	l.must(&JobStopped{Key: key("j")})
	if users := LoadedImagesOf(l.s.Latest()).Users(); len(users) != 0 {
		t.Errorf("used by %v after the job has ended", users)
	}
}

func TestLoadedImageIsRefused(t *testing.T) {
	l := newLog(t)
	for name, f := range map[string]*ImageLoaded{
		"no full name": loaded("web:1", "sha256:a"),
		"no name":      loaded("", "sha256:a"),
		"no manifest":  {LoadedImage{Name: "docker.io/library/web:1", Digest: "sha256:a", Blobs: []LoadedBlob{{"sha256:b", 1}}}},
		"no blobs":     {LoadedImage{Name: "docker.io/library/web:1", Digest: "sha256:a"}},
		"many blobs":   {LoadedImage{Name: "docker.io/library/web:1", Digest: "", Blobs: make([]LoadedBlob, MaxLoadedBlobs+1)}},
	} {
		if _, err := l.do(f); !muster.IsKind(err, muster.FaultInvalid) || !strings.HasPrefix(err.Error(), "image ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
