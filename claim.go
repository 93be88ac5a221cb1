package muster

// ClaimID names a claim; drawn by who asks the log for it.
type ClaimID string

// ClaimState is where a claim is in its life.
type ClaimState string

const (
	// ClaimHeld: its holder may use its runner. Set when the claim is committed. Next is
	// released by its holder, expired by its deadline or when nothing is done with the runner for its
	// idle time, or lost with the runner. Without deadline and idle time it is held until one of the others.
	ClaimHeld ClaimState = "held"
	// ClaimReleased: given back. Final; kept for a while, as are the two below, so that
	// whoever comes late is told what happened.
	ClaimReleased ClaimState = "released"
	// ClaimExpired: its deadline came, or its runner was idle for too long. Final.
	ClaimExpired ClaimState = "expired"
	// ClaimLost: its runner ended by itself, or with its node. Final.
	ClaimLost ClaimState = "lost"
)

// ClaimMoves is the claim's transition table.
func ClaimMoves() []Move[ClaimState] {
	return []Move[ClaimState]{
		{"", ClaimHeld, "committed"},
		{ClaimHeld, ClaimHeld, "extended, or its runner used"},
		{ClaimHeld, ClaimReleased, "released by its holder"},
		{ClaimHeld, ClaimExpired, "its deadline, or nothing done for its idle time"},
		{ClaimHeld, ClaimLost, "its runner ended"},
	}
}

// To moves a claim's state along ClaimMoves.
func (s ClaimState) To(noun string, next ClaimState) (ClaimState, error) {
	return to(noun, ClaimMoves(), s, next)
}
