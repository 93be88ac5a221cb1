package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// claimCall is what a client asked: a claim by its key, or something about a runner.
type claimCall struct {
	what string // claim, release, extend
	key  string // of a claim
	id   string // runner
}

// claimAnswer is what it was told: with said "?" it never heard.
type claimAnswer struct {
	said          string // ok, gone, ?
	runner, claim string
}

// history is what clients asked and were told, in an order that all of them agree on.
type history struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// call makes one call. What was never answered may have been done at any time after.
func (h *history) call(client int, in claimCall, do func() claimAnswer) claimAnswer {
	began := h.clock.Add(1)
	out := do()
	op := porcupine.Operation{ClientId: client, Input: in, Call: began, Output: out, Return: h.clock.Add(1)}
	if out.said == "?" {
		op.Return = 1 << 60
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	return out
}

// runnerLife is a runner as its clients may see it: free, held by one claim, given back.
type runnerLife struct {
	claim string // "": free
	ended bool
}

// oneRunner is what each runner does by itself: it goes to one claim, once, and to that again by the same key; it is
// of use until it is given back, and never after.
var oneRunner = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		return parted(ops, func(op porcupine.Operation) string {
			if in := op.Input.(claimCall); in.what != "claim" {
				return in.id
			}
			return op.Output.(claimAnswer).runner
		})
	},
	Init: func() any { return runnerLife{} },
	Step: func(s, input, output any) (bool, any) {
		now, in, out := s.(runnerLife), input.(claimCall), output.(claimAnswer)
		held := now.claim != "" && !now.ended
		switch {
		case in.what == "claim" && now.claim == "":
			return true, runnerLife{claim: out.claim}
		case in.what == "claim":
			return now.claim == out.claim, now
		case out.said == "?":
			return true, runnerLife{now.claim, now.ended || held && in.what == "release"}
		case out.said == "ok" && in.what == "release":
			// A repeated release succeeds: its client may have lost the first answer.
			return now.claim != "", runnerLife{now.claim, true}
		case out.said == "ok":
			return held, now
		}
		return !held, now
	},
}

// oneKey is what each key does: it has one claim, for ever. A claim whose answer never came says nothing of which one.
var oneKey = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		return parted(ops, func(op porcupine.Operation) string { return op.Input.(claimCall).key })
	},
	Init: func() any { return claimAnswer{} },
	Step: func(s, _, output any) (bool, any) {
		if output.(claimAnswer).said == "?" {
			return true, s
		}
		return s == claimAnswer{} || s == output, output
	},
}

// parted are the operations by a name; those without one are nobody's.
func parted(ops []porcupine.Operation, name func(porcupine.Operation) string) (all [][]porcupine.Operation) {
	by := map[string][]porcupine.Operation{}
	for _, op := range ops {
		if n := name(op); n != "" {
			by[n] = append(by[n], op)
		}
	}
	for _, list := range by {
		all = append(all, list)
	}
	return all
}

// toldLocked is how often each call had each answer.
func (h *history) toldLocked() map[string]int {
	told := map[string]int{}
	for _, op := range h.ops {
		told[op.Input.(claimCall).what+" "+op.Output.(claimAnswer).said]++
	}
	return told
}

// enough reports whether the history has calls of all kinds that tell something.
func (h *history) enough() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return showsMuch(h.toldLocked())
}

func showsMuch(told map[string]int) bool {
	return told["claim ok"] >= 6 && told["release ok"] >= 2 && told["extend ok"] >= 2 && told["release gone"]+told["extend gone"] > 0
}

// check fails the test unless there is an order of all calls in which each answer is right.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	told := h.toldLocked()
	t.Logf("%d calls: %v", len(h.ops), told)
	for name, m := range map[string]porcupine.Model{"runner": oneRunner, "key": oneKey} {
		if got := porcupine.CheckOperationsTimeout(m, h.ops, patience); got != porcupine.Ok {
			t.Errorf("as each %s tells it, the history of claims is %s", name, got)
			for _, op := range h.ops {
				t.Logf("%d: %d to %d: %+v: %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
		}
	}
	if !showsMuch(told) {
		t.Errorf("that shows little: %v", told)
	}
}

// claims makes claims, asks for them again, extends and gives back what it got, until ctx ends.
func (h *history) claims(ctx context.Context, host *host, me int) {
	ttl := api.Duration(time.Hour)
	// Each server listens at another address.
	once := func() *client.Client { return host.client().Patient(-1) }
	said := func(err error) claimAnswer {
		switch {
		case err == nil:
			return claimAnswer{said: "ok"}
		case client.IsGone(err):
			return claimAnswer{said: "gone"}
		}
		return claimAnswer{said: "?"}
	}
	claim := func(key string) claimAnswer {
		return h.call(me, claimCall{what: "claim", key: key}, func() claimAnswer {
			c, err := host.client().Claim(ctx, api.ClaimRequest{Environment: "e", Wait: api.Duration(patience), TTL: &ttl}, key)
			if err != nil {
				if ctx.Err() == nil {
					host.t.Errorf("claim: %v", err)
				}
				return claimAnswer{said: "?"}
			}
			return claimAnswer{"ok", c.Runner, c.ID + " " + c.Secret}
		})
	}
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("claim-%d-%d", me, n)
		got := claim(key)
		if got.said != "ok" {
			continue
		}
		again := got
		if n%3 == 0 {
			again = claim(key)
		}
		id := muster.AllocID(again.runner)
		if again.said != "ok" {
			id = muster.AllocID(got.runner)
		}
		extend := func() {
			h.call(me, claimCall{what: "extend", id: string(id)}, func() claimAnswer {
				_, err := once().Extend(ctx, id, api.ClaimExtension{TTL: &ttl})
				return said(err)
			})
		}
		release := func(by int) {
			h.call(by, claimCall{what: "release", id: string(id)}, func() claimAnswer { return said(once().Release(ctx, id)) })
		}
		extend()
		var both sync.WaitGroup
		if n%2 == 0 { // two at once: one of them is right
			both.Go(func() { release(me + 100) })
		}
		release(me)
		both.Wait()
		extend()
	}
}

// The check itself finds what must not be.
func TestClaimHistoryIsChecked(t *testing.T) {
	t.Parallel()
	op := func(call, ret int64, in claimCall, out claimAnswer) porcupine.Operation {
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: ret}
	}
	claim := func(call int64, key, runner, id string) porcupine.Operation {
		return op(call, call+1, claimCall{what: "claim", key: key}, claimAnswer{"ok", runner, id})
	}
	about := func(call, ret int64, what, said string) porcupine.Operation {
		return op(call, ret, claimCall{what: what, id: "r"}, claimAnswer{said: said})
	}
	for name, c := range map[string]struct {
		ops         []porcupine.Operation
		runner, key bool
	}{
		"claimed, extended, released":                         {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 4, "extend", "ok"), about(5, 6, "release", "ok"), about(7, 8, "extend", "gone")}, true, true},
		"given to two":                                        {[]porcupine.Operation{claim(1, "k", "r", "c"), claim(3, "l", "r", "d")}, false, true},
		"given to two, one after":                             {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 4, "release", "ok"), claim(5, "l", "r", "d")}, false, true},
		"one key, two claims":                                 {[]porcupine.Operation{claim(1, "k", "r", "c"), claim(3, "k", "s", "d")}, true, false},
		"asked again, without an answer":                      {[]porcupine.Operation{claim(1, "k", "r", "c"), op(3, 1<<60, claimCall{what: "claim", key: "k"}, claimAnswer{said: "?"})}, true, true},
		"one key, two claims, and one call without an answer": {[]porcupine.Operation{claim(1, "k", "r", "c"), op(3, 1<<60, claimCall{what: "claim", key: "k"}, claimAnswer{said: "?"}), claim(5, "k", "s", "d")}, true, false},
		"of use after it was released":                        {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 4, "release", "ok"), about(5, 6, "extend", "ok")}, false, true},
		"released twice":                                      {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 5, "release", "ok"), about(4, 6, "release", "ok")}, true, true},
		"gone, and nobody released it":                        {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 4, "extend", "gone")}, false, true},
		"released without an answer":                          {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 1<<60, "release", "?"), about(5, 6, "extend", "gone")}, true, true},
		"an answer that never came":                           {[]porcupine.Operation{claim(1, "k", "r", "c"), about(3, 1<<60, "release", "?"), about(5, 6, "extend", "ok")}, true, true},
	} {
		if got := porcupine.CheckOperations(oneRunner, c.ops); got != c.runner {
			t.Errorf("%s: right as its runner tells it: %v", name, got)
		}
		if got := porcupine.CheckOperations(oneKey, c.ops); got != c.key {
			t.Errorf("%s: right as its key tells it: %v", name, got)
		}
	}
}
