package poseidon

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// executionRequest is a command that is to be run.
type executionRequest struct {
	// Command is a line for the shell.
	Command             string            `json:"command"`
	PrivilegedExecution bool              `json:"privilegedExecution"`
	Environment         map[string]string `json:"environment"`
	// TimeLimit is in seconds; 0: none.
	TimeLimit int64 `json:"timeLimit"`
}

// byBash has the line run by bash if the image has it, as Poseidon does, and by sh if not.
const byBash = `[ -x /bin/bash ] && exec /bin/bash -c "$1"; exec /bin/sh -c "$1"`

// killGrace is the time between the request to end and the end by force.
const killGrace = 3 * time.Second

func (p *Poseidon) execute(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	var want executionRequest
	done, err := p.read(w, r, maxBody, &want)
	if err != nil {
		return err
	}
	done()
	limit, err := seconds("timeLimit", want.TimeLimit, api.MaxTimeout)
	if err != nil {
		return err
	}
	e, err := inside.ParseExecRequest(&api.ExecRequest{
		ID: newID(), Command: []string{"/bin/sh", "-c", byBash, "sh", want.Command}, Env: want.Environment, TTY: true, Stdin: true,
		Timeout: limit, KillGrace: api.Duration(killGrace),
	})
	if err != nil {
		return err
	}
	e.OwnStderr, e.HideEnv, e.Account = true, "MUSTER_", true
	p.pending.add(&waiting{runner: c.Runner, exec: e, privileged: want.PrivilegedExecution, since: time.Now()})
	tell(w, http.StatusOK, map[string]string{
		"websocketUrl": scheme(r) + "://" + r.Host + prefix + "runners/" + string(c.Runner) + "/websocket?executionID=" + e.ID,
	})
	return nil
}

// scheme is that of a WebSocket which comes as this request came.
func scheme(r *http.Request) string {
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "wss"
	}
	return "ws"
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// waiting is an execution whose client has not connected yet.
type waiting struct {
	runner     muster.AllocID
	exec       *initwire.Exec
	privileged bool
	since      time.Time
	taken      bool
}

func (e *waiting) size() int {
	n := 256
	for _, s := range e.exec.Command {
		n += len(s)
	}
	for _, s := range e.exec.Env {
		n += len(s)
	}
	return n
}

const (
	// waitTime is how long an execution waits for its client.
	waitTime = 5 * time.Minute
	// maxWaiting bounds the bytes of all that wait; the oldest go first.
	maxWaiting = 64 << 20
)

// pending are executions that wait for their clients. They live for moments, and in no log: a
// client whose server was started again meanwhile is told that there is none, and asks again.
type pending struct {
	mu   sync.Mutex
	byID map[string]*waiting
	// order of arrival; those that were taken are still in it.
	order []*waiting
	bytes int
}

func (q *pending) add(e *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byID == nil {
		q.byID = map[string]*waiting{}
	}
	q.byID[e.exec.ID] = e
	q.order = append(q.order, e)
	q.bytes += e.size()
	for len(q.order) > 0 {
		first := q.order[0]
		if !first.taken && e.since.Sub(first.since) < waitTime && q.bytes <= maxWaiting {
			return
		}
		q.order = q.order[1:]
		if !first.taken {
			q.dropLocked(first)
		}
	}
}

// dropLocked leaves of an execution in the order nothing but its place.
func (q *pending) dropLocked(e *waiting) {
	delete(q.byID, e.exec.ID)
	q.bytes -= e.size()
	e.taken, e.exec = true, nil
}

// has reports whether an execution of a runner waits for its client.
func (q *pending) has(runner muster.AllocID, id string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.byID[id]
	return e != nil && e.runner == runner && now.Sub(e.since) <= waitTime
}

// take is the execution of a runner, once; nil if there is none.
func (q *pending) take(runner muster.AllocID, id string, now time.Time) *waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.byID[id]
	if e == nil || e.runner != runner {
		return nil
	}
	out := *e
	q.dropLocked(e)
	if now.Sub(out.since) > waitTime {
		return nil
	}
	return &out
}
