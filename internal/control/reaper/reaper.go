package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
)

// Defaults of Config.
const (
	DefaultEvery     = 30 * time.Second
	DefaultRetention = 24 * time.Hour
	DefaultMaxJobs   = 100_000
	// DefaultMaxJobBytes bounds what the specs of ended jobs take: each may be a megabyte.
	DefaultMaxJobBytes = 512 << 20
	DefaultMaxNodes    = 1000
	// DefaultAttempts is how many ended attempts of a member are kept while its job lives.
	DefaultAttempts = 5
	// batch bounds what one fact forgets: apply stays short beside scheduling.
	batch = 256
	// allocBatch bounds how many allocations go with it: a quarter of a millisecond for a hundred of them.
	allocBatch = 2048
	// uploadAge is how long an upload may wait for the job that refers to it.
	uploadAge = 24 * time.Hour
)

// Source is the state as it is applied.
type Source interface {
	Latest() *state.Snapshot
}

// Blobs is what is stored of jobs. Deleting what is not there is no error.
type Blobs interface {
	DeletePrefix(ctx context.Context, prefix string) error
	SweepUploads(ctx context.Context, now time.Time, age time.Duration, referred func(digest string) bool) (int, error)
	Usage() int64
}

// Config of a Reaper. Zero durations and numbers mean the defaults; Quota 0 means none.
type Config struct {
	State    Source
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock  clock.Clock
	Blobs  Blobs
	Logger *slog.Logger

	Every time.Duration
	// Jobs and Nodes are kept for so long after their end, and never more of
	// them than MaxJobs ended, with specs of MaxJobBytes, and MaxNodes gone.
	Jobs, Nodes       time.Duration
	MaxJobs, MaxNodes int
	MaxJobBytes       int64
	// Attempts are how many ended ones of each member are kept of a job that has not ended.
	Attempts int
	// Output is how long stored output of ended jobs is kept; at most Jobs.
	Output time.Duration
	Quota  int64
}

// Reaper is the loop. See the package comment.
type Reaper struct {
	cfg Config
	log *slog.Logger
}

// New makes a Reaper; it does nothing before Run.
func New(cfg Config) (*Reaper, error) {
	if cfg.State == nil || cfg.Proposer == nil || cfg.Blobs == nil {
		return nil, errors.New("reaper: state, proposer and blobs are needed")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Every, DefaultEvery)
	def(&cfg.Jobs, DefaultRetention)
	def(&cfg.Nodes, DefaultRetention)
	def(&cfg.Output, cfg.Jobs)
	if cfg.MaxJobs == 0 {
		cfg.MaxJobs = DefaultMaxJobs
	}
	if cfg.MaxJobBytes == 0 {
		cfg.MaxJobBytes = DefaultMaxJobBytes
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = DefaultMaxNodes
	}
	if cfg.Attempts == 0 {
		cfg.Attempts = DefaultAttempts
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reaper{cfg: cfg, log: cfg.Logger.With("loop", "reaper")}, nil
}

// Run sweeps until ctx ends. What could not be done is tried again at the next sweep.
func (r *Reaper) Run(ctx context.Context) error {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		if err := r.step(ctx, r.cfg.Clock.Now().Std()); err != nil && ctx.Err() == nil {
			r.log.Warn("a sweep was not finished; it goes on later", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// step is one sweep.
func (r *Reaper) step(ctx context.Context, now time.Time) error {
	return errors.Join(
		r.jobs(ctx, muster.At(now)),
		r.output(ctx, muster.At(now)),
		r.nodes(ctx, muster.At(now)),
		r.attempts(ctx),
		r.uploads(ctx, now),
	)
}

// jobs purges ended jobs that are past their retention or too many.
func (r *Reaper) jobs(ctx context.Context, now muster.Time) error {
	var stuck stuck
	for ctx.Err() == nil {
		snap := r.cfg.State.Latest()
		old := r.oldJobs(snap, now, &stuck)
		if len(old) == 0 || stuck.many() {
			return stuck.err()
		}
		f, allocs := &state.JobsPurged{}, 0
		for _, j := range old {
			n := len(allocsOf(snap, j.UID))
			if allocs += n; allocs >= allocBatch && len(f.UIDs) > 0 {
				break // it comes next
			}
			if err := r.deleteBlobs(ctx, snap, j); err != nil {
				allocs -= n
				stuck.add(j.UID, err)
				continue
			}
			if n == allocBatch {
				if err := r.thin(ctx, j); err != nil {
					return err
				}
			}
			f.UIDs = append(f.UIDs, j.UID)
		}
		if len(f.UIDs) == 0 {
			continue
		}
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
			return fmt.Errorf("purge %d jobs: %w", len(f.UIDs), err)
		}
		r.log.Info("ended jobs forgotten", "jobs", len(f.UIDs), "oldest", old[0].Key.String())
	}
	return ctx.Err()
}

// allocsOf are up to a batch of a job's allocations.
func allocsOf(snap *state.Snapshot, uid muster.JobUID) (ids []muster.AllocID) {
	snap.JobAllocs(uid, 0, func(a *state.Alloc) bool {
		ids = append(ids, a.ID)
		return len(ids) < allocBatch
	})
	return ids
}

// thin forgets the allocations of an ended job that has many, batch by batch: scheduling goes on between them.
func (r *Reaper) thin(ctx context.Context, j *state.Job) error {
	for ctx.Err() == nil {
		ids := allocsOf(r.cfg.State.Latest(), j.UID)
		if len(ids) < allocBatch {
			break
		}
		_, n, err := state.Propose(ctx, r.cfg.Proposer, &state.AllocsPurged{Allocs: ids})
		if err != nil {
			return fmt.Errorf("purge %d allocations of job %s: %w", len(ids), j.Key, err)
		}
		if n == 0 {
			break
		}
	}
	return ctx.Err()
}

// oldJobs are up to a batch of ended jobs to forget, the longest ended first.
func (r *Reaper) oldJobs(snap *state.Snapshot, now muster.Time, but *stuck) []*state.Job {
	over, bytes := snap.EndedJobCount()-r.cfg.MaxJobs, snap.EndedJobBytes()-r.cfg.MaxJobBytes
	var out []*state.Job
	snap.EndedJobs(func(j *state.Job) bool {
		if len(out) >= batch || now.Sub(j.Ended) < r.cfg.Jobs && len(out) >= over && bytes <= 0 {
			return false
		}
		// Output that is still on its way would be stored for nobody.
		if open, _ := stored(snap, j); !open && !but.has(j.UID) {
			out = append(out, j)
			bytes -= j.SpecBytes()
		}
		return true
	})
	return out
}

// stuck are jobs of a sweep whose blobs could not be deleted: what is behind them is swept all the same.
type stuck struct {
	jobs  map[muster.JobUID]bool
	first error
}

func (s *stuck) has(uid muster.JobUID) bool { return s.jobs[uid] }

func (s *stuck) add(uid muster.JobUID, err error) {
	if s.jobs == nil {
		s.jobs, s.first = map[muster.JobUID]bool{}, err
	}
	s.jobs[uid] = true
}

// many: it is the store, and not single jobs, and more tries would be of no use now.
func (s *stuck) many() bool { return len(s.jobs) >= batch }

func (s *stuck) err() error {
	if len(s.jobs) > 1 {
		return fmt.Errorf("of %d jobs: %w", len(s.jobs), s.first)
	}
	return s.first
}

// stored tells whether output of an ended job is still on its way, and whether
// anything may be in the blob store: of an incomplete output, and of declared
// outputs that were given up, blobs may be there that no fact counts.
func stored(snap *state.Snapshot, j *state.Job) (open, blobs bool) {
	snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
		switch a.Output.Stage {
		case state.OutputOpen:
			open = true
		case state.OutputIncomplete:
			blobs = true
		}
		blobs = blobs || a.Output.BlobBytes > 0 || len(a.Run.Spec.Outputs) > 0
		return true
	})
	return open, blobs
}

func (r *Reaper) deleteBlobs(ctx context.Context, snap *state.Snapshot, j *state.Job) error {
	if _, blobs := stored(snap, j); !blobs {
		return nil
	}
	if err := r.cfg.Blobs.DeletePrefix(ctx, blob.JobPrefix(j.Key.Namespace, j.UID)); err != nil {
		return fmt.Errorf("delete the output of job %s: %w", j.Key, err)
	}
	return nil
}

// output prunes stored output of ended jobs: what is past its own retention,
// and of the longest ended ones while the store is over its quota.
func (r *Reaper) output(ctx context.Context, now muster.Time) error {
	var stuck stuck
	for ctx.Err() == nil {
		snap := r.cfg.State.Latest()
		prune := r.lateOutput(snap, now, &stuck)
		if len(prune) == 0 && r.cfg.Quota > 0 {
			prune = surplusOutput(snap, r.cfg.Blobs.Usage(), r.cfg.Quota, &stuck)
		}
		if len(prune) == 0 || stuck.many() {
			return stuck.err()
		}
		f := &state.JobOutputPruned{}
		for _, j := range prune {
			if err := r.deleteBlobs(ctx, snap, j); err != nil {
				stuck.add(j.UID, err)
				continue
			}
			f.UIDs = append(f.UIDs, j.UID)
		}
		if len(f.UIDs) == 0 {
			continue
		}
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
			return fmt.Errorf("prune the output of %d jobs: %w", len(f.UIDs), err)
		}
		r.log.Info("stored output of ended jobs deleted", "jobs", len(f.UIDs), "oldest", prune[0].Key.String(), "stored_bytes", r.cfg.Blobs.Usage())
	}
	return ctx.Err()
}

// lateOutput are up to a batch of ended jobs whose output was kept for as long as it is, the longest ended first.
func (r *Reaper) lateOutput(snap *state.Snapshot, now muster.Time, but *stuck) (prune []*state.Job) {
	snap.EndedJobs(func(j *state.Job) bool {
		if len(prune) >= batch || now.Sub(j.Ended) < r.cfg.Output {
			return false
		}
		if prunable(snap, j) && !but.has(j.UID) {
			prune = append(prune, j)
		}
		return true
	})
	return prune
}

func prunable(snap *state.Snapshot, j *state.Job) bool {
	open, _ := stored(snap, j)
	return j.OutputBytes > 0 && !open
}

// surplusOutput are up to a batch of ended jobs without whose output the store, which holds usage, is within its quota. It is
// taken from the namespace that stores the most, the longest ended first. A namespace that stores no more than its fair share
// of the quota loses nothing, even where what another one stores belongs to jobs that have not ended and cannot be deleted.
func surplusOutput(snap *state.Snapshot, usage, quota int64, but *stuck) (prune []*state.Job) {
	over := usage - quota
	if over <= 0 {
		return nil
	}
	type share struct {
		bytes int64
		jobs  []*state.Job // that can be pruned, the longest ended first
	}
	shares := map[muster.Namespace]*share{}
	// What belongs to no job, as uploads do, is not shared out.
	fair := quota - usage
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if j.OutputBytes > 0 {
			s := shares[j.Key.Namespace]
			if s == nil {
				s = &share{}
				shares[j.Key.Namespace] = s
			}
			s.bytes += j.OutputBytes
			fair += j.OutputBytes
		}
		return true
	})
	fair = min(max(fair, 0), quota) / max(int64(len(shares)), 1)
	snap.EndedJobs(func(j *state.Job) bool {
		if s := shares[j.Key.Namespace]; s != nil && len(s.jobs) < batch && !but.has(j.UID) && prunable(snap, j) {
			s.jobs = append(s.jobs, j)
		}
		return true
	})
	for over > 0 && len(prune) < batch {
		var most *share
		var name muster.Namespace
		for ns, s := range shares {
			if len(s.jobs) > 0 && s.bytes > fair && (most == nil || s.bytes > most.bytes || s.bytes == most.bytes && ns < name) {
				most, name = s, ns
			}
		}
		if most == nil {
			break
		}
		j := most.jobs[0]
		most.jobs = most.jobs[1:]
		most.bytes -= j.OutputBytes
		over -= j.OutputBytes
		prune = append(prune, j)
	}
	return prune
}

// nodes purges gone nodes that are past their retention or too many.
func (r *Reaper) nodes(ctx context.Context, now muster.Time) error {
	for ctx.Err() == nil {
		snap := r.cfg.State.Latest()
		over := snap.GoneNodeCount() - r.cfg.MaxNodes
		f := &state.NodesPurged{}
		snap.GoneNodes(func(n *state.Node) bool {
			if len(f.IDs) >= batch || (now.Sub(n.Gone) < r.cfg.Nodes && len(f.IDs) >= over) {
				return false
			}
			f.IDs = append(f.IDs, n.ID)
			return true
		})
		if len(f.IDs) == 0 {
			return nil
		}
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
			return fmt.Errorf("purge %d nodes: %w", len(f.IDs), err)
		}
	}
	return ctx.Err()
}

// uploads deletes those that no job refers to.
func (r *Reaper) uploads(ctx context.Context, now time.Time) error {
	referred := map[string]bool{}
	r.cfg.State.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
		refer := func(spec *api.JobSpec) {
			for i := range spec.Inputs {
				if d := spec.Inputs[i].Digest; d != "" {
					referred[d] = true
				}
			}
		}
		refer(j.Run.Spec)
		if st := j.Standing; st != nil {
			for i := range st.Past { // what it may be reverted to
				refer(st.Past[i].Spec)
			}
		}
		return true
	})
	n, err := r.cfg.Blobs.SweepUploads(ctx, now, uploadAge, func(digest string) bool { return referred[digest] })
	if err != nil {
		return err
	}
	if n > 0 {
		r.log.Info("uploads that no job refers to deleted", "uploads", n)
	}
	return nil
}
