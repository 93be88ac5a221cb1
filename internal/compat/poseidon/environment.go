package poseidon

import (
	"iter"
	"net/http"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// environmentSpec is what a client sets.
type environmentSpec struct {
	Image              string `json:"image"`
	PrewarmingPoolSize int    `json:"prewarmingPoolSize"`
	// CPULimit is in MHz, of which a core has coreMHz; MemoryLimit in MiB.
	CPULimit      int64 `json:"cpuLimit"`
	MemoryLimit   int64 `json:"memoryLimit"`
	NetworkAccess bool  `json:"networkAccess"`
	ExposedPorts  []int `json:"exposedPorts"`
}

// environment is one as clients see it.
type environment struct {
	ID int `json:"id"`
	environmentSpec
}

// coreMHz makes a MHz the smallest share of a core that there is, so that what was set is what is
// read.
const coreMHz = 1000

// maxTries is how often an environment is changed anew that others have changed meanwhile: each
// time one of them got through.
const maxTries = 100

// statistic of one environment.
type statistic struct {
	ID                 int `json:"id"`
	PrewarmingPoolSize int `json:"prewarmingPoolSize"`
	IdleRunners        int `json:"idleRunners"`
	UsedRunners        int `json:"usedRunners"`
}

// number is the id that an environment's name stands for.
func number(name string) (int, bool) {
	n, err := strconv.Atoi(name)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == name
}

// environments are those that are live and have a number for a name, in no order that clients know.
func (p *Poseidon) environments() iter.Seq2[int, *state.Job] {
	return func(yield func(int, *state.Job) bool) {
		ns := muster.Namespace(p.cfg.Namespace)
		p.cfg.State.Latest().Jobs(muster.JobKey{Namespace: ns}, func(j *state.Job) bool {
			if j.Key.Namespace != ns {
				return j.Key.Namespace < ns
			}
			name, is := j.Key.Environment()
			id, ok := number(name)
			return !is || !ok || j.Env == nil || j.Stage != muster.JobLive || yield(id, j)
		})
	}
}

// find is the environment that a request names in its path; nil if there is none.
func (p *Poseidon) find(r *http.Request) (int, *state.Job, error) {
	text := r.PathValue("id")
	id, err := strconv.Atoi(text)
	if err != nil || id < 0 {
		return 0, nil, refused(http.StatusNotFound, "there is no execution environment %q: an id is a number, 0 or higher", clip(text))
	}
	return id, p.environment(id), nil
}

func (p *Poseidon) environment(id int) *state.Job {
	j := p.cfg.State.Latest().Environment(muster.Namespace(p.cfg.Namespace), strconv.Itoa(id))
	if j == nil || j.Stage != muster.JobLive {
		return nil
	}
	return j
}

func noEnvironment(id int) error {
	return refused(http.StatusNotFound, "there is no execution environment %d", id)
}

func (p *Poseidon) statistics(w http.ResponseWriter, _ *http.Request) error {
	all := map[string]statistic{}
	for id, j := range p.environments() {
		c := j.Runners()
		all[strconv.Itoa(id)] = statistic{id, size(j.Env.Spec), c.Warm, c.Claimed}
	}
	// One that was deleted and set again has the runners that its clients still use.
	p.cfg.State.Latest().Environments(func(j *state.Job) bool {
		name, _ := j.Key.Environment()
		if j.Stage != muster.JobLive && j.Key.Namespace == muster.Namespace(p.cfg.Namespace) {
			if s, ok := all[name]; ok {
				s.UsedRunners += j.Runners().Claimed
				all[name] = s
			}
		}
		return true
	})
	tell(w, http.StatusOK, all)
	return nil
}

func (p *Poseidon) listEnvironments(w http.ResponseWriter, r *http.Request) error {
	if err := fetch(r); err != nil {
		return err
	}
	list := []environment{}
	for id, j := range p.environments() {
		list = append(list, shown(id, j.Env.Spec))
	}
	tell(w, http.StatusOK, map[string][]environment{"executionEnvironments": list})
	return nil
}

// fetch checks a parameter that says what is always so here: the state is as new as can be.
func fetch(r *http.Request) error {
	text := r.URL.Query().Get("fetch")
	if _, err := strconv.ParseBool(text); err != nil && text != "" {
		return refused(http.StatusBadRequest, "fetch is %q; it is true or false", clip(text))
	}
	return nil
}

func (p *Poseidon) getEnvironment(w http.ResponseWriter, r *http.Request) error {
	if err := fetch(r); err != nil {
		return err
	}
	id, j, err := p.find(r)
	switch {
	case err != nil:
		return err
	case j == nil:
		return noEnvironment(id)
	}
	tell(w, http.StatusOK, shown(id, j.Env.Spec))
	return nil
}

// size of the pool: the number that is fixed, or the least if there is none.
func size(s *api.EnvironmentSpec) int {
	switch {
	case s.Warm.Target != nil:
		return *s.Warm.Target
	case s.Warm.Min != nil:
		return *s.Warm.Min
	}
	return 0
}

func shown(id int, s *api.EnvironmentSpec) environment {
	e := environment{ID: id, environmentSpec: environmentSpec{
		Image: s.Image, PrewarmingPoolSize: size(s), CPULimit: int64(s.Resources.CPU*coreMHz + 0.5), MemoryLimit: int64(max(s.Resources.Memory, s.Resources.MemoryMax)) >> 20,
		NetworkAccess: s.Network != string(muster.NetworkNone), ExposedPorts: []int{},
	}}
	e.ExposedPorts = append(e.ExposedPorts, s.Ports...)
	return e
}

func (p *Poseidon) setEnvironment(w http.ResponseWriter, r *http.Request) error {
	id, j, err := p.find(r)
	if err != nil {
		return err
	}
	var want environmentSpec
	done, err := p.read(w, r, maxBody, &want)
	if err != nil {
		return err
	}
	done()
	if err := want.check(); err != nil {
		return err
	}
	var set *state.EnvironmentChange
	for try := 0; ; try++ {
		spec := &api.EnvironmentSpec{}
		if j != nil {
			spec = j.Env.Spec.Clone()
		}
		want.into(spec, p.reserve())
		spec.Name, spec.Namespace = strconv.Itoa(id), p.cfg.Namespace
		// What clients do not know of is as an operator has set it last, also if that was a moment
		// ago.
		set, err = p.cfg.Submit.ReplaceEnvironment(r.Context(), j, spec)
		if !muster.IsKind(err, muster.FaultConflict) || try == maxTries {
			break
		}
		j = p.environment(id)
	}
	if err != nil {
		return err
	}
	status := http.StatusNoContent
	if set.New || j == nil {
		status = http.StatusCreated
	}
	w.WriteHeader(status)
	return nil
}

// reserve is how much memory is set aside for a runner.
func (p *Poseidon) reserve() api.Size {
	if p.cfg.MemoryReserve > 0 {
		return p.cfg.MemoryReserve
	}
	return api.DefaultMemoryReserve
}

// check refuses what would mean something else here.
func (e *environmentSpec) check() error {
	bad := func(format string, args ...any) error { return refused(http.StatusBadRequest, format, args...) }
	switch {
	case e.Image == "":
		// Without one, runners would be processes of the node, with its files.
		return bad("image is missing; name a container image")
	case e.PrewarmingPoolSize < 0 || e.PrewarmingPoolSize > api.MaxWarm:
		return bad("prewarmingPoolSize is %d; it is 0 to %d", e.PrewarmingPoolSize, api.MaxWarm)
	case e.CPULimit <= 0 || e.CPULimit > api.MaxCPU*coreMHz:
		return bad("cpuLimit is %d MHz; it is 1 to %d, and %d is a whole core", e.CPULimit, int64(api.MaxCPU*coreMHz), coreMHz)
	case e.MemoryLimit <= 0 || e.MemoryLimit > 1<<40>>20<<10:
		return bad("memoryLimit is %d MB; it is 1 to %d", e.MemoryLimit, 1<<40>>20<<10)
	}
	return nil
}

// into sets what clients of this API know of, and leaves the rest as an operator has set it.
func (e *environmentSpec) into(s *api.EnvironmentSpec, reserve api.Size) {
	n := e.PrewarmingPoolSize
	s.Image = e.Image
	s.Warm.Min, s.Warm.Target, s.Warm.Max = &n, &n, n
	// The limit is the most that a runner may use; what is set aside for it is the operator's to
	// say.
	limit := api.Size(e.MemoryLimit << 20)
	s.Resources.CPU, s.Resources.Memory, s.Resources.MemoryMax = float64(e.CPULimit)/coreMHz, min(reserve, limit), 0
	if limit > s.Resources.Memory {
		s.Resources.MemoryMax = limit
	}
	switch {
	case !e.NetworkAccess:
		s.Network, s.Ports, s.Egress = string(muster.NetworkNone), nil, nil
	default:
		if s.Network != string(muster.NetworkHost) {
			s.Network = string(muster.NetworkBridge)
		}
		s.Ports = e.ExposedPorts
	}
	if s.Env["CODEOCEAN"] == "" {
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env["CODEOCEAN"] = "true"
	}
}

func (p *Poseidon) deleteEnvironment(w http.ResponseWriter, r *http.Request) error {
	id, j, err := p.find(r)
	switch {
	case err != nil:
		return err
	case j == nil:
		return noEnvironment(id)
	}
	if err := p.cfg.Submit.DeleteEnvironment(r.Context(), j, false); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
