package muster

// NodeID names a node; made with the intent to launch it.
type NodeID string

// Token is the secret-free name of one intent to create an instance. It is put
// on the instance as a tag, so that after a crash it is found again.
type Token string

// InstanceID is the provider's name of the machine behind a node.
type InstanceID string

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
	// NodeDraining: gets no new work; next is terminating when its last allocation has ended.
	NodeDraining NodeStage = "draining"
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
		{NodeDraining, NodeTerminating, "its last allocation ended"},
		{NodeDraining, NodeGone, "a complete list no longer has it"},
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
	// NodeGood: contact, and its own checks pass.
	NodeGood NodeHealth = "good"
	// NodeUnready: the readiness probe has not passed yet. Every node begins so. Next is good.
	NodeUnready NodeHealth = "unready"
	// NodeLost: contact is gone. Back within the grace: good. After it, by the cases of its pool.
	NodeLost NodeHealth = "lost"
	// NodeFlaky: too many failures of its own making in a window. Sidelined for a time, then unready.
	NodeFlaky NodeHealth = "flaky"
	// NodeBroken: the node says so. Drained and never given work again.
	NodeBroken NodeHealth = "broken"
)

// NodeHealthMoves is the transition table of the health dial.
func NodeHealthMoves() []Move[NodeHealth] {
	return []Move[NodeHealth]{
		{"", NodeUnready, "intent to launch, or adopted"},
		{NodeUnready, NodeGood, "agent answers and its checks pass"},
		{NodeUnready, NodeLost, "contact gone"},
		{NodeGood, NodeUnready, "a check does not pass"},
		{NodeGood, NodeLost, "contact gone"},
		{NodeGood, NodeFlaky, "too many failures of its own"},
		{NodeUnready, NodeFlaky, "too many failures of its own"},
		{NodeGood, NodeBroken, "the node says so"},
		{NodeUnready, NodeBroken, "the node says so"},
		{NodeFlaky, NodeBroken, "the node says so"},
		{NodeFlaky, NodeUnready, "sideline time over"},
		{NodeFlaky, NodeLost, "contact gone"},
		{NodeLost, NodeGood, "contact back"},
		{NodeLost, NodeUnready, "contact back, to be probed"},
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
	// NodeRun: use it. The default.
	NodeRun NodeIntent = "run"
	// NodeHold: leave it alone: no new work, never destroyed. Beats everything automatic.
	NodeHold NodeIntent = "hold"
	// NodeDrain: no new work, destroyed when empty.
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
