package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// Defaults of a job.
const (
	DefaultCPU         = 1.0
	DefaultMemory      = Size(256 << 20)
	DefaultOutputLimit = Size(256 << 20)
	DefaultKillGrace   = Duration(10 * time.Second)
	DefaultBackoff     = Duration(time.Second)
	DefaultBackoffMax  = Duration(5 * time.Minute)
	DefaultGiveUp      = Duration(time.Hour)
	DefaultMode        = "0644"
	DefaultDeviceKind  = "gpu"
	DefaultWeight      = 50 // of affinities and spreads

	DefaultMinHealthyTime  = Duration(10 * time.Second)
	DefaultHealthyDeadline = Duration(5 * time.Minute)
)

// Defaults fills in what was left out and writes paths and modes in their one
// form ("./out/" becomes "out", "755" becomes "0755"), so that specs that mean
// the same are the same. What is wrong is left as it is, for Validate to name.
// Doing it twice changes nothing more.
func (s *JobSpec) Defaults() {
	fill(&s.Namespace, string(muster.DefaultNamespace))
	fill(&s.Type, string(muster.JobBatch))
	fill(&s.Count, 1)
	if s.Priority == nil {
		p := muster.DefaultPriority
		s.Priority = &p
	}
	if s.Image != "" {
		fill(&s.Network, string(muster.NetworkBridge))
	}
	if r := &s.Resources; r.Cores > 0 {
		fill(&r.CPU, float64(r.Cores))
	}
	fill(&s.Resources.CPU, DefaultCPU)
	for i := range s.Resources.Devices {
		d := &s.Resources.Devices[i]
		fill(&d.Kind, DefaultDeviceKind)
		if d.Part == 0 {
			fill(&d.Count, 1)
		}
	}
	fill(&s.Resources.Memory, DefaultMemory)
	fill(&s.OutputLimit, DefaultOutputLimit)
	fill(&s.KillGrace, DefaultKillGrace)
	if muster.JobType(s.Type).Standing() {
		s.updateDefaults()
	} else {
		if len(s.Restart.On) > 0 {
			fill(&s.Restart.Attempts, 3)
		}
		fill(&s.Restart.Attempts, 1)
	}
	fill(&s.Restart.Backoff, DefaultBackoff)
	fill(&s.Restart.BackoffMax, max(DefaultBackoffMax, s.Restart.Backoff))
	fill(&s.Restart.GiveUp, DefaultGiveUp)
	for i := range s.Constraints {
		fill(&s.Constraints[i].Op, muster.OpEqual)
	}
	for i := range s.Affinities {
		fill(&s.Affinities[i].Op, muster.OpEqual)
		fill(&s.Affinities[i].Weight, DefaultWeight)
	}
	for i := range s.Spread {
		fill(&s.Spread[i].Weight, DefaultWeight)
	}
	for i := range s.Inputs {
		in := &s.Inputs[i]
		in.Path = plainPath(in.Path)
		if in.File == "" { // else the CLI takes the bits of the file
			fill(&in.Mode, DefaultMode)
		}
		if m, ok := parseMode(in.Mode); ok {
			in.Mode = "0" + strconv.FormatUint(uint64(m), 8)
		}
	}
	for i := range s.Outputs {
		s.Outputs[i].Path = plainPath(s.Outputs[i].Path)
	}
}

// updateDefaults is for jobs whose members run until they are stopped.
func (s *JobSpec) updateDefaults() {
	u := UpdateSpec{}
	if s.Update != nil {
		u = *s.Update
	}
	fill(&u.MaxParallel, 1)
	fill(&u.MinHealthyTime, DefaultMinHealthyTime)
	fill(&u.HealthyDeadline, max(DefaultHealthyDeadline, u.MinHealthyTime+Duration(time.Minute)))
	s.Update = &u
	s.Ready = deepCopy(s.Ready)
	s.Ready.defaults()
}

func (r *ReadySpec) defaults() {
	if r != nil {
		fill(&r.Interval, DefaultReadyInterval)
		fill(&r.Timeout, DefaultReadyTimeout)
		fill(&r.GiveUp, DefaultReadyGiveUp)
	}
}

func fill[T comparable](field *T, value T) {
	*field = cmp.Or(*field, value)
}

// plainPath takes the harmless ornaments off a relative path. Paths that climb
// or start at the root stay as they were written.
func plainPath(p string) string {
	if p == "" || strings.HasPrefix(p, "/") || slices.Contains(strings.Split(p, "/"), "..") {
		return p
	}
	return path.Clean(p)
}

// parseMode reads permission bits as users write them: 0644, 644 or 0o644.
func parseMode(s string) (uint32, bool) {
	t := strings.TrimPrefix(s, "0o")
	if t == "" || len(t) > 5 || strings.Trim(t, "01234567") != "" {
		return 0, false
	}
	m, err := strconv.ParseUint(t, 8, 32)
	return uint32(m), err == nil && m <= 0o777
}

// FileMode is the input's permission bits, which Validate has checked.
func (in *InputSpec) FileMode() uint32 {
	m, _ := parseMode(in.Mode)
	return m
}

// Clone is a copy that shares nothing with s.
func (s *JobSpec) Clone() *JobSpec { return deepCopy(s) }

// Canonical is the one JSON form of what the spec means: with defaults, fields
// in a fixed order, keys sorted, nothing empty. It is nil if the spec cannot be
// written as JSON, which Validate finds as well.
func (s *JobSpec) Canonical() []byte {
	c := s.Clone()
	c.Defaults()
	return c.inOrder(false) // a shell line is full of < > &, and would count six-fold
}

// Digest is the SHA-256 of what is asked, as it is: without defaults. Servers of all versions come to the
// same for the same request.
func (q *JobSubmission) Digest() ([sha256.Size]byte, error) {
	type rest struct {
		Spec json.RawMessage `json:"spec"`
		*JobSubmission
	}
	spec := q.Spec.inOrder(true)
	if spec == nil {
		return [sha256.Size]byte{}, fmt.Errorf("digest of submission: the spec cannot be written as JSON")
	}
	b, err := json.Marshal(rest{spec, q})
	return sha256.Sum256(b), err
}

// canonicalOrder is the order of a spec's fields in what digests are made of. The log holds digests, so that it
// must never change; fields that are not named here follow, sorted.
var canonicalOrder = [...]string{
	"name", "namespace", "type", "count", "priority", "command", "image", "isolation", "runtime", "entrypoint", "user", "network",
	"egress", "ports", "env", "workdir", "resources", "restart", "update", "timeout", "kill_grace", "ready", "constraints",
	"affinities", "spread", "distinct_hosts", "exclusive", "affinity", "pool", "inputs", "outputs", "output_limit",
}

// inOrder is the spec as JSON in canonicalOrder; nil if it cannot be written.
func (s *JobSpec) inOrder(escapeHTML bool) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(escapeHTML)
	var fields map[string]json.RawMessage
	if e.Encode(s) != nil || json.Unmarshal(b.Bytes(), &fields) != nil {
		return nil
	}
	b.Reset()
	write := func(name string) {
		if value, there := fields[name]; there {
			fmt.Fprintf(&b, ",%q:%s", name, value)
			delete(fields, name)
		}
	}
	for _, name := range canonicalOrder {
		write(name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		write(name)
	}
	out := append(b.Bytes(), '}')
	out[0] = '{' // in place of the first comma; a spec always has its resources
	return out
}

// Equal reports whether both specs mean the same job. A spec that has no
// canonical form equals nothing.
func (s *JobSpec) Equal(o *JobSpec) bool {
	a, b := s.Canonical(), o.Canonical()
	return a != nil && bytes.Equal(a, b)
}
