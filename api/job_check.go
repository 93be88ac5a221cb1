package api

import (
	"maps"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// Limits of a job. Each is named in the message of who goes past it.
const (
	MaxSpecBytes    = 1 << 20 // of the canonical JSON
	MaxCount        = 1_000_000
	MaxCPU          = 4096
	MinCPUMax       = 0.01
	MaxPids         = 1 << 22
	MinCPU          = 0.001
	MinMemory       = Size(1 << 20)
	MaxAttempts     = 100
	MaxTimeout      = Duration(365 * 24 * time.Hour)
	MaxKillGrace    = Duration(time.Hour)
	MaxContentBytes = 64 << 10
	MinOutputLimit  = Size(64 << 10)
	MaxOutputLimit  = Size(16 << 30)
	MaxListLen      = validate.MaxListLen // of inputs, outputs, constraints, values, restart.on
	// MaxArgBytes is what Linux takes as one argument or environment entry at most.
	MaxArgBytes = 128<<10 - 1
)

// Validate tells all that is wrong with a spec that is submitted, or nil.
// Locations are paths as "count", "resources.cpu", "inputs[2].path". Zero
// values stand for defaults and are right. It never panics, whatever the bytes.
func (s *JobSpec) Validate() []ProblemField { return checkSubmitted(s).fields() }

func checkSubmitted(s *JobSpec) *checks {
	c := checkJob(s)
	for i := range s.Inputs {
		if s.Inputs[i].File != "" {
			c.Add(validate.Index("inputs", i)+".file", "is for job files that the CLI reads; upload the file (PUT /v1/uploads/{digest}) and give its digest")
		}
	}
	return c
}

// ValidateFile is Validate for a spec as it stands in a job file, where inputs
// may still name local files that the CLI is going to upload.
func (s *JobSpec) ValidateFile() []ProblemField { return checkJob(s).fields() }

// checks gathers what is wrong.
type checks struct{ validate.Checks }

// fields are the problems as the API shows them.
func (c *checks) fields() []ProblemField {
	var out []ProblemField
	for _, p := range c.Problems {
		out = append(out, ProblemField(p))
	}
	return out
}

func checkJob(s *JobSpec) *checks {
	c := &checks{}
	if s.Name != "" {
		c.Name("name", s.Name)
	}
	if s.Namespace != "" {
		c.Name("namespace", s.Namespace)
	}
	c.kind(s)
	if s.Count < 0 || s.Count > MaxCount {
		c.Add("count", "is %d; a job has 1 to %d members", s.Count, MaxCount)
	}
	if p := s.Priority; p != nil && (*p < muster.MinPriority || *p > muster.MaxPriority) {
		c.Add("priority", "is %d; it is %d to %d, higher first", *p, muster.MinPriority, muster.MaxPriority)
	}
	c.command(s)
	c.env(s.Env)
	if s.Image != "" {
		c.image(s.Image)
	}
	c.container(s)
	c.volumes(s)
	c.isolation(s)
	if w := s.Workdir; w != "" {
		if !strings.HasPrefix(w, "/") || path.Clean(w) != w {
			c.Add("workdir", "is %s; give an absolute path without . or .. in it, or leave it out for a fresh directory", validate.Quote(w))
		} else {
			c.Text("workdir", w, 4095)
		}
	}
	c.resources(s)
	c.restart(&s.Restart)
	c.duration("timeout", s.Timeout, MaxTimeout)
	c.duration("kill_grace", s.KillGrace, MaxKillGrace)
	c.placement(s)
	if s.Pool != "" {
		c.Name("pool", s.Pool)
	}
	if why := muster.CheckAffinityKey(s.Affinity); why != "" {
		c.Add("affinity", "%s", why)
	}
	c.inputs(s.Inputs)
	c.outputs(s.Outputs)
	if l := s.OutputLimit; l != 0 && (l < MinOutputLimit || l > MaxOutputLimit) {
		c.Add("output_limit", "is %s; it is %s to %s", l, MinOutputLimit, MaxOutputLimit)
	}
	if n := len(s.Canonical()); n > MaxSpecBytes {
		c.Add("", "the job is %s as JSON and may be %s; give large data as inputs with a digest", muster.Bytes(n), muster.Bytes(MaxSpecBytes))
	}
	return c
}

func (c *checks) command(s *JobSpec) {
	if len(s.Command) == 0 {
		if s.Image == "" {
			c.Add("command", "is missing; give the program and its arguments, as [echo, hello]")
		}
		return
	}
	if s.Command[0] == "" && s.Image == "" {
		c.Add("command[0]", "is empty; it is the program to run")
	}
	for i, a := range s.Command {
		c.Text(validate.Index("command", i), a, MaxArgBytes)
	}
}

func (c *checks) env(env map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		location := "env." + k
		switch {
		case k == "":
			c.Add("env", "has an empty name")
			continue
		case !utf8.ValidString(k) || strings.ContainsAny(k, "=\x00") || strings.ContainsFunc(k, unicode.IsControl):
			c.Add("env", "has the name %s; a name has no =, no NUL and no control characters", validate.Quote(k))
			// Only a name without = alone is a location: others could not be shown.
			if utf8.ValidString(k) && !strings.ContainsFunc(k, unicode.IsControl) {
				c.Problems[len(c.Problems)-1].Location, c.Problems[len(c.Problems)-1].Value = location, k
			}
			continue
		case strings.HasPrefix(k, "MUSTER_"):
			c.Add(location, "is reserved: names that begin with MUSTER_ are set by Muster")
			c.Problems[len(c.Problems)-1].Value = k
			continue
		}
		c.Text(location, env[k], MaxArgBytes-len(k)-1)
	}
}

// Places of images that are no registries: paths on the node.
const (
	ImageLayout  = "oci:"
	ImageArchive = "docker-archive:"
)

func (c *checks) image(s string) {
	for _, source := range []string{ImageLayout, ImageArchive} {
		if where, ok := strings.CutPrefix(s, source); ok {
			if !strings.HasPrefix(where, "/") {
				c.Add("image", "is %s; give an absolute path on the node, as %s/images/app", validate.Quote(s), source)
			} else {
				c.Text("image", s, 4095)
			}
			return
		}
	}
	if len(s) > 512 || !imageReference.MatchString(s) {
		c.Add("image", "is %s; write it as registry/name:tag or name@sha256:digest, the name in lower case", validate.Quote(s))
	}
}

// imageReference is [REGISTRY/]NAME[:TAG][@DIGEST]. REGISTRY has a dot or a port, or is localhost.
var imageReference = regexp.MustCompile(`^(([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+(:[0-9]+)?|[A-Za-z0-9_-]+:[0-9]+)/)?` +
	`[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

// isolation checks what is demanded of who makes the sandbox.
func (c *checks) isolation(s *JobSpec) {
	for _, f := range []struct{ location, value string }{{"isolation", s.Isolation}, {"runtime", s.Runtime}} {
		switch {
		case f.value == "":
		case s.Image == "" && f.value != string(muster.IsolationProcess):
			c.Add(f.location, "needs an image: without one it is a process of its node")
		case len(f.value) > 64 || !validate.PlainWord(f.value) || strings.Contains(f.value, "/"):
			c.Add(f.location, "is %s; a name has 1 to 64 letters, digits and . _ -", validate.Quote(f.value))
		}
	}
	if s.Runtime != "" && s.Image == "" && s.Runtime == string(muster.IsolationProcess) {
		c.Add("runtime", "needs an image: without one it is a process of its node")
	}
}

// readiness checks by what a runner shows that it is ready.
func (c *checks) readiness(r *ReadySpec) {
	if r == nil {
		return
	}
	if len(r.Command) == 0 || r.Command[0] == "" {
		c.Add("ready.command", "is missing; give the program and its arguments, as [test, -e, /tmp/up]")
	}
	for i, a := range r.Command {
		c.Text(validate.Index("ready.command", i), a, MaxArgBytes)
	}
	c.duration("ready.interval", r.Interval, MaxReadyTime)
	c.duration("ready.timeout", r.Timeout, MaxReadyTime)
	c.duration("ready.give_up", r.GiveUp, MaxTimeout)
	if r.Interval > 0 && r.Interval < MinReadyInterval {
		c.Add("ready.interval", "is %s; at least %s", r.Interval, MinReadyInterval)
	}
}

// container checks what only a container has.
func (c *checks) container(s *JobSpec) {
	if s.Image == "" {
		for _, f := range []struct {
			location string
			given    bool
		}{
			{"entrypoint", len(s.Entrypoint) > 0}, {"user", s.User != ""}, {"hostname", s.Hostname != ""},
			{"network", s.Network != "" && s.Network != string(muster.NetworkHost)}, {"egress", len(s.Egress) > 0}, {"ports", len(s.Ports) > 0},
		} {
			if f.given {
				c.Add(f.location, "needs an image: a job without one is a process of its node")
			}
		}
		return
	}
	for i, a := range s.Entrypoint {
		c.Text(validate.Index("entrypoint", i), a, MaxArgBytes)
	}
	if c.Text("user", s.User, 256) && (strings.ContainsFunc(s.User, unicode.IsSpace) || strings.Count(s.User, ":") > 1) {
		c.Add("user", "is %s; write it as NAME, UID, NAME:GROUP or UID:GID", validate.Quote(s.User))
	}
	if s.Hostname != "" && !isHostname(s.Hostname) {
		c.Add("hostname", "is %s; it is 1 to 63 letters, digits, dots and dashes, and each part between dots begins and ends with a letter or digit", validate.Quote(s.Hostname))
	}
	switch muster.NetworkMode(s.Network) {
	case "", muster.NetworkBridge:
	case muster.NetworkNone, muster.NetworkHost:
		if s.Hostname != "" && s.Network == string(muster.NetworkHost) {
			c.Add("hostname", "is given with network host, where the name is the node's")
		}
		if len(s.Egress) > 0 {
			c.Add("egress", "is given with network %s; it is about bridge", s.Network)
		}
		if len(s.Ports) > 0 {
			c.Add("ports", "are given with network %s; they are about bridge", s.Network)
		}
	default:
		c.Add("network", "is %s; it is none, bridge or host", validate.Quote(s.Network))
	}
	if c.Count("egress", len(s.Egress)) {
		for i, e := range s.Egress {
			if p, err := netip.ParsePrefix(e); err != nil || p.Masked() != p {
				c.Add(validate.Index("egress", i), "is %s; write a network as 10.0.0.0/8, one address as 192.0.2.1/32", validate.Quote(e))
			}
		}
	}
	if c.Count("ports", len(s.Ports)) {
		for i, p := range s.Ports {
			if p < 1 || p > 65535 {
				c.Add(validate.Index("ports", i), "is %d; a port is 1 to 65535", p)
			}
		}
	}
}

func (c *checks) resources(s *JobSpec) {
	r := &s.Resources
	c.named(s)
	if m := r.MemoryMax; m != 0 && m < max(r.Memory, MinMemory) {
		c.Add("resources.memory_max", "is %s; it is at least memory (%s), or left out", m, max(r.Memory, MinMemory))
	}
	if v := r.CPU; v != 0 && !(v >= MinCPU && v <= MaxCPU) { // so written, NaN is refused as well
		c.Add("resources.cpu", "is %s; it is %g to %d cores, as 0.5", validate.Number(v), MinCPU, MaxCPU)
	}
	if r.Memory != 0 && r.Memory < MinMemory {
		c.Add("resources.memory", "is %d bytes; at least %s is needed, with its unit, as 64MiB", int64(r.Memory), MinMemory)
	}
	if r.Disk < 0 {
		c.Add("resources.disk", "is %d bytes; it cannot be negative", int64(r.Disk))
	}
	if v := r.CPUMax; v != 0 && !(v >= MinCPUMax && v <= MaxCPU) {
		c.Add("resources.cpu_max", "is %s; it is %g to %d cores, as 1.5, or left out for no limit", validate.Number(v), MinCPUMax, MaxCPU)
	}
	if r.Pids < 0 || r.Pids > MaxPids {
		c.Add("resources.pids", "is %d; it is 1 to %d processes and threads", r.Pids, MaxPids)
	}
}

func (c *checks) restart(r *RestartSpec) {
	if r.Attempts < 0 || r.Attempts > MaxAttempts {
		c.Add("restart.attempts", "is %d; it is 1 to %d", r.Attempts, MaxAttempts)
	}
	if r.Attempts > 1 && r.Attempts <= MaxAttempts && len(r.On) == 0 {
		c.Add("restart.attempts", "is %d, but no failure is retried: restart.on says which are, as on: [any]; with muster run it is --on any", r.Attempts)
	}
	if c.Count("restart.on", len(r.On)) {
		var on RestartOn
		for i, v := range r.On {
			if err := on.add(v); err != nil {
				c.Add(validate.Index("restart.on", i), "%v", err)
			}
		}
	}
	c.duration("restart.backoff", r.Backoff, MaxTimeout)
	c.duration("restart.backoff_max", r.BackoffMax, MaxTimeout)
	c.duration("restart.give_up", r.GiveUp, MaxTimeout)
	if r.BackoffMax > 0 && r.Backoff > r.BackoffMax {
		c.Add("restart.backoff_max", "is %s, shorter than backoff (%s)", r.BackoffMax, r.Backoff)
	}
}

func (c *checks) duration(location string, d, most Duration) {
	validate.AtMost(&c.Checks, location, d, most)
}

func (c *checks) inputs(list []InputSpec) {
	if !c.Count("inputs", len(list)) {
		return
	}
	paths := map[string]int{}
	for i := range list {
		in, at := &list[i], validate.Index("inputs", i)
		// A file of the client may be a directory, which the client replaces by the files in it.
		if in.File != "" && path.Clean(in.Path) == "." || c.path(at+".path", in.Path) {
			if first, twice := paths[plainPath(in.Path)]; twice {
				c.Add(at+".path", "is that of inputs[%d] as well", first)
			} else {
				paths[plainPath(in.Path)] = i
			}
		}
		c.source(at, in)
		if in.Mode != "" {
			if _, ok := parseMode(in.Mode); !ok {
				c.Add(at+".mode", "is %s; write permission bits in octal, 0000 to 0777, as 0755", validate.Quote(in.Mode))
			}
		}
	}
	for i := range list {
		for dir := path.Dir(plainPath(list[i].Path)); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if file, taken := paths[dir]; taken {
				c.Add(validate.Index("inputs", i)+".path", "is inside %s, which inputs[%d] makes a file", validate.Quote(dir), file)
				break
			}
		}
	}
}

// source checks that an input says in exactly one way where it comes from.
func (c *checks) source(at string, in *InputSpec) {
	ways := 0
	for _, given := range []bool{in.Content != nil, in.File != "", in.URL != "" || in.Digest != "" && in.Content == nil && in.File == ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		c.Add(at, "has no source; give one of content, file, digest, or url with digest")
	case ways > 1:
		c.Add(at, "has more than one source; give one of content, file, digest, or url with digest")
	case in.Content != nil && len(*in.Content) > MaxContentBytes:
		c.Add(at+".content", "has %d bytes; at most %d can stand here, give a larger one as file", len(*in.Content), MaxContentBytes)
	case in.Content != nil && !utf8.ValidString(*in.Content):
		c.Add(at+".content", "is not UTF-8 text; give other bytes as file")
	case in.URL != "" && in.Digest == "":
		c.Add(at+".digest", "is missing; with a url it says what must arrive, as sha256:<64 hex digits>")
	}
	if in.Digest != "" && !IsDigest(in.Digest) {
		c.Add(at+".digest", "is %s; write it as sha256:<64 lower-case hex digits>", validate.Quote(in.Digest))
	}
	if in.Digest != "" && (in.Content != nil || in.File != "") {
		c.Add(at+".digest", "goes with url or stands alone; content and file need none")
	}
	if in.URL != "" {
		u, err := url.Parse(in.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || len(in.URL) > 8192 {
			c.Add(at+".url", "is %s; write an http or https address", validate.Quote(in.URL))
		} else if u.User != nil {
			c.Add(at+".url", "has a user or password in it, which everybody would see who may look at the job; use a presigned address, or upload the file")
		}
	}
	if in.File != "" {
		c.Text(at+".file", in.File, 4095)
	}
}

// IsDigest reports whether s is a content digest as the API writes it: sha256:<64 lower-case hex digits>.
func IsDigest(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}

func (c *checks) outputs(list []OutputSpec) {
	if !c.Count("outputs", len(list)) {
		return
	}
	seen := map[string]int{}
	for i := range list {
		at := validate.Index("outputs", i) + ".path"
		if !c.path(at, list[i].Path) {
			continue
		}
		p := plainPath(list[i].Path)
		if first, twice := seen[p]; twice {
			c.Add(at, "is that of outputs[%d] as well", first)
			continue
		}
		seen[p] = i
	}
}

// path checks a path below the work directory.
func (c *checks) path(location, p string) bool {
	switch {
	case p == "":
		c.Add(location, "is missing; give a path below the work directory")
		return false
	case strings.HasPrefix(p, "/"):
		c.Add(location, "is %s; give it relative to the work directory, without the leading /", validate.Quote(p))
		return false
	case slices.Contains(strings.Split(p, "/"), ".."):
		c.Add(location, "is %s; a path cannot leave the work directory with ..", validate.Quote(p))
		return false
	case path.Clean(p) == ".":
		c.Add(location, "is the work directory itself; name a file or directory in it")
		return false
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > 255 {
			c.Add(location, "has a name of %d bytes; at most 255", len(part))
			return false
		}
	}
	return c.Text(location, p, 1024)
}

// hostnames are DNS names, as RFC 1123 has them.
var hostnames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

func isHostname(s string) bool { return len(s) <= 63 && hostnames.MatchString(s) }
