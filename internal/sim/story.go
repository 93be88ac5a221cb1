package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// patience is how long a simulated cluster may take to be through with
// everything after the last fault.
const patience = 3 * time.Hour

// Story is what a seed makes happen.
type Story struct {
	c *Cluster
	r *rand.Rand
	// flawless jobs fail only if their nodes do, and those are few: they must succeed.
	flawless map[muster.JobKey]bool
	stopped  map[muster.JobKey]bool
	mishaps  int
}

func offering(name string, cores int, price muster.Price) muster.Offering {
	return muster.Offering{Provider: provider, Name: muster.OfferingName(name), Market: muster.OnDemand, Price: price, Available: true,
		Capacity: muster.Resources{CPU: muster.MilliCPU(cores) * 1000, Memory: 64 * muster.GiB}}
}

// NewStory draws a cluster from a seed.
func NewStory(seed uint64) (*Story, error) {
	r := rand.New(rand.NewPCG(seed, 0x6d7573746572))
	c, err := New(Config{
		Seed: seed, Workers: 1 + r.IntN(3),
		Offerings: []muster.Offering{offering("small", 2, 10_000), offering("large", 8, 45_000)},
		Pools: []state.Pool{{Name: "p", Provider: provider, Max: 1 + r.IntN(8), MaxLaunching: 1 + r.IntN(8),
			IdleTimeout: 20e6, BootTimeout: 120e6, Grace: 60e6}},
		Delay: time.Duration(r.IntN(2000)) * time.Millisecond, Jitter: 900 * time.Millisecond,
		BlobDelay: time.Duration(r.IntN(8001)) * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return &Story{c: c, r: r, flawless: map[muster.JobKey]bool{}, stopped: map[muster.JobKey]bool{}}, nil
}

// Cluster is where it happens.
func (s *Story) Cluster() *Cluster { return s.c }

// Run tells the story and answers with what went wrong with it.
func (s *Story) Run() error {
	defer s.c.Close()
	s.cloudFaults()
	if err := s.c.Start(); err != nil {
		return err
	}
	for range 10 + s.r.IntN(30) {
		s.act()
		time.Sleep(time.Duration(s.r.IntN(15_000)) * time.Millisecond)
		if err := s.c.Err(); err != nil {
			return err
		}
	}
	s.c.note("no more faults")
	s.c.Cloud.SetFaults(fake.Faults{})
	for _, id := range s.c.Machines() {
		if m := s.c.Machine(id); m != nil {
			m.Cut(false)
			m.Hang(false)
		}
	}
	return s.end()
}

// cloudFaults are those of the provider, one in ten calls each.
func (s *Story) cloudFaults() {
	// Its own stream, and no lock needed beyond the cloud's: faults are drawn in the order of the calls.
	r := rand.New(rand.NewPCG(s.r.Uint64(), 1))
	ch := make(chan *rand.Rand, 1)
	ch <- r
	one := func(n int) bool {
		r := <-ch
		hit := r.IntN(n) == 0
		ch <- r
		return hit
	}
	s.c.Cloud.SetFaults(fake.Faults{
		Create: func(cloud.Intent) error {
			if one(10) {
				return errors.New("something went wrong")
			}
			return nil
		},
		Lost: func(cloud.Intent) error {
			if one(12) {
				return muster.Faultf(muster.FaultAmbiguous, "the answer was lost")
			}
			return nil
		},
		Destroy: func(muster.InstanceID) error {
			if one(10) {
				return muster.Faultf(muster.FaultTransient, "try again")
			}
			return nil
		},
		List: func() error {
			if one(10) {
				return muster.Faultf(muster.FaultTransient, "try again")
			}
			return nil
		},
		Cut: func(page []cloud.Instance) ([]cloud.Instance, bool) {
			if one(15) {
				return page[:len(page)/2], false
			}
			return page, true
		},
	})
}

// act is one thing that happens.
func (s *Story) act() {
	switch s.r.IntN(12) {
	case 0, 1, 2, 3:
		s.submit()
	case 4:
		s.stop()
	case 5, 6:
		s.mishap("agent of %s killed", func(id muster.NodeID) { s.c.Machine(id).Kill() })
	case 7:
		s.mishap("link to %s cut for a while", func(id muster.NodeID) {
			m, d := s.c.Machine(id), time.Duration(s.r.IntN(50))*time.Second
			m.Cut(true)
			time.AfterFunc(d, func() { m.Cut(false) })
		})
	case 8:
		s.mishap("agent of %s hangs for a while", func(id muster.NodeID) {
			m, d := s.c.Machine(id), time.Duration(s.r.IntN(40))*time.Second
			m.Hang(true)
			time.AfterFunc(d, func() { m.Hang(false) })
		})
	case 9:
		if s.mishaps < 3 { // a member may lose five nodes before it fails
			s.mishaps++
			s.mishap("machine of %s vanishes", s.vanish)
		}
	default:
		s.c.note("a new leader")
		if err := s.c.Restart(); err != nil {
			s.c.fail(err)
		}
	}
}

func (s *Story) mishap(what string, do func(muster.NodeID)) {
	ids := s.c.Machines()
	if len(ids) == 0 {
		return
	}
	id := ids[s.r.IntN(len(ids))]
	s.c.note(what, id)
	if s.c.Machine(id) != nil {
		do(id)
	}
}

func (s *Story) vanish(id muster.NodeID) {
	for _, in := range s.c.Cloud.Instances() {
		if in.Tags.Node == id {
			s.c.Cloud.Vanish(in.ID)
		}
	}
}

func (s *Story) submit() {
	key := muster.JobKey{Namespace: muster.DefaultNamespace, Name: fmt.Sprintf("j%d", s.r.IntN(12))}
	spec := &api.JobSpec{Name: key.Name, Count: 1 + s.r.IntN(12), Resources: api.ResourcesSpec{CPU: float64(1 + s.r.IntN(3)), Memory: 1 << 20}}
	flawless := false
	words := func(format string, args ...any) []string { return strings.Fields(fmt.Sprintf(format, args...)) }
	switch s.r.IntN(9) {
	case 0:
		spec.Command = strings.Fields("exit 3")
	case 1:
		spec.Command = strings.Fields("sleep 2s ; exit 1")
		spec.Restart = api.RestartSpec{Attempts: 3, On: []string{"any"}}
	case 2:
		spec.Command = words("print hello ; flood %d", s.r.IntN(3<<20))
		flawless = true
	case 3:
		// Little, over a time in which some of it is shipped.
		spec.Command = words("print one ; sleep %dms ; warn two ; sleep %dms ; print three", s.r.IntN(20_000), s.r.IntN(20_000))
		flawless = true
	case 4:
		// More than may be kept of it, again and again.
		spec.Command = words("flood %d ; sleep %dms ; flood %d ; sleep 6s ; flood 70000", s.r.IntN(200_000), s.r.IntN(20_000), s.r.IntN(200_000))
		spec.OutputLimit = api.MinOutputLimit
		flawless = true
	case 5:
		spec.Command = words("print x ; sleep %dms ; make a small ; fill b %d", s.r.IntN(15_000), s.r.IntN(1<<20))
		spec.Outputs = []api.OutputSpec{{Path: "a"}, {Path: "b"}, {Path: "c", Optional: true}}
		flawless = true
	case 6:
		spec.Inputs = []api.InputSpec{{Path: "in", Digest: s.upload()}}
		spec.Command = words("cat in ; sleep %dms", s.r.IntN(10_000))
		flawless = true
	default:
		spec.Command = words("sleep %dms", s.r.IntN(90_000))
		flawless = true
	}
	priority := s.r.IntN(100)
	spec.Priority = &priority
	spec.Defaults()
	f := &state.JobSubmitted{Key: key, UID: muster.JobUID(fmt.Sprintf("u%sx%d", key.Name, s.c.Log.Latest().Index())), Spec: spec, Replace: s.r.IntN(6) == 0}
	if _, _, err := s.c.Log.Propose(context.Background(), f); err == nil {
		s.flawless[key], s.stopped[key] = flawless, false
	}
}

// upload brings an input, as a user does before the job that needs it.
func (s *Story) upload() string {
	data := bytes.Repeat([]byte{byte('a' + s.r.IntN(26))}, 1+s.r.IntN(5000))
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	if _, err := s.c.Blobs.Put(context.Background(), blob.UploadKey(digest), bytes.NewReader(data)); err != nil {
		s.c.fail(err)
	}
	return digest
}

func (s *Story) stop() {
	var keys []muster.JobKey
	s.c.Log.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool { keys = append(keys, j.Key); return true })
	if len(keys) == 0 {
		return
	}
	key := keys[s.r.IntN(len(keys))]
	if _, _, err := s.c.Log.Propose(context.Background(), &state.JobStopped{Key: key}); err != nil {
		s.c.fail(err)
	}
	s.stopped[key] = true
}

// end waits until everything is over, and looks whether it ended well.
func (s *Story) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	through := func(snap *state.Snapshot) bool {
		if s.c.Err() != nil {
			return true
		}
		over := snap.LiveNodeCount() == 0
		snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
			over = over && j.Stage == muster.JobEnded
			return over
		})
		return over
	}
	ok := s.c.Log.Until(ctx, through)
	if err := s.c.Err(); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("not through %s after the last fault:\n%s", patience, s.dump())
	}
	if left := s.c.Cloud.Instances(); len(left) > 0 {
		return fmt.Errorf("%d instances are left in the cloud, first %s of node %s", len(left), left[0].ID, left[0].Tags.Node)
	}
	var err error
	s.c.Log.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
		switch {
		case s.flawless[j.Key] && !s.stopped[j.Key] && j.Result != muster.JobSucceeded:
			err = fmt.Errorf("job %s should have succeeded and %s: %s", j.Key, j.Result, j.Reason)
		case j.Result != muster.JobSucceeded && j.Reason == "":
			err = fmt.Errorf("job %s %s without a reason", j.Key, j.Result)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := s.outputs(); err != nil {
		return err
	}
	return s.forgotten()
}

// outputs looks whether all that is said to be stored is, and nothing is expected any more.
func (s *Story) outputs() error {
	time.Sleep(time.Nanosecond) // the reaper is not in the middle of it then
	var err error
	s.c.Log.Latest().Allocs("", func(a *state.Alloc) bool {
		whole := func(name string, st state.Stream) bool {
			got := len(s.c.Blobs.Whole(blob.StreamPrefix(a.Run.Key.Namespace, a.UID, a.ID, name)))
			return st.Inline != nil && got == 0 || int64(got) == st.Size-st.Start
		}
		switch {
		case a.Live():
			err = fmt.Errorf("allocation %s of an ended job is %s", a.ID, a.Status)
		case a.Output.Stage == state.OutputOpen:
			err = fmt.Errorf("output of %s is still to come, from node %s", a.ID, a.Node)
		case a.Output.Stage == state.OutputComplete && !(whole("stdout", a.Output.Stdout) && whole("stderr", a.Output.Stderr)):
			err = fmt.Errorf("output of %s is not as the state has it: %+v", a.ID, a.Output)
		case a.Output.Stage == state.OutputComplete && a.Outcome == muster.OutcomeSucceeded && len(a.Run.Spec.Outputs) > 0 && len(a.Output.Files) != 2:
			err = fmt.Errorf("of the declared outputs of %s %d are stored", a.ID, len(a.Output.Files))
		}
		return err == nil
	})
	return err
}

// forgotten lets retention pass and looks whether anything is left.
func (s *Story) forgotten() error {
	if err := s.c.Reap(); err != nil {
		return err
	}
	snap := s.c.Log.Latest()
	left := snap.EndedJobCount()
	snap.Allocs("", func(*state.Alloc) bool { left++; return true })
	snap.Nodes("", func(*state.Node) bool { left++; return true })
	if left > 0 {
		return fmt.Errorf("%d jobs, allocations and nodes are left after their retention:\n%s", left, s.dump())
	}
	blobs, err := s.c.Blobs.List(context.Background(), "")
	if err != nil {
		return err
	}
	if len(blobs) > 0 {
		return fmt.Errorf("%d blobs are left after the retention, first %s", len(blobs), blobs[0].Key)
	}
	return s.c.Err()
}

func (s *Story) dump() string {
	var b strings.Builder
	snap := s.c.Log.Latest()
	snap.LiveNodes(func(n *state.Node) bool {
		fmt.Fprintf(&b, "node %s %s (%s) %s (%s) instance %q live %d\n", n.ID, n.Stage, n.StageReason, n.Health, n.HealthReason, n.Instance, n.LiveAllocs)
		return true
	})
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if j.Stage != muster.JobEnded {
			fmt.Fprintf(&b, "job %s %s: %d waiting, %d placed, parked %q\n", j.Key, j.Stage, j.Waiting(), j.Placed, j.Parked)
		}
		return true
	})
	snap.LiveAllocs(func(a *state.Alloc) bool {
		fmt.Fprintf(&b, "allocation %s on %s: desired %s, %s\n", a.ID, a.Node, a.Desired, a.Status)
		return true
	})
	return b.String()
}
