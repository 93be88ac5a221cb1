// Package policy says which policy of the operator a submission breaks. It is pure: policies and a spec in, problems out.
package policy

import (
	"fmt"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Policy is what counts for one namespace; nil allows everything.
type Policy struct {
	spec *api.PolicySpec
	// at names the policy in the configuration.
	at string
}

// For is the policy of a namespace: the first that matches it.
func For(list []api.PolicySpec, ns string) *Policy {
	for i := range list {
		if ok, err := path.Match(list[i].Match, ns); ok && err == nil {
			return &Policy{&list[i], fmt.Sprintf("policies[%d] (match: %s)", i, list[i].Match)}
		}
	}
	return nil
}

// Isolation is what a container gets that demands none: "" is none.
func (p *Policy) Isolation(image, demanded string) string {
	if p == nil || image == "" || demanded != "" || len(p.spec.Isolation) == 0 {
		return demanded
	}
	return p.spec.Isolation[0]
}

// Problems are what of a spec with its defaults the policy does not allow, each with the field and the rule. Environments
// are asked as the jobs that their runners are.
func (p *Policy) Problems(s *api.JobSpec) (out []api.ProblemField) {
	if p == nil {
		return nil
	}
	refuse := func(field, rule, format string, args ...any) {
		out = append(out, api.ProblemField{Location: field, Message: fmt.Sprintf(format, args...) + fmt.Sprintf("; the operator's %s of %s does not allow this in namespace %s", rule, p.at, s.Namespace)})
	}
	if s.Image == "" {
		if p.spec.NoProcess {
			refuse("image", "no_process", "is missing: without one it runs as a process on the node's own files")
		}
		return out // neither network nor isolation are its own
	}
	if p.spec.NoHostNetwork && s.Network == string(muster.NetworkHost) {
		refuse("network", "no_host_network", "is host, the node's own")
	}
	if kinds := p.spec.Isolation; len(kinds) > 0 && !within(kinds, s.Isolation) {
		refuse("isolation", "isolation", "is %q; it is one of %s", s.Isolation, strings.Join(kinds, ", "))
	}
	if from := p.spec.Registries; len(from) > 0 && !comesFrom(from, s.Image) {
		refuse("image", "registries", "is %q; images come from %s", s.Image, strings.Join(from, ", "))
	}
	return out
}

// within reports whether what is demanded is at least one of the kinds.
func within(kinds []string, demanded string) bool {
	for _, k := range kinds {
		if demanded != "" && muster.Isolation(demanded).Gives(muster.Isolation(k)) {
			return true
		}
	}
	return false
}

// comesFrom reports whether an image is from one of the places. What cannot be read is from none.
func comesFrom(places []string, image string) bool {
	full, local := canonical(image)
	for _, place := range places {
		if full == "" || strings.HasPrefix(place, api.ImageLayout) != strings.HasPrefix(full, api.ImageLayout) ||
			strings.HasPrefix(place, api.ImageArchive) != strings.HasPrefix(full, api.ImageArchive) {
			continue
		}
		if !local {
			place = strings.TrimPrefix(place, "index.")
		}
		if full == place || strings.HasPrefix(full, strings.TrimSuffix(place, "/")+"/") {
			return true
		}
	}
	return false
}

// canonical is an image's name with its registry, as nodes read it, without tag and digest; of one among a node's files
// the path, cleaned of steps back.
func canonical(image string) (full string, local bool) {
	for _, source := range []string{api.ImageLayout, api.ImageArchive} {
		if rest, ok := strings.CutPrefix(image, source); ok {
			dir, _, _ := strings.Cut(rest, ":")
			return source + path.Clean(dir), true
		}
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", false
	}
	registry := ref.Context().RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return registry + "/" + ref.Context().RepositoryStr(), false
}
