package fleet

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/mend"
)

// A notice is withdrawn by the source that gave it, and a poll of the provider without notices does not
// withdraw an agent's.
func TestSourcesOfNotices(t *testing.T) {
	const id, instance, now = muster.NodeID("n1"), muster.InstanceID("i1"), muster.Time(1000)
	f := &Fleet{atRisk: map[muster.NodeID]muster.Time{}, fromAgent: map[muster.NodeID]bool{},
		memory: mend.Memory{Notices: map[muster.NodeID]mend.Notice{}}}
	poll := func(list ...cloud.Notice) {
		f.takeNotices(map[muster.InstanceID]muster.NodeID{instance: id}, list, now)
	}
	expect := func(what string, at muster.Time) {
		t.Helper()
		if got := f.memory.Notices[id].At; got != at {
			t.Errorf("%s: the notice is for %d, want %d", what, got, at)
		}
	}

	if heard, fresh := f.takeAgentNotice(id, cloud.Notice{Kind: cloud.NoticeTaken, At: 5000}, now); !heard || !fresh {
		t.Errorf("the first: %v %v", heard, fresh)
	}
	poll()
	expect("the provider has none", 5000)
	poll(cloud.Notice{Instance: instance, At: 7000})
	expect("the provider says another time", 5000)
	if heard, fresh := f.takeAgentNotice(id, cloud.Notice{Kind: cloud.NoticeMaintenance, At: 6000}, now); heard || !fresh {
		t.Errorf("another time: %v %v", heard, fresh)
	}
	if !f.memory.Notices[id].Maintenance {
		t.Error("it is not maintenance")
	}
	f.takeAgentNotice(id, cloud.Notice{}, now)
	expect("withdrawn", 0)

	f.takeAgentNotice(id, cloud.Notice{Kind: "another", At: 5000}, now)
	expect("of an unknown kind", 0)
	for i, want := range []bool{true, false} {
		if heard, fresh := f.takeAgentNotice(id, cloud.Notice{Kind: cloud.NoticeAtRisk, At: 900}, now); heard != want || fresh {
			t.Errorf("at risk, time %d: %v %v", i, heard, fresh)
		}
	}
	expect("at risk", 0)

	poll(cloud.Notice{Instance: instance, At: 8000})
	f.takeAgentNotice(id, cloud.Notice{}, now)
	expect("the agent has none", 8000)
	poll()
	expect("withdrawn by the provider", 0)
}
