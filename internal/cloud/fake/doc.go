// Package fake is a cloud in memory for tests and sim, meaner than real ones:
// instances are entries in a table, answers come at once or after a delay drawn from a seed, and what
// goes wrong is written as text.
//
// It must never be configured in a server that does work. What stands behind an
// instance (an agent in memory, or nothing) is up to the hooks.
//
// # Faults as text
//
// A script is lines; # begins a comment. A line says where, what, and, in any order, when and to which:
//
//	create: capacity type=c4 for=300ms
//	create: quota max=10 family=c
//	create: rate gap=1ms tell
//	destroy: fail 10%
//	list: cut once
//	instance: dies after=1s..60s n%7=0
//
// Where and what:
//
//	create: fail [KIND]      refused by a fault of that kind (transient, auth …); without a kind an error without one
//	create: capacity         refused for want of it; the scope is what the line selects by
//	create: quota max=N      refused when the selected already number N, of all owners
//	create: rate gap=D       refused when the create before began less than D ago; with "tell" the answer says when to come again
//	create: lost             made, and the answer is lost
//	create: double           two are made for the token
//	create: late             a call whose caller leaves goes on without him
//	create: early D          made at once, and listed; the answer comes D later
//	destroy: fail [KIND]     refused
//	destroy: lost            done, and the answer is lost
//	destroy: late            as with create
//	destroy: slow D          accepted; listed, and alive, for D
//	list: fail [KIND]        refused
//	list: cut                half of the page, and it says that it is not complete
//	list: short              half of the page, and it says that it is complete
//	list: empty              nothing, and it says that it is complete
//	list: twice              each instance of the page twice
//	list: stale D            what there was some time ago, D at most
//	offers: fail [KIND], offers: empty
//	offers: lack             the answer leaves out the offerings that the line selects
//	tags: fail [KIND]
//	WHERE: slow D            (create, list, offers, tags) the call takes D longer
//	instance: boots after=D..D         its agent starts only then; see Fate
//	instance: noboot         its agent never starts; see Fate
//	instance: wrong-key      it shows another host key than HostKeys says
//	instance: stuck          work on it that is to end does not
//	instance: broken [after=D..D]      it says that it is broken
//	instance: agent-dies [after=D..D]  its agent dies, and none can be started again
//	instance: dies [after=D..D]        it vanishes
//	instance: notice [after=D..D] in=D a spot notice; it vanishes D after it
//	instance: refused [KIND] [after=D..D]  accepted, and then listed as failed (capacity, unless said); its agent never starts
//	instance: leaves         when it is destroyed, a disk of it stays; see cloud.Sweeper
//
// When: "10%" by chance, drawn from the seed, for each line its own; "once", "3x": only so often; "from=D"
// and "for=D": from that moment after the script was played, and for so long.
//
// To which: type=, zone=, market=, family=, pool=, owner=, and n%7=1: by the number of
// the instance, from 1 (for create, the number that it would have).
//
// The first line that refuses a call is what is answered.
package fake
