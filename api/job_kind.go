package api

import (
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// JobTypes are the types that a job can be submitted with.
func JobTypes() []muster.JobType {
	return []muster.JobType{muster.JobBatch, muster.JobService, muster.JobSystem}
}

// kind checks the type of a job, and what only some types have.
func (c *checks) kind(s *JobSpec) {
	kind := muster.JobType(s.Type)
	switch {
	case s.Type != "" && !slices.Contains(JobTypes(), kind):
		c.Add("type", "is %s; it is batch, service or system", validate.Quote(s.Type))
		return
	case !kind.Standing():
		if s.Update != nil {
			c.Add("update", "is for type service and system; members of a batch job run to completion")
		}
		if s.Ready != nil {
			c.Add("ready", "is for environments, and for jobs of type service and system; a member of a batch job is ready when it runs")
		}
		return
	}
	if kind == muster.JobSystem {
		if s.Count > 1 {
			c.Add("count", "is %d; a system job has one member on each node that fits, so leave it out", s.Count)
		}
		if len(s.Spread) > 0 {
			c.Add("spread", "does not apply to a system job, which has a member on each node that fits")
		}
	}
	if s.Restart.Attempts != 0 {
		c.Add("restart.attempts", "is for batch jobs: members of a %s job are started again however they end", kind)
	}
	if len(s.Restart.On) > 0 {
		c.Add("restart.on", "is for batch jobs: members of a %s job are started again however they end", kind)
	}
	if len(s.Outputs) > 0 {
		c.Add("outputs", "are collected when a member has succeeded, which those of a %s job never have", kind)
	}
	c.readiness(s.Ready)
	u := s.Update
	if u == nil {
		return
	}
	if u.MaxParallel < 0 || u.MaxParallel > MaxCount {
		c.Add("update.max_parallel", "is %d; it is 1 to %d", u.MaxParallel, MaxCount)
	}
	c.duration("update.min_healthy_time", u.MinHealthyTime, MaxTimeout)
	c.duration("update.healthy_deadline", u.HealthyDeadline, MaxTimeout)
	if u.HealthyDeadline > 0 && u.HealthyDeadline <= max(u.MinHealthyTime, 0) {
		c.Add("update.healthy_deadline", "is %s, and a member is healthy after min_healthy_time (%s) at the earliest", u.HealthyDeadline, u.MinHealthyTime)
	}
}
