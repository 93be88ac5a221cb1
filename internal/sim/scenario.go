package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Scenario is what happens to a cluster, as text. # begins a comment, and a line is
//
//	seed N                          of every delay and chance; default 1
//	workers N                       of the scheduler; default 1
//	offering NAME [cpu=N] [memory=SIZE] [price=N] [market=spot] [family=F] [zone=Z]
//	pool NAME [min=N] [max=N] [launching=N] [spare=N] [idle=D] [boot=D] [grace=D] [ready=D] [factor=X] [provider=second]
//	cloud [delay=D] [jitter=D] [page=N]
//	blobs [delay=D]
//	probes slow=D [in=N]            one in N new instances answers each of its probes only after D
//	pass D                          how long others may pass a job that fits nowhere, before room is reserved for it
//	fault LINE                      a line of the fake cloud's script
//	at D ACT                        what happens then, counted from the beginning
//	expect EXPECTATION              at the end
//
// Acts:
//
//	submit JOB [count=N] [cpu=N] [memory=SIZE] [priority=N] [attempts=N] [timeout=D] [limit=SIZE]
//	           [input=N] [outputs=A,B,C?] [replace] [must]: COMMAND   (see linktest for commands; must: it is to succeed)
//	       [type=service|system parallel=N healthy=D deadline=D revert]                of jobs that stand
//	stop JOB
//	kill NODE                       its agent, as kill -9 would
//	cut NODE [for=D], hang NODE [for=D], sick NODE [for=D]    the link, the agent, the runtimes
//	stick NODE                      nothing on it ends any more
//	vanish NODE, notice NODE in=D   the cloud takes it, without and with a word
//	hold NODE, run NODE, drain NODE [within=D], destroy NODE  an operator does
//	leader                          another server leads from now on
//	crash                           the server is killed and begins anew from its log
//	down for=D                      the same, with so much time between
//	faults LINE; LINE …             the fake cloud's script from now on; none: nothing goes wrong
//	pool …, unpool NAME             the configuration changes
//	expect EXPECTATION
//	env NAME [copies=N] [min=N] [max=N] [target=N] [cpu=N] [memory=SIZE] [priority=N] [quiet=D] [ready=D|never] [giveup=D] [: COMMAND]
//	                                an environment, or its change; with copies so many, NAME-0 and so on. Its runners are ready after D, or never
//	unenv NAME [copies=N] [claimed] it is deleted; with claimed what is claimed ends, too
//	claim ENV [count=N] [copies=N] [ttl=D] [idle=D] [wait=D] [leave=D] [use=D] [last=D] [extend=D] [key] [gone]
//	                                clients claim a runner each, execute a command every use, and release it after last; gone: they never do
//	halt NODE for=D                 its machine is stopped, and lists leave it out
//	probe NODE hang|unready|broken [times=N]                  what its next probes answer
//	clock D                         the server's system clock steps
//	reload [workers=N] [paused] [second]  the loops begin again, with another configuration; paused: nothing is placed until the next;
//	                                second: with a second provider until the next, for pools with provider=second
//	config POOL max=N               an operator applies a configuration, to which the pool belongs; each new leader has another file
//	store for=D                     the blob store fails
//	full for=D                      the log takes nothing, as with a full disk
//	limit NAMESPACE [allocs=N] [cpu=N]                        at most
//
// JOB and NAME are of the default namespace, or NAME@NAMESPACE. NODE is "any", drawn from those that have a machine; "all"; JOB/INDEX, which a member runs on.
//
// Expectations:
//
//	ENV warm N, ENV claimed N       so many of its runners are, at least
//	claims N                        so many were served, at least
//	executions N                    so many were answered, at least
//	JOB succeeded|failed|stopped [WORDS of its reason]
//	JOB running N                   so many of its members run
//	JOB rollout done|failed         its members run its version, or will not
//	JOB at N                        its version
//	JOB attempts N                  no member had more
//	nodes N, instances N            there are
//	launched N                      nodes at most were ever launched
//	NODE gone|serving|draining|…    its stage
//
// At the end it is always expected that every job has ended, with a reason if it did not succeed, that no instance and no node is
// left, that all output is stored that is said to be, and that after the retention nothing is remembered.
type Scenario struct {
	Config Config
	Faults string
	Acts   []Act
	Expect []Act
	// Text is what it was read from.
	Text string
}

// Act is one thing that happens, or is expected.
type Act struct {
	Line int
	At   time.Duration
	Verb string
	// Words are those without "=", Options the others; Rest is what follows a colon, or all of it.
	Words   []string
	Options map[string]string
	Rest    string
	Command bool // Rest followed a colon
}

func (a *Act) String() string {
	return fmt.Sprintf("line %d: %s %s", a.Line, a.Verb, a.Rest)
}

// Parse reads a scenario.
func Parse(text string) (*Scenario, error) {
	s := &Scenario{Text: text, Config: Config{Seed: 1, Workers: 1, Delay: 200 * time.Millisecond, Jitter: 300 * time.Millisecond}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := s.line(i+1, line); err != nil {
			return nil, fmt.Errorf("scenario, line %d, %q: %w", i+1, line, err)
		}
	}
	if len(s.Config.Offerings) == 0 || len(s.Config.Pools) == 0 {
		return nil, errors.New("scenario: it has no offering or no pool")
	}
	return s, nil
}

func (s *Scenario) line(n int, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	a := readAct(n, word, rest)
	o := options{of: a.Options}
	switch word {
	case "seed":
		v, err := strconv.ParseUint(rest, 10, 64)
		s.Config.Seed = v
		return err
	case "workers":
		v, err := strconv.Atoi(rest)
		s.Config.Workers = v
		return err
	case "offering":
		s.Config.Offerings = append(s.Config.Offerings, offeringOf(a, &o))
	case "pool":
		s.Config.Pools = append(s.Config.Pools, poolOf(a, &o))
	case "cloud":
		s.Config.Delay, s.Config.Jitter, s.Config.Page = o.duration("delay", s.Config.Delay), o.duration("jitter", s.Config.Jitter), o.number("page", 0)
	case "probes":
		s.Config.SlowProbe, s.Config.SlowProbes = o.duration("slow", 0), max(o.number("in", 1), 1)
	case "blobs":
		s.Config.BlobDelay = o.duration("delay", 0)
	case "pass":
		v, err := time.ParseDuration(rest)
		s.Config.PassFor = v
		return err
	case "fault":
		s.Faults += rest + "\n"
		return nil
	case "expect":
		s.Expect = append(s.Expect, *readAct(n, "expect", rest))
		return nil
	case "at":
		when, what, _ := strings.Cut(rest, " ")
		at, err := time.ParseDuration(when)
		if err != nil {
			return err
		}
		verb, of, _ := strings.Cut(strings.TrimSpace(what), " ")
		act := readAct(n, verb, of)
		act.At = at
		if !known[verb] {
			return fmt.Errorf("there is no act %q", verb)
		}
		s.Acts = append(s.Acts, *act)
		s.Config.Configured = s.Config.Configured || verb == "config"
		return nil
	default:
		return fmt.Errorf("%q is not understood", word)
	}
	return o.end()
}

// known acts.
var known = map[string]bool{"submit": true, "stop": true, "retry": true, "kill": true, "cut": true, "hang": true, "sick": true, "stick": true, "vanish": true, "notice": true,
	"hold": true, "run": true, "drain": true, "destroy": true, "leader": true, "crash": true, "down": true, "faults": true, "pool": true, "unpool": true, "expect": true,
	"env": true, "unenv": true, "claim": true, "halt": true, "probe": true, "clock": true, "reload": true, "config": true, "store": true, "full": true, "limit": true}

func readAct(n int, verb, rest string) *Act {
	a := &Act{Line: n, Verb: verb, Options: map[string]string{}, Rest: strings.TrimSpace(rest)}
	head, command, ok := strings.Cut(rest, ":")
	if ok && (verb == "submit" || verb == "env") {
		a.Rest, a.Command = strings.TrimSpace(command), true
	} else {
		head = rest
	}
	for _, w := range strings.Fields(head) {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.Options[key] = value
		} else {
			a.Words = append(a.Words, w)
		}
	}
	return a
}

// word is the i-th, or "".
func (a *Act) word(i int) string {
	if i < len(a.Words) {
		return a.Words[i]
	}
	return ""
}

// options reads KEY=VALUE words; end tells the first that was wrong, or that nobody asked for.
type options struct {
	of   map[string]string
	err  error
	used int
}

func (o *options) get(key string) (string, bool) {
	v, ok := o.of[key]
	if ok {
		o.used++
	}
	return v, ok
}

func option[T any](o *options, key string, def T, parse func(string) (T, error)) T {
	v, ok := o.get(key)
	if !ok {
		return def
	}
	out, err := parse(v)
	if err != nil && o.err == nil {
		o.err = fmt.Errorf("%s: %w", key, err)
	}
	return out
}

func (o *options) number(key string, def int) int { return option(o, key, def, strconv.Atoi) }

func (o *options) real(key string, def float64) float64 {
	return option(o, key, def, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func (o *options) duration(key string, def time.Duration) time.Duration {
	return option(o, key, def, time.ParseDuration)
}

func (o *options) size(key string, def int64) int64 {
	return option(o, key, def, func(s string) (int64, error) { n, err := api.ParseSize(s); return int64(n), err })
}

func (o *options) text(key, def string) string {
	return option(o, key, def, func(s string) (string, error) { return s, nil })
}

func (o *options) end() error {
	if o.err == nil && o.used < len(o.of) {
		return errors.New("some of its options are not understood")
	}
	return o.err
}

func offeringOf(a *Act, o *options) muster.Offering {
	return muster.Offering{Provider: provider, Name: muster.OfferingName(a.word(0)), Available: true,
		Market: muster.Market(o.text("market", string(muster.OnDemand))), Family: o.text("family", ""), Zone: o.text("zone", ""),
		Price:    muster.Price(o.real("price", 0.01) * 1e6),
		Capacity: muster.Resources{CPU: muster.MilliCPU(o.real("cpu", 2) * 1000), Memory: muster.Bytes(o.size("memory", 64<<30))}}
}

func poolOf(a *Act, o *options) state.Pool {
	micros := func(key string, def time.Duration) muster.Time {
		return muster.Time(o.duration(key, def).Microseconds())
	}
	var ready []string
	timeout := micros("ready", 0)
	if timeout > 0 {
		ready = []string{"ok"}
	}
	return state.Pool{Ready: ready, ReadyTimeout: timeout, Name: muster.PoolName(a.word(0)), Provider: muster.ProviderName(o.text("provider", provider)), Min: o.number("min", 0), Max: o.number("max", 8), MaxLaunching: o.number("launching", 8),
		Spare: o.number("spare", 0), PriceFactor: o.real("factor", 0),
		StopMost: o.number("stop", 0), StopTime: micros("stopfor", time.Minute),
		IdleTimeout: micros("idle", 20*time.Second), BootTimeout: micros("boot", 2*time.Minute), Grace: micros("grace", time.Minute)}
}
