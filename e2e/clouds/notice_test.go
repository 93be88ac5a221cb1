package clouds

import (
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/ec2/ec2test"
)

// notices are what the metadata services of machines announce, by instance.
type notices struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (n *notices) announce(id string, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[id] = at
}

func (n *notices) of(id string) (time.Time, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, noticed := n.at[id]
	return at, noticed
}

// Only the machine's own metadata service announces the interruption; EC2's API says nothing. So the
// agent must find it. The job runs again on another machine and ends once, and the server destroys the
// first machine, which the cloud never takes here.
func TestNoticeOfTheAgent(t *testing.T) {
	need(t)
	t.Parallel()
	said := &notices{at: map[string]time.Time{}}
	m := machines(t, said.of)
	s, err := ec2test.New(ec2test.Config{Machines: m})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	c := ec2Stand(t, s, m.Running, api.URL)
	w := serve(t, c, "1s")
	const job = "moved"
	if err := w.submit(job, 1, stays, "--constraint", "market="+string(muster.Spot)); err != nil {
		t.Fatal(err)
	}
	w.Until("the job runs", func() bool { return len(w.running(job)) == 1 })
	was := w.running(job)
	first := was[0]
	// EC2 gives two minutes; the server keeps some of it for output.
	said.announce(first.Instance, time.Now().Add(30*time.Second))
	w.Until("the node drains for the notice", func() bool {
		n, err := w.Client.Node(t.Context(), muster.NodeID(first.ID))
		return err == nil && n.Stage != string(muster.NodeServing) && strings.Contains(n.Reason, "notice")
	})
	if at, noticed := s.Notice(first.Instance); noticed {
		t.Errorf("the API announces it too, for %s: nothing shows that the agent found it", at)
	}
	w.elsewhere(job, was)
	var moved []string
	for _, a := range w.allocs(job) {
		moved = append(moved, a.Node+" "+a.Outcome)
	}
	if len(moved) != 2 || !strings.HasPrefix(moved[0], first.ID+" ") && !strings.HasPrefix(moved[1], first.ID+" ") {
		t.Errorf("attempts are %q, want one on %s and one elsewhere", moved, first.ID)
	}
	w.Until("the first machine is destroyed", func() bool {
		n, err := w.Client.Node(t.Context(), muster.NodeID(first.ID))
		return err == nil && n.Stage == string(muster.NodeGone)
	})
	w.empty()
}
