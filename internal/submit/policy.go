package submit

import (
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/policy"
)

// refused says what of a job's spec, with its defaults, is not allowed to its namespace, or cannot
// run here.
func (s *Service) refused(spec *api.JobSpec) []api.ProblemField {
	return append(s.disallowed(spec), s.tooUrgent(spec)...)
}

// disallowed is what jobs and environments have in common of refused: the policies of the
// configuration, and whether there can be containers and volumes. A spec that demands no isolation gets the one
// that its policy gives.
func (s *Service) disallowed(spec *api.JobSpec) []api.ProblemField {
	p := s.policy(spec.Namespace)
	spec.Isolation = p.Isolation(spec.Image, spec.Isolation)
	return slices.Concat(p.Problems(spec), s.noContainers(spec), s.noVolumes(spec))
}

// noContainers says that an image, or the network that it asks for, can be had nowhere here. It is
// refused at once: the work would wait for ever, and the reason would be found in the problems of a
// node only.
func (s *Service) noContainers(spec *api.JobSpec) []api.ProblemField {
	if spec.Image == "" {
		return nil
	}
	if s.cfg.NoContainers != nil {
		if why := s.cfg.NoContainers(); why != "" {
			return []api.ProblemField{{Location: "image", Message: "needs containers, which are off here: " + why + ". Without an image the command runs as a process"}}
		}
	}
	if mode := muster.NetworkMode(spec.Network); s.cfg.NoBridge != nil && (mode == "" || mode == muster.NetworkBridge) {
		if why := s.cfg.NoBridge(); why != "" {
			return []api.ProblemField{{Location: "network", Message: "bridge is off here: " + why + ". With network none the container has only a loopback"}}
		}
	}
	return nil
}

// policy is what the operator lets a namespace ask for; nil: anything.
func (s *Service) policy(ns string) *policy.Policy {
	if s.cfg.Running == nil {
		return nil
	}
	return policy.For(s.cfg.Running().Policies, ns)
}

// tooUrgent says that a job's priority is above what its namespace may have. It is asked of who
// submits, and not of what is in the log: a limit that is set later changes no job.
func (s *Service) tooUrgent(spec *api.JobSpec) []api.ProblemField {
	ns := muster.Namespace(spec.Namespace)
	highest := s.cfg.State.Latest().Limits(ns).Highest()
	if spec.Priority == nil || *spec.Priority <= highest {
		return nil
	}
	return []api.ProblemField{{Location: "priority", Message: fmt.Sprintf(
		"is %d; jobs of namespace %s may have %d at most (muster namespace set %s --max-priority N changes that)", *spec.Priority, ns, highest, ns)}}
}
