package sim

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
)

// patience is how long a simulated cluster may take to be through with
// everything after the last fault.
const patience = 3 * time.Hour

// end waits until everything is over, and looks whether it ended well.
func (p *Play) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ok := p.c.Log.Until(ctx, func(snap *state.Snapshot) bool { return p.c.Err() != nil || over(snap) })
	if err := p.c.Err(); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("not through %s after the last fault:\n%s", patience, p.dump())
	}
	if left := p.c.Cloud.Instances(); len(left) > 0 {
		// What a call did that its caller had left, and what is behind no node, the next sweeps find.
		time.Sleep(strangerFor)
		if left = p.c.Cloud.Instances(); len(left) > 0 {
			return fmt.Errorf("%d instances are left in the cloud, first %s of node %s", len(left), left[0].ID, left[0].Tags.Node)
		}
	}
	if err := p.c.configured(); err != nil {
		return err
	}
	if err := p.jobs(); err != nil {
		return err
	}
	for i := range p.s.Expect {
		if err := p.expect(&p.s.Expect[i]); err != nil {
			return err
		}
	}
	if err := p.outputs(); err != nil {
		return err
	}
	return p.forgotten()
}

// over: every job has ended and no node is left.
func over(snap *state.Snapshot) bool {
	all := snap.LiveNodeCount() == 0
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		all = all && j.Stage == muster.JobEnded
		return all
	})
	return all
}

// jobs: who must succeed has; everybody else has a reason.
func (p *Play) jobs() error {
	p.c.watch.mu.Lock()
	defer p.c.watch.mu.Unlock()
	var err error
	p.c.Log.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
		switch {
		case p.must[j.Key] && !p.stopped[j.Key] && !p.c.watch.excused[j.UID] && j.Result != muster.JobSucceeded:
			err = fmt.Errorf("job %s should have succeeded and %s: %s", j.Key, j.Result, j.Reason)
		case j.Result != muster.JobSucceeded && j.Reason == "":
			err = fmt.Errorf("job %s %s without a reason", j.Key, j.Result)
		}
		return err == nil
	})
	return err
}

// outputs looks whether all that is said to be stored is, and nothing is expected any more.
func (p *Play) outputs() error {
	time.Sleep(time.Nanosecond) // the reaper is not in the middle of it then
	var err error
	p.c.Log.Latest().Allocs("", func(a *state.Alloc) bool {
		whole := func(name string, st state.Stream) bool {
			got := len(p.c.Blobs.Whole(blob.StreamPrefix(a.Run.Key.Namespace, a.UID, a.ID, name)))
			return st.Inline != nil && got == 0 || int64(got) == st.Size-st.Start
		}
		declared := 0
		for _, o := range a.Run.Spec.Outputs {
			if !o.Optional {
				declared++
			}
		}
		switch {
		case a.Live():
			err = fmt.Errorf("allocation %s of an ended job is %s", a.ID, a.Status)
		case a.Output.Stage == state.OutputOpen:
			err = fmt.Errorf("output of %s is still to come, from node %s", a.ID, a.Node)
		case a.Output.Stage == state.OutputComplete && !(whole("stdout", a.Output.Stdout) && whole("stderr", a.Output.Stderr)):
			err = fmt.Errorf("output of %s is not as the state has it: %+v", a.ID, a.Output)
		case a.Output.Stage == state.OutputComplete && a.Outcome == muster.OutcomeSucceeded && len(a.Output.Files) < declared:
			err = fmt.Errorf("of the declared outputs of %s %d are stored", a.ID, len(a.Output.Files))
		}
		return err == nil
	})
	return err
}

// forgotten lets retention pass and looks whether anything is left.
func (p *Play) forgotten() error {
	if err := p.c.Reap(); err != nil {
		return err
	}
	snap := p.c.Log.Latest()
	left := snap.EndedJobCount()
	snap.Allocs("", func(*state.Alloc) bool { left++; return true })
	snap.Nodes("", func(*state.Node) bool { left++; return true })
	if left > 0 {
		return fmt.Errorf("%d jobs, allocations and nodes are left after their retention:\n%s", left, p.dump())
	}
	blobs, err := p.c.Blobs.List(context.Background(), "")
	if err != nil {
		return err
	}
	if len(blobs) > 0 {
		return fmt.Errorf("%d blobs are left after the retention, first %s", len(blobs), blobs[0].Key)
	}
	return p.c.Err()
}

// expect looks whether what a scenario expects is so.
func (p *Play) expect(a *Act) error {
	snap := p.c.Log.Latest()
	got, want := "", strings.Join(a.Words, " ")
	count := func(n int) string { return a.word(0) + " " + strconv.Itoa(n) }
	switch a.word(0) {
	case "nodes":
		got = count(snap.LiveNodeCount())
	case "instances":
		got = count(len(p.c.Cloud.Instances()))
	case "launched":
		n, most := 0, 0
		snap.Nodes("", func(*state.Node) bool { n++; return true })
		if most, _ = strconv.Atoi(a.word(1)); n > most {
			got = count(n)
		} else {
			got = want
		}
	case "claims", "executions":
		least, _ := strconv.Atoi(a.word(1))
		p.c.clients.mu.Lock()
		n := p.c.clients.claimed
		if a.word(0) == "executions" {
			n = p.c.clients.answered
		}
		p.c.clients.mu.Unlock()
		if got = want; n < least {
			got = count(n)
		}
	default:
		if strings.Contains(a.word(0), "/") {
			ids, err := p.nodes(a.word(0))
			if err != nil {
				return err
			}
			got = a.word(0) + " " + string(snap.Node(ids[0]).Stage)
			break
		}
		var err error
		if got, err = p.ofJob(snap, a, want); err != nil {
			return err
		}
	}
	if got != want {
		return fmt.Errorf("%s: expected %q, found %q\n%s", a, want, got, p.dump())
	}
	return nil
}

func (p *Play) ofJob(snap *state.Snapshot, a *Act, want string) (string, error) {
	j := snap.Job(jobKey(a.word(0)))
	if a.word(1) == "warm" || a.word(1) == "claimed" {
		key := jobKey(a.word(0))
		if j = snap.Job(muster.EnvironmentKey(key.Namespace, key.Name)); j != nil {
			least, _ := strconv.Atoi(a.word(2))
			return ofEnvironment(j, a, want, least), nil
		}
	}
	if j == nil {
		return "", fmt.Errorf("%s: there is no job %s", a, a.word(0))
	}
	switch a.word(1) {
	case "running":
		return fmt.Sprintf("%s running %d", a.word(0), j.Running), nil
	case "rollout":
		if j.Standing != nil {
			return fmt.Sprintf("%s rollout %s", a.word(0), j.Standing.Rollout), nil
		}
	case "at":
		return fmt.Sprintf("%s at %d", a.word(0), j.Version), nil
	case "attempts":
		most, _ := strconv.Atoi(a.word(2))
		n := 0
		snap.Members(j.UID, 0, func(m *state.Member) bool { n = max(n, m.Attempt); return m.UID == j.UID })
		if n <= most {
			return want, nil
		}
		return fmt.Sprintf("%s attempts %d", a.word(0), n), nil
	}
	got := fmt.Sprintf("%s %s", a.word(0), j.Result)
	if words := strings.Join(a.Words[min(2, len(a.Words)):], " "); words != "" {
		if strings.Contains(j.Reason, words) {
			return got + " " + words, nil
		}
		return got + " " + j.Reason, nil
	}
	return got, nil
}

func (p *Play) dump() string {
	var b strings.Builder
	snap := p.c.Log.Latest()
	snap.LiveNodes(func(n *state.Node) bool {
		fmt.Fprintf(&b, "node %s %s (%s) %s (%s) %s instance %q live %d\n", n.ID, n.Stage, n.StageReason, n.Health, n.HealthReason, n.Intent, n.Instance, n.LiveAllocs)
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
	for _, in := range p.c.Cloud.Instances() {
		fmt.Fprintf(&b, "instance %s of node %s\n", in.ID, in.Tags.Node)
	}
	return b.String()
}
