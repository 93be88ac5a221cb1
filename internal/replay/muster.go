package main

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// byMuster submits each task as a job and places it, one by one, each plan applied
// before the next. The time is that of following the feed and planning.
func byMuster(nodes []node, tasks []task) ([]machine, int, time.Duration, error) {
	s, err := state.New(1 << 12)
	if err != nil {
		return nil, 0, 0, err
	}
	index := uint64(0)
	apply := func(f state.Fact) error {
		b, err := s.Encode(f)
		if err != nil {
			return err
		}
		index++
		if err, bad := s.Apply(index, 1, int64(index)*1000, [][]byte{b})[0].(error); bad {
			return err
		}
		return nil
	}
	for _, n := range nodes {
		o := muster.Offering{Provider: "trace", Name: muster.OfferingName(n.model + "x" + fmt.Sprint(n.gpus)), Market: muster.OnDemand, Capacity: n.capacity}
		if n.gpus > 0 {
			o.Devices = []muster.Device{{Kind: "gpu", Model: n.model, Count: n.gpus, Shared: true}}
		}
		id := muster.NodeID(n.name)
		for _, f := range []state.Fact{
			&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "trace", Offering: o},
			&state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)},
			&state.NodeJoined{ID: id, Capacity: n.capacity},
		} {
			if err := apply(f); err != nil {
				return nil, 0, 0, err
			}
		}
	}
	view := place.NewView(s.Latest())
	placed, took := 0, time.Duration(0)
	for i := range tasks {
		t := &tasks[i]
		uid := muster.JobUID(fmt.Sprintf("u%d", i))
		if err := apply(&state.JobSubmitted{Key: muster.JobKey{Namespace: muster.DefaultNamespace, Name: t.name}, UID: uid, Spec: specOf(t)}); err != nil {
			return nil, 0, 0, err
		}
		began := time.Now()
		changes, last, err := s.Feed().After(view.Position(), 1<<12)
		if err != nil {
			return nil, 0, 0, err
		}
		view.Advance(changes, last)
		d := view.Plan(s.Latest(), []muster.JobUID{uid}, s.Latest().Meta().Time, place.Limits{Placements: 1, Looks: 1 << 30})
		took += time.Since(began)
		if len(d.Placements) == 0 {
			continue
		}
		placed++
		if err := apply(&state.PlanCommitted{Placements: d.Placements}); err != nil {
			return nil, 0, 0, err
		}
	}
	machines := machinesOf(nodes)
	for i := range machines {
		n := s.Latest().Node(muster.NodeID(machines[i].name))
		machines[i].free = n.Free()
		copy(machines[i].parts, n.Taken.Parts())
	}
	return machines, placed, took, s.Latest().Check()
}

func specOf(t *task) *api.JobSpec {
	s := &api.JobSpec{Name: t.name, Template: api.Template{Command: []string{"true"}}}
	s.Resources = api.ResourcesSpec{CPU: float64(t.ask.CPU) / 1000, Memory: api.Size(t.ask.Memory)}
	switch {
	case t.part > 0:
		s.Resources.Devices = []api.DeviceAskSpec{{Part: float64(t.part) / muster.WholeDevice, Models: t.models}}
	case t.gpus > 0:
		s.Resources.Devices = []api.DeviceAskSpec{{Count: t.gpus, Models: t.models}}
	}
	s.Defaults()
	return s
}
