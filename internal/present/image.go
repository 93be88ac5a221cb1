package present

import (
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// ImageName is a full name as users write it, without the registry that is meant by default.
func ImageName(full string) string {
	name, hub := strings.CutPrefix(full, "docker.io/")
	if short, official := strings.CutPrefix(name, "library/"); hub && official {
		return short
	}
	// A first part that looks like a registry would mean one.
	if first, _, _ := strings.Cut(name, "/"); hub && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return full
	}
	return name
}

// LoadedImage is an image that was loaded on the server.
func LoadedImage(im *state.LoadedImage, user *state.Job) api.LoadedImage {
	out := api.LoadedImage{Name: ImageName(im.Name), Digest: im.Digest, Platforms: im.Platforms, Loaded: im.Loaded.Std()}
	for _, b := range im.Blobs {
		out.Size += b.Size
	}
	if user != nil {
		out.UsedBy = JobOrEnvironment(user)
	}
	return out
}

// JobOrEnvironment names a job for a sentence, or the environment that it stands for.
func JobOrEnvironment(j *state.Job) string {
	if j.Env != nil {
		return "environment " + string(j.Key.Namespace) + "/" + j.Env.Spec.Name
	}
	return "job " + string(j.Key.Namespace) + "/" + j.Key.Name
}
