package reaper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// The defaults of Config, and limits of one fact.
const (
	DefaultEvery     = 30 * time.Second
	DefaultRetention = 24 * time.Hour
	DefaultMaxJobs   = 100_000
	// DefaultMaxJobBytes bounds the total size of the specs of ended jobs. One spec may have a
	// megabyte.
	DefaultMaxJobBytes = 512 << 20
	DefaultMaxNodes    = 1000
	// DefaultAttempts is how many ended attempts of a member are kept while its job lives.
	DefaultAttempts = 5
	// batch bounds how many jobs, nodes or attempts one fact forgets, so that applying it does not
	// delay scheduling.
	batch = 256
	// allocBatch bounds the allocations that one fact forgets. A hundred of them take a quarter of
	// a millisecond.
	allocBatch = 2048
	// uploadAge is how long an upload may wait for a job that refers to it.
	uploadAge = 24 * time.Hour
)

// Source is the applied state.
type Source interface {
	Latest() *state.Snapshot
}

// Blobs stores the output of jobs and uploads. Deleting what does not exist is no error. Usage is
// in bytes.
type Blobs interface {
	DeletePrefix(ctx context.Context, prefix string) error
	SweepUploads(ctx context.Context, now time.Time, age time.Duration, referred func(digest string) bool) (int, error)
	Usage() int64
}

// Config configures a Reaper. State, Proposer and Blobs are required. Zero durations and numbers
// mean the defaults, but a Quota of 0 means no quota.
type Config struct {
	State    Source
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock  clock.Clock
	Blobs  Blobs
	Logger *slog.Logger

	// Every is the time between two sweeps.
	Every time.Duration
	// Jobs and Nodes are how long jobs and nodes are kept after their end. At most MaxJobs ended
	// jobs, with at most MaxJobBytes of specs, and at most MaxNodes gone nodes are kept, whatever
	// their age.
	Jobs, Nodes       time.Duration
	MaxJobs, MaxNodes int
	MaxJobBytes       int64
	// Attempts is how many ended attempts of each member are kept of a job that has not ended.
	Attempts int
	// Output is how long the stored output of ended jobs is kept, at most Jobs.
	Output time.Duration
	// Kept returns the index up to which ended rows are in the history. Rows that changed after it
	// stay in the state. Optional: without it there is no history.
	Kept func() uint64
	// PruneImages removes loaded images that nothing uses while the blob store is over its quota.
	// Optional.
	PruneImages func(ctx context.Context) error
	// InUse are the jobs that are being retried, or whose stored output is being deleted: what
	// retries jobs has the same. Optional.
	InUse *wait.InUse[muster.JobUID]
	// Quota is how many bytes the blob store should hold at most.
	Quota int64
}

// Reaper is the control loop. See the package comment. It has one goroutine, that of Run, and no
// lock.
type Reaper struct {
	cfg Config
	log *slog.Logger
}

// New makes a Reaper. It does nothing before Run.
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
	cfg.MaxJobs = cmp.Or(cfg.MaxJobs, DefaultMaxJobs)
	cfg.MaxJobBytes = cmp.Or(cfg.MaxJobBytes, DefaultMaxJobBytes)
	cfg.MaxNodes = cmp.Or(cfg.MaxNodes, DefaultMaxNodes)
	cfg.Attempts = cmp.Or(cfg.Attempts, DefaultAttempts)
	if cfg.Kept == nil {
		cfg.Kept = func() uint64 { return math.MaxUint64 }
	}
	if cfg.InUse == nil {
		cfg.InUse = &wait.InUse[muster.JobUID]{}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Reaper{cfg: cfg, log: cfg.Logger.With("loop", "reaper")}, nil
}

// Run sweeps until ctx ends. The next sweep tries again what failed.
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

// step is one sweep. A failure of one part does not keep the others from running.
func (r *Reaper) step(ctx context.Context, now time.Time) error {
	return errors.Join(
		r.jobs(ctx, muster.At(now)),
		r.output(ctx, muster.At(now)),
		r.images(ctx),
		r.nodes(ctx, muster.At(now)),
		r.attempts(ctx),
		r.uploads(ctx, now),
	)
}

// jobs purges the ended jobs that are past their retention or too many, batch by batch. The blobs
// go before the fact: a crash in between leaves the job in the state, and the next sweep finds it.
// In the opposite order the blobs would be left with nothing that refers to them.
func (r *Reaper) jobs(ctx context.Context, now muster.Time) error {
	var stuck stuck
	for ctx.Err() == nil {
		snap := r.cfg.State.Latest()
		old := r.oldJobs(snap, now, &stuck)
		if len(old) == 0 || stuck.many() {
			return stuck.err()
		}
		if err := r.purge(ctx, snap, old, &stuck); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// purge forgets the first of some ended jobs, as many as one fact takes.
func (r *Reaper) purge(ctx context.Context, snap *state.Snapshot, old []*state.Job, stuck *stuck) error {
	held := held{r: r}
	defer held.leave()
	f, allocs := &state.JobsPurged{}, 0
	for _, j := range old {
		n := len(allocsOf(snap, j.UID))
		if allocs += n; allocs >= allocBatch && len(f.UIDs) > 0 {
			// The fact would get too large. The job comes in the next one.
			break
		}
		if err := held.deleteBlobs(ctx, snap, j); err != nil {
			// The job stays, and is not tried again in this sweep.
			allocs -= n
			stuck.add(j.UID, err)
			continue
		}
		// A job with very many allocations: forget them first, in several facts.
		if n == allocBatch {
			if err := r.thin(ctx, j); err != nil {
				return err
			}
		}
		f.UIDs = append(f.UIDs, j.UID)
	}
	if len(f.UIDs) == 0 {
		return nil
	}
	if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
		return fmt.Errorf("purge %d jobs: %w", len(f.UIDs), err)
	}
	r.log.Info("ended jobs forgotten", "jobs", len(f.UIDs), "oldest", old[0].Key.String())
	return nil
}

// allocsOf returns up to allocBatch allocations of a job.
func allocsOf(snap *state.Snapshot, uid muster.JobUID) (ids []muster.AllocID) {
	snap.JobAllocs(uid, 0, func(a *state.Alloc) bool {
		ids = append(ids, a.ID)
		return len(ids) < allocBatch
	})
	return ids
}

// thin forgets the allocations of an ended job that has many, batch by batch, so that the scheduler
// can commit between them. Few are left then, for the fact that forgets the job.
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

// oldJobs returns up to a batch of ended jobs to forget, those that ended first in front. but has
// jobs to leave out.
func (r *Reaper) oldJobs(snap *state.Snapshot, now muster.Time, but *stuck) []*state.Job {
	over, bytes := snap.EndedJobCount()-r.cfg.MaxJobs, snap.EndedJobBytes()-r.cfg.MaxJobBytes
	kept := r.cfg.Kept()
	if over > r.cfg.MaxJobs || bytes > r.cfg.MaxJobBytes {
		// The history has not been written for so long, as on a full disk, that memory comes first.
		kept = math.MaxUint64
	}
	var out []*state.Job
	snap.EndedJobs(func(j *state.Job) bool {
		if len(out) >= batch || now.Sub(j.Ended) < r.cfg.Jobs && len(out) >= over && bytes <= 0 {
			return false
		}
		// A job whose output is still being stored is left alone: the output would belong to
		// nothing.
		if open, _ := stored(snap, j); !open && j.Modified <= kept && !but.has(j.UID) {
			out = append(out, j)
			bytes -= j.SpecBytes()
		}
		return true
	})
	return out
}

// stuck holds the jobs of a sweep whose blobs could not be deleted, and the first error. The sweep
// skips them, so that they do not block the jobs behind them.
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

// many reports that so many jobs have failed that the store itself must be the cause. Then the
// sweep stops.
func (s *stuck) many() bool { return len(s.jobs) >= batch }

// err returns the first error, with the number of jobs; nil if there was none.
func (s *stuck) err() error {
	if len(s.jobs) > 1 {
		return fmt.Errorf("of %d jobs: %w", len(s.jobs), s.first)
	}
	return s.first
}

// stored reports whether output of an ended job is still being stored (open), and whether the blob
// store may hold anything of it (blobs). An incomplete output, and declared outputs that were given
// up, may have left blobs that no fact counts.
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

// held are jobs that nobody may retry until the log has taken what was done to them: their blobs are
// deleted before, and the job that lives again would miss the outputs of members that succeeded.
type held struct {
	r    *Reaper
	uids []muster.JobUID
}

func (h *held) leave() {
	for _, uid := range h.uids {
		h.r.cfg.InUse.Leave(uid)
	}
}

// deleteBlobs holds a job, and deletes what is stored of it, if anything may be. A job that was
// retried since the snapshot is an error.
func (h *held) deleteBlobs(ctx context.Context, snap *state.Snapshot, j *state.Job) error {
	r := h.r
	if !r.cfg.InUse.TryTake(j.UID) {
		return fmt.Errorf("job %s is being retried", j.Key)
	}
	h.uids = append(h.uids, j.UID)
	if now := r.cfg.State.Latest().JobByUID(j.UID); now == nil || now.Ended != j.Ended {
		return fmt.Errorf("job %s was retried meanwhile", j.Key)
	}
	if _, blobs := stored(snap, j); !blobs {
		return nil
	}
	if err := r.cfg.Blobs.DeletePrefix(ctx, blob.JobPrefix(j.Key.Namespace, j.UID)); err != nil {
		return fmt.Errorf("delete the output of job %s: %w", j.Key, err)
	}
	return nil
}

// output deletes stored output of ended jobs: first what is past its retention, then, while the
// store is above its quota, that of the jobs that ended first. The blobs go before the fact, as in
// jobs.
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
		if err := r.pruneOutput(ctx, snap, prune, &stuck); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// pruneOutput deletes the stored output of some ended jobs.
func (r *Reaper) pruneOutput(ctx context.Context, snap *state.Snapshot, prune []*state.Job, stuck *stuck) error {
	held := held{r: r}
	defer held.leave()
	f := &state.JobOutputPruned{}
	for _, j := range prune {
		if err := held.deleteBlobs(ctx, snap, j); err != nil {
			stuck.add(j.UID, err)
			continue
		}
		f.UIDs = append(f.UIDs, j.UID)
	}
	if len(f.UIDs) == 0 {
		return nil
	}
	if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
		return fmt.Errorf("prune the output of %d jobs: %w", len(f.UIDs), err)
	}
	r.log.Info("stored output of ended jobs deleted", "jobs", len(f.UIDs), "oldest", prune[0].Key.String(), "stored_bytes", r.cfg.Blobs.Usage())
	return nil
}

// lateOutput returns up to a batch of ended jobs whose output is past its retention, those that
// ended first in front.
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

// prunable reports whether a job has stored output and no more is coming.
func prunable(snap *state.Snapshot, j *state.Job) bool {
	open, _ := stored(snap, j)
	return j.OutputBytes > 0 && !open
}

// surplusOutput returns up to a batch of ended jobs whose output must go to bring the store, which
// holds usage bytes, within its quota. It takes from the namespace that stores the most, jobs that
// ended first in front. A namespace that stores at most its fair share of the quota loses nothing,
// even if another one is above its share with output of live jobs, which cannot be deleted.
func surplusOutput(snap *state.Snapshot, usage, quota int64, but *stuck) (prune []*state.Job) {
	over := usage - quota
	if over <= 0 {
		return nil
	}
	type share struct {
		bytes int64
		// jobs are those that can be pruned, those that ended first in front.
		jobs []*state.Job
	}
	shares := map[muster.Namespace]*share{}
	// Bytes of no job, such as uploads, are not shared out. The loop adds the bytes of all jobs,
	// which leaves the quota without the others.
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

// nodes purges the gone nodes that are past their retention or too many.
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

// images comes after output: images go only where the output of ended jobs was not enough.
func (r *Reaper) images(ctx context.Context) error {
	if r.cfg.PruneImages == nil {
		return nil
	}
	return r.cfg.PruneImages(ctx)
}

// uploads deletes the old uploads to which no job and no loaded image refers. The age limit protects
// an upload whose job is not submitted yet.
func (r *Reaper) uploads(ctx context.Context, now time.Time) error {
	referred := state.KeptUploads(r.cfg.State.Latest(), muster.At(now), uploadAge)
	n, err := r.cfg.Blobs.SweepUploads(ctx, now, uploadAge, func(digest string) bool { return referred[digest] })
	if err != nil {
		return err
	}
	if n > 0 {
		r.log.Info("uploads that no job refers to deleted", "uploads", n)
	}
	return nil
}
