package muster

// RunnerState is where a runner is in its life. A runner is an allocation whose
// owner is an environment, and has the allocation's id.
type RunnerState string

const (
	// RunnerStarting: placed, and its sandbox does not run yet, or has not shown that it is ready. Set by a plan. Next is
	// warm when the agent says that its command runs and, if its environment has a readiness command, that this passed; or gone when it could not start or is not wanted
	// any more. Each step of a start has a deadline on the agent.
	RunnerStarting RunnerState = "starting"
	// RunnerWarm: its sandbox runs and nobody has it. Next is claimed by a claim, or gone when it is
	// surplus, outdated, or ends. It may stay so for as long as its environment wants it.
	RunnerWarm RunnerState = "warm"
	// RunnerClaimed: one claim has it. Next is gone, when the claim is released or expires, or the
	// sandbox ends. Never warm again.
	RunnerClaimed RunnerState = "claimed"
	// RunnerGone: nobody can use it; its sandbox ends or has ended. Final.
	RunnerGone RunnerState = "gone"
)

// RunnerMoves is the runner's transition table.
func RunnerMoves() []Move[RunnerState] {
	return []Move[RunnerState]{
		{"", RunnerStarting, "plan committed"},
		{RunnerStarting, RunnerWarm, "its command runs, and it is ready"},
		{RunnerStarting, RunnerGone, "could not start, or is not wanted any more"},
		{RunnerWarm, RunnerClaimed, "claimed"},
		{RunnerWarm, RunnerGone, "surplus, outdated, or its sandbox ended"},
		{RunnerClaimed, RunnerGone, "released, expired, or its sandbox ended"},
	}
}

// To moves a runner's state along RunnerMoves.
func (s RunnerState) To(noun string, next RunnerState) (RunnerState, error) {
	return to(noun, RunnerMoves(), s, next)
}
