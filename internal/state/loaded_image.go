package state

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

const (
	// MaxLoadedImages bounds the images that are loaded at a time.
	MaxLoadedImages = 4096
	// MaxLoadedBlobs bounds the blobs of one: layers, configurations and manifests of all its platforms.
	MaxLoadedBlobs = 4096
)

// LoadedImage is an image that was loaded on the server. Its blobs are uploads in the blob store, and nodes get them
// from the server. Jobs that name it do not ask a registry.
type LoadedImage struct {
	// Name is the full name, with registry and tag: docker.io/library/web:1.
	Name string `cbor:"1,keyasint"`
	// Digest is of its manifest, or of its index if it has several platforms.
	Digest string `cbor:"2,keyasint"`
	// Blobs are all that it is made of, each once.
	Blobs []LoadedBlob `cbor:"3,keyasint"`
	// Platforms are those that it has, as linux/amd64.
	Platforms []string `cbor:"4,keyasint,omitempty"`
	// Replaced are the blobs of the version before under this name: a node may still be fetching them. They are kept
	// for as long as an upload that no job refers to.
	Replaced []LoadedBlob `cbor:"5,keyasint,omitempty"`
	Loaded   muster.Time  `cbor:"6,keyasint,omitempty"`
}

// LoadedBlob is a manifest, a configuration or a layer of a loaded image. Size is in bytes.
type LoadedBlob struct {
	Digest string `cbor:"1,keyasint"`
	Size   int64  `cbor:"2,keyasint,omitempty"`
}

// ImageLoaded brings an image that was loaded on the server, in place of one of the same name. Its blobs are stored.
type ImageLoaded struct {
	// Image has no Replaced and no Loaded.
	Image LoadedImage `cbor:"1,keyasint"`
}

// ImageRemoved forgets a loaded image. Blobs that nothing else refers to are deleted after it. Value: *LoadedImage.
type ImageRemoved struct {
	Name string `cbor:"1,keyasint"`
	// Digest, unless empty, is of the version that is meant: a newer one stays.
	Digest string `cbor:"2,keyasint,omitempty"`
}

func (f *ImageLoaded) apply(s *State, now muster.Time) (any, error) {
	im := f.Image
	before := get(s.t.loaded, &im)
	switch {
	case im.Name == "" || im.Name != muster.ImageName(im.Name):
		return nil, muster.Faultf(muster.FaultInvalid, "image %s: is no full name of an image", im.Name)
	case len(im.Blobs) == 0 || len(im.Blobs) > MaxLoadedBlobs || !slices.ContainsFunc(im.Blobs, func(b LoadedBlob) bool { return b.Digest == im.Digest }):
		return nil, muster.Faultf(muster.FaultInvalid, "image %s: has %d blobs; an image has 1 to %d, and its manifest is one of them", im.Name, len(im.Blobs), MaxLoadedBlobs)
	case before == nil && s.t.loaded.Len() >= MaxLoadedImages:
		return nil, muster.Faultf(muster.FaultQuota, "image %s: %d images are loaded, which is the most; remove some", im.Name, s.t.loaded.Len())
	}
	im.Loaded = now
	if before != nil && before.Digest != im.Digest {
		im.Replaced = before.Blobs
	}
	s.t.loaded.Set(&im)
	s.changed(Change{Verb: VerbImageLoaded, Image: &im})
	return nil, nil
}

func (f *ImageRemoved) apply(s *State, _ muster.Time) (any, error) {
	im := get(s.t.loaded, &LoadedImage{Name: f.Name})
	if im == nil || f.Digest != "" && f.Digest != im.Digest {
		return nil, muster.Faultf(muster.FaultNotFound, "image %s: not found", f.Name)
	}
	s.t.loaded.Delete(im)
	s.changed(Change{Verb: VerbImageRemoved, Image: im})
	return im, nil
}

// LoadedImages are the images that are loaded on the server, as a snapshot has them.
type LoadedImages struct{ t *tables }

// LoadedImagesOf returns those of a snapshot.
func LoadedImagesOf(s *Snapshot) LoadedImages { return LoadedImages{&s.t} }

// Find is the one that a reference means, by its name or by the digest in it; nil if none is.
func (l LoadedImages) Find(ref string) *LoadedImage {
	if ref == "" || l.t.loaded.Len() == 0 {
		return nil
	}
	if name := muster.ImageName(ref); name != "" {
		return get(l.t.loaded, &LoadedImage{Name: name})
	}
	var found *LoadedImage
	if _, digest, ok := strings.Cut(ref, "@"); ok {
		l.t.loaded.Scan(func(im *LoadedImage) bool {
			if im.Digest == digest {
				found = im
			}
			return found == nil
		})
	}
	return found
}

// Ref is what an agent is told of an image: of a loaded one its digest too, so that the agent asks no registry.
func (l LoadedImages) Ref(ref string) string {
	if im := l.Find(ref); im != nil {
		return muster.LoadedImage + im.Name + "@" + im.Digest
	}
	return ref
}

// AddBlobs adds to all what a node may need of the image that a reference means.
func (l LoadedImages) AddBlobs(all map[string]bool, ref string) {
	im := l.Find(ref)
	if im == nil || all[im.Digest] {
		return
	}
	for _, list := range [][]LoadedBlob{im.Blobs, im.Replaced} {
		for _, b := range list {
			all[b.Digest] = true
		}
	}
}

// Each iterates over them by name.
func (l LoadedImages) Each(fn func(*LoadedImage) bool) { l.t.loaded.Scan(fn) }

// Users has, by the name of each image that is in use, a job that has not ended and that uses it, or that may go back
// to a version that does. It looks at all jobs.
func (l LoadedImages) Users() map[string]*Job {
	users := map[string]*Job{}
	if l.t.loaded.Len() == 0 {
		return users
	}
	use := func(j *Job, ref string) {
		if im := l.Find(ref); im != nil && users[im.Name] == nil {
			users[im.Name] = j
		}
	}
	l.t.jobsUID.Scan(func(j *Job) bool {
		if j.Stage == muster.JobEnded {
			return true
		}
		use(j, j.Run.Spec.Image)
		if st := j.Standing; st != nil {
			for i := range st.Past {
				use(j, st.Past[i].Spec.Image)
			}
		}
		return true
	})
	return users
}

// KeptUploads are the digests of the uploads that something refers to: jobs, with versions that they may go back to, and
// loaded images. What an image was replaced of stays for a while, as nodes may be fetching it.
func KeptUploads(s *Snapshot, now muster.Time, replacedFor time.Duration) map[string]bool {
	kept := map[string]bool{}
	refer := func(spec *api.JobSpec) {
		for i := range spec.Inputs {
			if d := spec.Inputs[i].Digest; d != "" {
				kept[d] = true
			}
		}
	}
	s.t.jobsUID.Scan(func(j *Job) bool {
		refer(j.Run.Spec)
		if st := j.Standing; st != nil {
			for i := range st.Past {
				refer(st.Past[i].Spec)
			}
		}
		return true
	})
	s.t.loaded.Scan(func(im *LoadedImage) bool {
		for _, b := range im.Blobs {
			kept[b.Digest] = true
		}
		if now.Sub(im.Loaded) < replacedFor {
			for _, b := range im.Replaced {
				kept[b.Digest] = true
			}
		}
		return true
	})
	return kept
}

func compareLoaded(a, b *LoadedImage) int { return cmp.Compare(a.Name, b.Name) }
