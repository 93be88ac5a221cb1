package submit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// architectures are those that the image of a spec is for; none if that is not known, or can be any. A
// spec whose own conditions exclude all of them is wrong: no node could ever run it.
func (s *Service) architectures(ctx context.Context, spec *api.JobSpec) ([]string, []api.ProblemField) {
	meta := s.cfg.State.Latest().Meta()
	if spec.Image == "" || s.cfg.Architectures == nil || meta.LogFormat() < state.FormatImageArch {
		return nil, nil
	}
	found := s.cfg.Architectures(ctx, muster.Namespace(spec.Namespace), spec.Image)
	var own []muster.Constraint
	for _, c := range spec.Constraints {
		if c.Attribute == muster.AttributeArch {
			own = append(own, muster.Constraint{Attribute: c.Attribute, Op: c.Op, Value: c.Value, Values: c.Values})
		}
	}
	excluded := func(arch string) bool {
		return slices.ContainsFunc(own, func(c muster.Constraint) bool { return !c.Met(arch, true) })
	}
	if len(found) == 0 || slices.ContainsFunc(found, func(arch string) bool { return !excluded(arch) }) {
		return found, nil
	}
	var texts []string
	for i := range own {
		texts = append(texts, own[i].String())
	}
	return nil, []api.ProblemField{{Location: "image", Message: fmt.Sprintf("is for %s only, which the constraint %s excludes; change the constraint, or build the image for that architecture",
		strings.Join(found, " and "), strings.Join(texts, ", "))}}
}

// placedSpec is a spec with the condition that follows from its image, for those who ask whether it fits.
func placedSpec(spec *api.JobSpec, architectures []string) *api.JobSpec {
	if len(architectures) == 0 {
		return spec
	}
	spec = spec.Clone()
	spec.Constraints = append(spec.Constraints, api.ConstraintSpec{Attribute: muster.AttributeArch, Op: muster.OpIn, Values: architectures})
	return spec
}
