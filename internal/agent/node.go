package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/devices"
	"github.com/musterhq/muster/internal/agent/fencing"
	"github.com/musterhq/muster/internal/agent/inputs"
)

// checkTimeout bounds one check of all runtimes.
const checkTimeout = 15 * time.Second

// node is what the machine offers to all allocations: runtimes, images, inputs and networks, and
// the tokens that bound how much is done at once. It knows no allocation. What is not guarded by mu
// is set before anything is served.
type node struct {
	cfg      Config
	log      *slog.Logger
	crew     *crew
	reporter *reporter
	trash    *trash
	guard    *fencing.Guard
	inputs   *inputs.Cache
	images   contract.Images    // nil if there are none
	devices  *devices.Inventory // not nil
	runtimes []contract.Runtime // that work here
	problems []string
	// noNetworks is why no network is made here.
	noNetworks error
	// starts holds a token for each sandbox being made, files for each result being written:
	// thousands at once would only make thousands of threads.
	starts, files chan struct{}
	// probing holds one token: the node is probed by one at a time.
	probing chan struct{}

	mu sync.Mutex
	// checked is when the runtimes were last found to work; zero after a failure of the node's.
	checked time.Time
	// versions are the newest of jobs whose image was opened here.
	versions map[muster.JobUID]uint64
}

func newNode(cfg Config) *node {
	n := &node{
		cfg: cfg, log: cfg.Logger, crew: &crew{}, reporter: newReporter(cfg.Logger),
		starts: make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0))), files: make(chan struct{}, 8), probing: make(chan struct{}, 1),
	}
	n.trash = newTrash(n.emptyDir, n.log)
	if n.devices = cfg.Devices; n.devices == nil {
		n.devices = &devices.Inventory{}
	}
	n.problems = slices.Clone(n.devices.Problems)
	return n
}

// checkRuntimes finds out which runtimes work, and whether networks can be made.
func (n *node) checkRuntimes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(n.cfg.Runtimes))
	var wg sync.WaitGroup
	for i, rt := range n.cfg.Runtimes {
		wg.Go(func() { errs[i] = rt.Check(ctx) })
	}
	var noNetworks error
	var networkProblems []string
	if n.cfg.Networks != nil {
		wg.Go(func() { networkProblems, noNetworks = n.cfg.Networks.Check(ctx) })
	}
	wg.Wait()
	if n.problems = append(n.problems, networkProblems...); noNetworks != nil {
		// Those of sandboxes that an earlier agent started are looked after all the same.
		n.noNetworks = noNetworks
		n.problems = append(n.problems, fmt.Sprintf("network bridge does not work here: %v", noNetworks))
	}
	defer func() { n.problems = distinct(n.problems) }()
	n.checked = time.Now()
	for i, rt := range n.cfg.Runtimes {
		if errs[i] == nil {
			n.runtimes = append(n.runtimes, rt)
			if p, ok := rt.(contract.Limited); ok {
				n.problems = append(n.problems, p.Problems()...)
			}
			continue
		}
		if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		n.problems = append(n.problems, fmt.Sprintf("runtime %s does not work here: %v", rt.Name(), errs[i]))
		n.log.Warn("runtime does not work here", "runtime", rt.Name(), "error", errs[i])
	}
	return nil
}

// distinct leaves out what was said before: runtimes lack the same limits.
func distinct(problems []string) (out []string) {
	for _, p := range problems {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// attributes are those that the node was given, and what it found out about itself.
func (n *node) attributes() map[string]string {
	out := maps.Clone(n.cfg.Attributes)
	if found := n.devices.Attributes(); len(found) > 0 {
		if out == nil {
			out = map[string]string{}
		}
		maps.Copy(out, found)
	}
	for _, rt := range n.runtimes {
		if _, images := rt.(contract.ImageRuntime); images && n.images != nil {
			if out == nil {
				out = map[string]string{}
			}
			out[muster.AttributeContainers] = rt.Name()
			if v, ok := rt.(contract.Versioned); ok {
				out[muster.AttributeContainers] = v.Version()
			}
			out[muster.AttributeIsolation] = string(isolationOf(rt))
			maps.Copy(out, n.volumeAttributes())
			break // the one that is used
		}
	}
	return out
}
