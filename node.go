package muster

// NodeID names a node; made with the intent to launch it.
type NodeID string

// Token is the secret-free name of one intent to create an instance. It is put
// on the instance as a tag, so that after a crash it is found again.
type Token string

// InstanceID is the provider's name of the machine behind a node.
type InstanceID string

// AttributeArch is the attribute with the architecture of a node's machine as Go calls it: amd64, arm64.
const AttributeArch = "arch"

// ImageNeeds is the condition on a node's attributes of an image that is for these architectures; false:
// they are not known, and it has none.
func ImageNeeds(architectures []string) (c Constraint, known bool) {
	switch len(architectures) {
	case 0:
		return c, false
	case 1:
		return Constraint{Attribute: AttributeArch, Op: OpEqual, Value: architectures[0], from: "its image"}, true
	}
	return Constraint{Attribute: AttributeArch, Op: OpIn, Values: architectures, from: "its image"}, true
}

// AttributeContainers is the attribute of nodes that run containers: with what, as "crun 1.8.1".
const AttributeContainers = "containers"

// NodeStage is where a node is in its life. The fleet turns this dial.
type NodeStage string

const (
	// NodeLaunching: the intent is in the log; the provider may or may not have made
	// an instance. Set before the provider is asked. Next is booting, or gone when the provider refused.
	// If nothing happens within the launch deadline the token is listed: adopted or given up.
	NodeLaunching NodeStage = "launching"
	// NodeBooting: the instance exists; its agent has not answered yet. Next is
	// serving when it does, terminating after the boot time-out.
	NodeBooting NodeStage = "booting"
	// NodeAdopted: an instance of ours that no launch of this state remembers. Probed
	// like a booting one; next is serving, draining or terminating.
	NodeAdopted NodeStage = "adopted"
	// NodeServing: its agent has answered. May get work if health and intent agree.
	NodeServing NodeStage = "serving"
	// NodeDraining: gets no new work; next is terminating when its last allocation has ended. One that drains
	// because the configuration had no place for it serves again if it has one again by then.
	NodeDraining NodeStage = "draining"
	// NodeStopped: it has no work, and the provider has switched its machine off or will be asked to, again and again
	// until it says yes. It keeps its disk. Next is starting when it is wanted, or terminating after the pool's time.
	NodeStopped NodeStage = "stopped"
	// NodeStarting: the provider will be asked to switch the machine on until it says yes. Next is booting; stopped
	// when it has no capacity; terminating after the boot time-out.
	NodeStarting NodeStage = "starting"
	// NodeTerminating: the provider has been or will be asked to destroy the instance,
	// again and again until a list confirms it. Next is gone.
	NodeTerminating NodeStage = "terminating"
	// NodeGone: the instance does not exist. Final; kept for a while for history.
	NodeGone NodeStage = "gone"
)

// NodeMoves is the transition table of the stage.
func NodeMoves() []Move[NodeStage] {
	return []Move[NodeStage]{
		{"", NodeLaunching, "intent to launch"},
		{"", NodeAdopted, "found in the cloud with our tags"},
		{NodeLaunching, NodeBooting, "provider made the instance"},
		{NodeLaunching, NodeGone, "provider refused, or the token is in no list"},
		{NodeLaunching, NodeTerminating, "given up before it was there"},
		{NodeBooting, NodeServing, "agent answered"},
		{NodeBooting, NodeTerminating, "boot time-out, or not wanted any more"},
		{NodeBooting, NodeGone, "a complete list no longer has it"},
		{NodeAdopted, NodeServing, "agent answered"},
		{NodeAdopted, NodeTerminating, "not wanted"},
		{NodeAdopted, NodeGone, "a complete list no longer has it"},
		{NodeServing, NodeDraining, "idle, drained, broken or surplus"},
		{NodeServing, NodeTerminating, "destroyed by an operator, or idle"},
		{NodeServing, NodeGone, "a complete list no longer has it"},
		{NodeDraining, NodeServing, "it is configured again"},
		{NodeDraining, NodeTerminating, "its last allocation ended"},
		{NodeDraining, NodeGone, "a complete list no longer has it"},
		{NodeServing, NodeStopped, "idle, and its pool stops idle nodes"},
		{NodeStopped, NodeStarting, "wanted again"},
		{NodeStopped, NodeTerminating, "stopped for long, surplus or not wanted"},
		{NodeStopped, NodeGone, "a complete list no longer has it"},
		{NodeStarting, NodeBooting, "provider switched it on"},
		{NodeStarting, NodeStopped, "provider has no capacity to switch it on"},
		{NodeStarting, NodeTerminating, "not switched on in time, or not wanted any more"},
		{NodeStarting, NodeGone, "a complete list no longer has it"},
		{NodeTerminating, NodeGone, "destroy confirmed"},
	}
}

// To moves a node's stage along NodeMoves.
func (s NodeStage) To(noun string, next NodeStage) (NodeStage, error) {
	return to(noun, NodeMoves(), s, next)
}

// NodeHealth is what is believed of a node from its signals. Link and apply turn this dial.
type NodeHealth string

const (
	// NodeGood: contact, and it has proved to be ready. Set by link when a probe has passed, or contact is back within the
	// grace. It stays so until somebody finds otherwise: nothing asks a good node again and again.
	NodeGood NodeHealth = "good"
	// NodeUnready: it has to prove that it is ready, or says that it is not. Every node begins so. Set by link, and by apply
	// after a failure of the node's own. Link probes it, with the back-off that the probe asks for; next is good. If no
	// probe ever passes it stays, with the reason, for an operator; before its first service the boot time-out ends it.
	NodeUnready NodeHealth = "unready"
	// NodeLost: contact is gone. Set by link, by a timer and not by whether a call returned. Back within the pool's
	// grace: good at once. If nothing comes back until then the fleet destroys it and its work is
	// replaced, by the cases of its pool; one that is held stays, and is probed when it comes back.
	NodeLost NodeHealth = "lost"
	// NodeFlaky: too many node failures making in a window. Set by apply, which counts them. It is sidelined until
	// its time is over; link then makes it unready, with a clean slate. The third spell in a day drains it.
	NodeFlaky NodeHealth = "flaky"
	// NodeBroken: the node says so, by its agent's checks or an operator's file on it. Set by link. Final: the fleet drains and
	// destroys it, unless it is held.
	NodeBroken NodeHealth = "broken"
)

// NodeHealthMoves is the transition table of the health dial.
func NodeHealthMoves() []Move[NodeHealth] {
	return []Move[NodeHealth]{
		{"", NodeUnready, "intent to launch, or adopted"},
		{NodeUnready, NodeGood, "a probe has passed"},
		{NodeUnready, NodeLost, "contact gone"},
		{NodeGood, NodeUnready, "it says so, or is to be probed after a failure of its own"},
		{NodeGood, NodeLost, "contact gone"},
		{NodeGood, NodeFlaky, "too many node failures"},
		{NodeUnready, NodeFlaky, "too many node failures"},
		{NodeGood, NodeBroken, "the node says so"},
		{NodeUnready, NodeBroken, "the node says so"},
		{NodeFlaky, NodeBroken, "the node says so"},
		{NodeFlaky, NodeUnready, "sideline time over, to be probed"},
		{NodeFlaky, NodeLost, "contact gone"},
		{NodeLost, NodeGood, "contact back within the grace"},
		{NodeLost, NodeUnready, "contact back after the grace, to be probed"},
		{NodeLost, NodeFlaky, "contact back, and its sideline time is not over"},
		{NodeLost, NodeBroken, "contact back, and the node says so"},
	}
}

// To moves a node's health along NodeHealthMoves.
func (h NodeHealth) To(noun string, next NodeHealth) (NodeHealth, error) {
	return to(noun, NodeHealthMoves(), h, next)
}

// NodeIntent is what the operator wants of a node. It survives restarts.
type NodeIntent string

const (
	// NodeRun: use it. The default, and what an operator or the end of a hold turns it back to.
	NodeRun NodeIntent = "run"
	// NodeHold: leave it alone: no new work, never destroyed. Beats everything automatic. An operator turns it so, for a
	// time or until it is turned back; link does for an adopted node that refuses to obey.
	NodeHold NodeIntent = "hold"
	// NodeDrain: no new work, destroyed when empty. With a deadline, what still runs then is stopped and runs
	// elsewhere; without one it may take as long as its longest work.
	NodeDrain NodeIntent = "drain"
)

// NodeIntentMoves is the transition table of the intent dial: an operator may set any.
func NodeIntentMoves() []Move[NodeIntent] {
	var moves []Move[NodeIntent]
	all := []NodeIntent{NodeRun, NodeHold, NodeDrain}
	moves = append(moves, Move[NodeIntent]{"", NodeRun, "intent to launch, or adopted"})
	for _, from := range all {
		for _, next := range all {
			if from != next {
				moves = append(moves, Move[NodeIntent]{from, next, "operator"})
			}
		}
	}
	return moves
}

// To moves a node's intent along NodeIntentMoves.
func (i NodeIntent) To(noun string, next NodeIntent) (NodeIntent, error) {
	return to(noun, NodeIntentMoves(), i, next)
}

// Schedulable is the one function of the three dials: may new work go there?
func Schedulable(s NodeStage, h NodeHealth, i NodeIntent) bool {
	return s == NodeServing && h == NodeGood && i == NodeRun
}

// Live reports whether an instance may stand behind the node.
func (s NodeStage) Live() bool { return s != NodeGone && s != "" }
