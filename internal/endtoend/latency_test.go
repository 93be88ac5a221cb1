package endtoend

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// BenchmarkSubmitToStarted is from the first byte of a submission to the start
// of its command on an idle node that is there, one after the other, and to its end.
// Started and ended are by the node's own record, on the same clock; told is when a client that follows
// the events knows of the end. Target: started p50 below 15 ms.
func BenchmarkSubmitToStarted(b *testing.B) {
	const samples = 250
	h := newHost(b)
	h.dev()
	h.run(small(1, "true"))
	events := h.watch()
	var answered, started, ended, told []time.Duration
	b.ResetTimer()
	for range b.N {
		for range samples {
			spec := small(1, "true")
			began := time.Now()
			job := h.submit(spec)
			answered = append(answered, time.Since(began))
			ev := h.next(events, "alloc.ended", job.Name)
			told = append(told, time.Since(began))
			started = append(started, ev.AllocNow.Started.Sub(began))
			ended = append(ended, ev.AllocNow.Ended.Sub(began))
			// Idle again: what follows the end is not this job's wait.
			<-time.After(10 * time.Millisecond)
		}
	}
	spread(b, "answered", answered)
	spread(b, "started", started)
	spread(b, "ended", ended)
	spread(b, "told", told)
}

// BenchmarkRoomFreed is, on one node that is full of short members with more
// waiting, from an end to the start that its room makes possible. By the events:
// from alloc.ended to the next alloc.placed in the log. By the node: from the end that init saw to the next
// start. By the members: from the last word of one to the first word of the next, so that the end of a shell and
// the start of another are in it. Target: below 20 ms.
func BenchmarkRoomFreed(b *testing.B) {
	const members = 240
	for _, slots := range []int{1, 4} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			h := newHost(b)
			h.serve(fixed(1, float64(slots)))
			h.run(api.JobSpec{Count: slots, Template: api.Template{Command: []string{"true"}}})
			var log, node, words []time.Duration
			b.ResetTimer()
			for range b.N {
				events := h.watch()
				// Not in step, so that each end frees room by itself.
				job := h.submit(api.JobSpec{Count: members, Template: api.Template{Command: []string{"sh", "-c",
					"date +%s%N; sleep 0.0$((20 + MUSTER_INDEX * 7 % 13)); date +%s%N"}}})
				h.finish()
				h.succeeded(job)
				log = append(log, h.freedByLog(events, job, members, slots)...)
				a, c := h.freedByNode(job, slots)
				node, words = append(node, a...), append(words, c...)
			}
			spread(b, "log", log)
			spread(b, "node", node)
			spread(b, "members", words)
		})
	}
}

// freedByLog reads the events of a job that has ended.
func (h *host) freedByLog(t *told, job *api.JobSubmitted, members, slots int) []time.Duration {
	h.tb.Helper()
	var placed, ended []time.Time
	for len(ended) < members {
		switch ev := h.next(t, "", job.Name); ev.Type {
		case "alloc.placed":
			placed = append(placed, ev.Time)
		case "alloc.ended":
			ended = append(ended, ev.Time)
		}
	}
	return gaps(ended, placed, slots)
}

// freedByNode reads what the node and the members themselves say.
func (h *host) freedByNode(job *api.JobSubmitted, slots int) (node, words []time.Duration) {
	h.tb.Helper()
	key := muster.JobKey{Namespace: muster.Namespace(job.Namespace), Name: job.Name}
	var started, ended, first, last []time.Time
	for a, err := range h.cl.AllJobAllocs(h.tb.Context(), key, client.AllocQuery{}) {
		if err != nil {
			h.tb.Fatal(err)
		}
		started, ended = append(started, *a.Started), append(ended, *a.Ended)
		out, err := h.cl.Output(h.tb.Context(), client.OutputQuery{Alloc: muster.AllocID(a.ID), Stream: client.Stdout})
		if err != nil {
			h.tb.Fatal(err)
		}
		text, err := io.ReadAll(out)
		_ = out.Close()
		f := strings.Fields(string(text))
		if err != nil || len(f) != 2 {
			h.tb.Fatalf("output of %s: %q %v", a.ID, text, err)
		}
		first, last = append(first, nanos(f[0])), append(last, nanos(f[1]))
	}
	return gaps(ended, started, slots), gaps(last, first, slots)
}

func nanos(s string) time.Time {
	n, _ := strconv.ParseInt(s, 10, 64)
	return time.Unix(0, n)
}

// gaps pairs the k-th end with the start that its room went to: the one after as many as were there at first.
func gaps(ends, starts []time.Time, slots int) []time.Duration {
	slices.SortFunc(ends, time.Time.Compare)
	slices.SortFunc(starts, time.Time.Compare)
	var all []time.Duration
	for k := slots; k < len(starts); k++ {
		all = append(all, starts[k].Sub(ends[k-slots]))
	}
	return all
}

// BenchmarkEightShortJobs is eight jobs of 0.1 s on two instances with default
// settings, from a fresh server that has no instance yet: launch, boot (delay 0), run. Target: 2 s in all.
func BenchmarkEightShortJobs(b *testing.B) {
	const tries = 5
	var all []time.Duration
	for range b.N {
		for range tries {
			h := newHost(b)
			c := fixed(2, 1)
			c.Pools[0].Min, c.Pools[0].IdleTimeout = 0, 0
			h.serve(c)
			began := time.Now()
			for range 8 {
				h.submit(api.JobSpec{Template: api.Template{Command: []string{"sleep", "0.1"}}})
			}
			h.finish()
			all = append(all, time.Since(began))
			h.clean()
		}
	}
	spread(b, "all", all)
}
