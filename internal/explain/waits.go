package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// Waits says in one line why the waiting members of a job wait, what the fleet does about it, and
// why members stay running although their command has ended; "" if none of that applies. A single
// job or environment is shown with it. Job says the same in full.
func (e *Explainer) Waits(j *state.Job) string {
	why := e.unplaced(j)
	if stored := e.unstored(j); stored != "" && why != "" {
		return why + "; " + stored
	} else if stored != "" {
		return stored
	}
	return why
}

// nodesPerList bounds how many nodes an explained list looks at. It is about 60 ms of work.
const nodesPerList = 200_000

// WaitsInList fills in Waits of the jobs of a list that wait. shown are the rows as they will be
// shown, in the same order. A list may have a thousand of them, and each is compared to every node:
// only the first ones are explained.
func (e *Explainer) WaitsInList(rows []*state.Job, shown []api.Job) {
	left := min(max(nodesPerList/(e.Snapshot.LiveNodeCount()+1), 10), 200)
	for i, j := range rows {
		if left > 0 && shown[i].Status == "waiting" {
			shown[i].Waits = e.Waits(j)
			left--
		}
	}
}

// unstored says that the command of some members has ended and that their declared outputs cannot
// be stored; "" if there are none.
func (e *Explainer) unstored(j *state.Job) string {
	n, why := e.Loops.Unstored(j.UID)
	switch {
	case n == 0:
		return ""
	case j.Count() == 1:
		return fmt.Sprintf("its command has ended, and its declared outputs are not stored yet: %v", why)
	}
	return fmt.Sprintf("the command of %s has ended, and its declared outputs are not stored yet: %v", muster.Counted(n, "member"), why)
}

// unplaced says why the waiting members of a job wait. It returns the first reason that holds for
// all of them, in the same order as Job.
func (e *Explainer) unplaced(j *state.Job) string {
	if j.Waiting() == 0 {
		return ""
	}
	if j.Parked != "" {
		return j.Parked
	}
	if why := e.backoff(j); why != "" {
		return why
	}
	if why := e.Loops.Paused(); why != "" {
		return why
	}
	// What keeps the next member from the existing nodes, and what the fleet does about it.
	why := []string{place.Why(j, e.Snapshot, e.Now).String()}
	if coming := launching(e.Snapshot); coming > 0 {
		why = append(why, onTheirWay(coming))
	}
	if d, _ := e.Loops.Fleet(); d != nil {
		for _, w := range d.Waits {
			if w.Shape == j.Run.Shape && w.Priority == j.Priority() {
				why = append(why, "no more nodes are launched for it: "+w.Reason)
				break
			}
		}
	}
	return strings.Join(why, "; ")
}

// backoff says when the next attempt is, if all waiting members have failed before and none is due
// yet; else "".
func (e *Explainer) backoff(j *state.Job) string {
	if j.Untried() > 0 {
		return ""
	}
	next, last := muster.Time(0), ""
	e.Snapshot.Retries(j.UID).Due(1<<62, func(m *state.Member) bool { next, last = m.RetryAt, m.Reason; return false })
	if next <= e.Now {
		return ""
	}
	in := fmt.Sprintf("the next attempt is in %s", next.Sub(e.Now).Round(time.Second))
	if last != "" {
		in += "; the last one ended: " + last
	}
	return in
}

// launching counts the nodes that are launching or booting.
func launching(snap *state.Snapshot) int {
	n := 0
	snap.LiveNodes(func(node *state.Node) bool {
		if node.Stage == muster.NodeLaunching || node.Stage == muster.NodeBooting {
			n++
		}
		return true
	})
	return n
}

// onTheirWay says how many nodes are launching or booting. They may be for other jobs.
func onTheirWay(nodes int) string {
	if nodes == 1 {
		return "1 node is on its way"
	}
	return fmt.Sprintf("%d nodes are on their way", nodes)
}

// Trouble says in words which call for a node its provider keeps failing. times counts the failures
// since since. The moment is absolute, so that the sentence stays true however long a client keeps
// it.
func Trouble(call string, times int, since muster.Time, err error) string {
	count := "once"
	if times > 1 {
		count = fmt.Sprintf("%d times", times)
	}
	return fmt.Sprintf("%s failed %s since %s: %v", call, count, since.Std().UTC().Format(time.RFC3339), err)
}

// Paused is the reason why nothing is placed while an operator has paused the scheduler.
const Paused = "the scheduler is paused: an operator has set scheduler.paused in the server's configuration"
