package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// EnvironmentSpec is an environment as users write it: a template for runners, and
// how many of them to keep ready. A field left out means its default.
type EnvironmentSpec struct {
	// Name of the environment.
	Name string `json:"name" doc:"Name of the environment: 1 to 63 lower-case letters, digits, dots and dashes."`
	// Namespace of the environment; "default" when empty.
	Namespace string `json:"namespace,omitempty" doc:"Namespace of the environment. Default: default."`
	// Warm says how many runners are kept ready.
	Warm WarmSpec `json:"warm,omitempty" doc:"Warm runners."`
	// TTL and Idle are what a claim has that says nothing about them.
	TTL  *Duration `json:"ttl,omitempty" doc:"Default ttl of claims. 0s: until it is released. Default: 1h."`
	Idle *Duration `json:"idle,omitempty" doc:"Default idle time of claims: a claim expires when its runner was not used for this time. 0s: never. Default: 10m."`
	// MaxTTL bounds the life of a claim, whatever its holder asks for and however often it is extended. 0: no bound.
	MaxTTL Duration `json:"max_ttl,omitempty" zero:"no limit" doc:"Longest life of a claim, including extensions. Longer claims expire then. Default: no limit."`
	// LockUser lets who holds a claim act as User alone.
	LockUser bool `json:"lock_user,omitempty" doc:"Executions and files in its runners use its user only: requests that name another user are rejected. Default: requests may name any user."`
	// Alert says when too few are warm.
	Alert AlertSpec `json:"alert,omitempty" doc:"Alert on too few warm runners."`
	// Template says what runs, and what it needs. Its fields are fields of the file.
	Template

	// Frozen keeps warm runners from using any processor.
	Frozen bool `json:"frozen,omitempty" doc:"Warm runners are frozen from when they are ready until they are claimed. On a node that cannot freeze they keep running."`
}

// WarmSpec says how many runners are kept ready.
type WarmSpec struct {
	Min    *int     `json:"min,omitempty" minimum:"0" maximum:"10000" doc:"Minimum. 0: none after a time without claims. Default: 1."`
	Max    int      `json:"max,omitempty" minimum:"1" maximum:"10000" zero:"min, or 10 if that is less" doc:"Maximum. Default: min, at least 10."`
	Target *int     `json:"target,omitempty" minimum:"0" maximum:"10000" doc:"Fixed number, instead of one computed from the claims of the last 10 minutes and the start times."`
	Quiet  Duration `json:"quiet,omitempty" zero:"10m" doc:"After this time without a claim only min are kept. Default: 10m."`
}

// AlertSpec says when too few runners are warm.
type AlertSpec struct {
	Below float64  `json:"below,omitempty" minimum:"0" maximum:"1" zero:"0.5" doc:"Fraction of the wanted number. Default: 0.5."`
	For   Duration `json:"for,omitempty" zero:"1m" doc:"How long fewer than that must be warm. Default: 1m."`
}

// Limits and defaults of environments.
const (
	MaxWarm          = 10_000
	DefaultWarmMax   = 10
	DefaultTTL       = Duration(time.Hour)
	DefaultIdle      = Duration(10 * time.Minute)
	DefaultQuiet     = Duration(10 * time.Minute)
	DefaultBelow     = 0.5
	DefaultAlertFor  = Duration(time.Minute)
	DefaultStopGrace = Duration(time.Second)
	// Times of a readiness command.
	DefaultReadyInterval = Duration(250 * time.Millisecond)
	DefaultReadyTimeout  = Duration(5 * time.Second)
	DefaultReadyGiveUp   = Duration(2 * time.Minute)
	MinReadyInterval     = Duration(10 * time.Millisecond)
	MaxReadyTime         = Duration(time.Hour)
	// MaxClaimTime bounds the deadline and the idle time of a claim.
	MaxClaimTime = MaxTimeout
	// MaxClaimWait bounds how long a claim may wait for a runner.
	MaxClaimWait = Duration(time.Hour)
	// environmentOutput bounds what is kept of what the command of a runner writes.
	environmentOutput = Size(1 << 20)
)

// Defaults fills in what was left out. Doing it twice changes nothing more.
func (s *EnvironmentSpec) Defaults() {
	fill(&s.Namespace, string(muster.DefaultNamespace))
	if s.Warm.Min == nil {
		n := 1
		if t := s.Warm.Target; t != nil {
			n = min(n, *t)
		}
		if s.Warm.Max > 0 {
			n = min(n, s.Warm.Max)
		}
		s.Warm.Min = &n
	}
	most := max(*s.Warm.Min, DefaultWarmMax)
	if s.Warm.Target != nil {
		most = max(*s.Warm.Min, *s.Warm.Target)
	}
	fill(&s.Warm.Max, most)
	fill(&s.Warm.Quiet, DefaultQuiet)
	ttl := DefaultTTL
	if s.MaxTTL > 0 {
		ttl = min(ttl, s.MaxTTL)
	}
	fillPointer(&s.TTL, ttl)
	fillPointer(&s.Idle, DefaultIdle)
	fill(&s.Alert.Below, DefaultBelow)
	fill(&s.Alert.For, DefaultAlertFor)
	fillPointer(&s.Priority, muster.DefaultPriority)
	fill(&s.KillGrace, DefaultStopGrace)
	s.Ready.defaults()
	if s.Image != "" {
		fill(&s.Network, string(muster.NetworkNone))
		if len(s.Entrypoint) == 0 {
			s.Entrypoint = []string{""}
		}
	}
	if len(s.Command) == 0 {
		s.Command = []string{"sleep", "infinity"}
	}
	fill(&s.Resources.CPU, DefaultCPU)
	fill(&s.Resources.Memory, DefaultMemory)
	j := s.job()
	j.Defaults()
	s.Inputs, s.Constraints = j.Inputs, j.Constraints
}

func fillPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// job is the template as that of a job without name and type.
func (s *EnvironmentSpec) job() *JobSpec {
	return &JobSpec{Namespace: s.Namespace, Template: s.Template, OutputLimit: environmentOutput}
}

// Job is the job whose members are the runners: all that decides how one runs, and nothing
// that can change while it does. The spec has its defaults.
func (s *EnvironmentSpec) Job() *JobSpec {
	j := s.Clone().job()
	j.Name, j.Type = muster.EnvironmentKey("", s.Name).Name, string(muster.JobEnvironment)
	// Its priority is that of what is wanted at the moment; see state.Environment.
	j.Priority = nil
	j.Defaults()
	return j
}

// Validate tells all that is wrong with an environment that is set, or nil.
// Locations are as of JobSpec.Validate.
func (s *EnvironmentSpec) Validate() []ProblemField { return s.check(checkSubmitted) }

// ValidateFile is Validate for an environment as it stands in a file, where inputs may still name local files.
func (s *EnvironmentSpec) ValidateFile() []ProblemField { return s.check(checkJob) }

func (s *EnvironmentSpec) check(job func(*JobSpec) *checks) []ProblemField {
	c := &checks{}
	if s.Name == "" {
		c.Add("name", "is missing; give the environment a name, by which it is claimed")
	} else {
		c.Name("name", s.Name)
	}
	j := s.job()
	if len(j.Command) == 0 {
		j.Command = []string{"sleep"}
	}
	if j.Image == "" && len(j.Entrypoint) == 1 && j.Entrypoint[0] == "" {
		j.Entrypoint = nil
	}
	j.Ready = nil
	c.Problems = append(c.Problems, job(j).Problems...)
	c.readiness(s.Ready)
	c.warm(&s.Warm)
	for _, d := range []struct {
		location string
		d        *Duration
	}{{"ttl", s.TTL}, {"idle", s.Idle}} {
		if d.d != nil {
			c.duration(d.location, *d.d, MaxClaimTime)
		}
	}
	c.duration("max_ttl", s.MaxTTL, MaxClaimTime)
	if s.MaxTTL > 0 && s.TTL != nil && *s.TTL > s.MaxTTL {
		c.Add("ttl", "is %s, more than max_ttl (%s)", *s.TTL, s.MaxTTL)
	}
	if b := s.Alert.Below; !(b >= 0 && b <= 1) {
		c.Add("alert.below", "is %s; it is a fraction, 0 to 1", validate.Number(b))
	}
	c.duration("alert.for", s.Alert.For, MaxTimeout)
	return c.fields()
}

func (c *checks) warm(w *WarmSpec) {
	within := func(location string, n int) bool {
		if n < 0 || n > MaxWarm {
			c.Add(location, "is %d; it is 0 to %d", n, MaxWarm)
			return false
		}
		return true
	}
	// A maximum that the file does not have follows from the others: they alone are reported.
	derived := w.Min != nil && w.Max == *w.Min || w.Target != nil && w.Max == *w.Target
	ok := derived || within("warm.max", w.Max)
	if w.Min != nil && within("warm.min", *w.Min) && ok && w.Max > 0 && *w.Min > w.Max {
		c.Add("warm.min", "is %d, more than warm.max (%d)", *w.Min, w.Max)
	}
	if t := w.Target; t != nil && within("warm.target", *t) && ok {
		if w.Max > 0 && *t > w.Max {
			c.Add("warm.target", "is %d, more than warm.max (%d)", *t, w.Max)
		}
		if w.Min != nil && *t < *w.Min {
			c.Add("warm.target", "is %d, less than warm.min (%d)", *t, *w.Min)
		}
	}
	c.duration("warm.quiet", w.Quiet, MaxTimeout)
}

// Clone is a copy that shares nothing with s.
func (s *EnvironmentSpec) Clone() *EnvironmentSpec { return deepCopy(s) }

// Equal reports whether both specs, with their defaults, mean the same environment.
func (s *EnvironmentSpec) Equal(o *EnvironmentSpec) bool {
	a, b := s.canonical(), o.canonical()
	return a != nil && bytes.Equal(a, b)
}

func (s *EnvironmentSpec) canonical() []byte {
	c := s.Clone()
	c.Defaults()
	// An empty map or list is none.
	c.Env = maps.Clone(c.Env)
	c.Inputs = slices.Clip(c.Inputs)
	b, err := json.Marshal(c)
	if err != nil {
		return nil
	}
	return b
}

// EnvironmentSetting is the body of POST /v1/environments.
type EnvironmentSetting struct {
	Spec EnvironmentSpec `json:"spec"`
	// IfVersion refuses it unless the environment is at this version (0: does not exist).
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the environment is at this version; 0: unless it does not exist."`
}

// EnvironmentSet is its answer.
type EnvironmentSet struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Version   uint64 `json:"version" doc:"Version of everything that affects running runners: a change of warm, ttl, idle, alert or priority makes no new one."`
	Index     uint64 `json:"index" doc:"Log index from which events can be followed."`
	Unchanged bool   `json:"unchanged,omitempty" doc:"The environment existed with the same specification; nothing changed."`
}

// RunnerCounts tells the runners of an environment by state. Created is their sum.
type RunnerCounts struct {
	Created  int `json:"created" doc:"Since the environment was created."`
	Starting int `json:"starting" doc:"Starting, including those that wait for another attempt."`
	Warm     int `json:"warm"`
	Claimed  int `json:"claimed"`
	Gone     int `json:"gone"`
}

// Environment is an environment as the API shows it.
type Environment struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	UID       string           `json:"uid"`
	Version   uint64           `json:"version"`
	Stage     string           `json:"stage" enum:"live,stopping,ended" doc:"stopping: it was deleted, and some of its runners are still claimed."`
	Runners   RunnerCounts     `json:"runners"`
	Wanted    int              `json:"wanted" doc:"Wanted number of warm runners."`
	Why       string           `json:"why,omitempty" doc:"Reason of that number."`
	Waiting   int              `json:"waiting" doc:"Claims that wait for a runner."`
	Unplaced  int              `json:"unplaced" doc:"Wanted runners that are not placed yet."`
	Waits     string           `json:"waits,omitempty" doc:"Why they are not placed, and what is done about it; in single answers."`
	Outdated  int              `json:"outdated,omitempty" doc:"Warm runners of an earlier version, which are replaced one by one."`
	Claims    uint64           `json:"claims" doc:"Since the environment was created."`
	Failure   string           `json:"failure,omitempty" doc:"Last error of a runner's start."`
	RetryAt   *time.Time       `json:"retry_at,omitempty" doc:"When the next attempt starts."`
	Alert     *time.Time       `json:"alert,omitempty" doc:"Since when too few runners are warm."`
	Created   time.Time        `json:"created"`
	Spec      *EnvironmentSpec `json:"spec,omitempty" doc:"With defaults filled in; in single answers."`
}

// EnvironmentList is a page of environments.
type EnvironmentList struct {
	Environments []Environment `json:"environments"`
	Next         string        `json:"next,omitempty" doc:"Pass it as after= for the next page; empty on the last page."`
	Index        uint64        `json:"index" doc:"Log index of this view."`
}

// SplitName parts NAMESPACE/NAME, as users write names; without a namespace it is the one given.
func SplitName(s, namespace string) (ns, name string) {
	if before, after, ok := strings.Cut(s, "/"); ok {
		return before, after
	}
	return namespace, s
}
