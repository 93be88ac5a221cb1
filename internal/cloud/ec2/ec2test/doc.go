// Package ec2test is a stand-in of the EC2 query API for tests: stricter than AWS, and less
// reliable.
// It checks signatures by its own code, refuses parameters that it does not know, keeps its own
// books, and serves SSM GetParameter and Pricing GetProducts on the same address.
//
// It must never import the driver: a stand-in that shares code with what it tests finds nothing.
// It reads the time and sets timers, and never waits otherwise, so it works in a synctest bubble
// behind Server.Transport.
//
// # Faults as text
//
// A script is lines; # begins a comment. A line says where, what, and, in any order, when and to
// which. The language is that of package fake, and what goes wrong is what EC2 does wrong.
//
//	create: capacity type=m7i.large for=30s
//	call: refuse RequestLimitExceeded status=503 action=DescribeInstances 10%
//	list: late 0s..120s
//
// Any call, or creates only, with "call:" or "create:":
//
//	refuse CODE [status=N]   an error with that code (status 400)
//	throttle                 RequestLimitExceeded, without Retry-After
//	internal [made]          500 InternalError; made: after the call was done
//	lost before|middle|after done, and the connection ends before, within or after the answer's body
//	truncated                done, and the answer is 200 with half of the XML
//	proxy [made]             503 with a page of HTML
//	slow D[..D]              done at once, and the answer comes later
//
// The rest:
//
//	create: capacity         500 InsufficientInstanceCapacity
//	create: partial max=N    at most N are made, if MinCount allows it
//	list: late D..D          two replicas show a new instance so much later, each at its own time;
//	                         until both do, CreateTags does not find it
//	list: tagless D..D       tags are in lists so much later than the instance
//	list: page max=N         pages of N at most
//	list: expire D           page tokens are good for so long
//	list: move               an instance that one page showed moves behind the next, or is left out
//	token: corpse            a used token of an ended instance answers the instance, not an error
//	token: untagged          a replay has no tags
//	token: busy              of two calls with one token at once the second gets 500; else it waits
//	instance: boots D..D     pending for so long
//	instance: turns D..D     stopping, ending and starting again take so long; else they are instant
//	instance: fails REASON [after=D..D]    pending, then terminated with that state reason
//	instance: taken [after=D..D] in=D      spot: the request's status turns, and in D it is gone
//	instance: taken silent [after=D..D]    spot: gone without notice
//	instance: dies [after=D..D]            it shuts down from inside
//	instance: leaves         a volume of it stays
//	account: foreign N       N instances of another owner, from the start
//	account: untagged N      N instances without tags
//	account: clock D         the server's clock is off by D, also negative
//	account: rotate from=D   from then on only the second of Config.Keys is valid
//	account: rates F         both kinds of buckets, with EC2's numbers times F
//	account: quota family=F max=N          vCPUs; ended instances count for a minute
//	subnet: free N id=S      a subnet has N addresses
//
// When: "10%" by chance, "once", "3x", "from=D" and "for=D" after the script was played. To which:
// type=, zone=, market=, family=, action=, id=, and n%7=1 by the number of the instance, from 1.
// The first line that refuses a call is what is answered.
//
// # What it does to a driver
//
// EC2 does each of these, or has done it to somebody. The tests that show them are those of this package
// unless another is named; a name after a slash is a case of TestMeannesses.
//
//	 1 new instances are missing from lists, come and go    TestReplicasDisagree, /new_ones_are_missing
//	 2 tags come after the instance                         /tags_come_later
//	 3 ended ones linger, and lose their tags               /ended_ones_linger
//	 4 tokens are zonal, hashed, and replayed in bad ways   /other_parameters, /mismatch_after_no, /replay_of_a_dead,
//	                                                        /replay_of_a_corpse, /replay_without_tags, TestOneTokenAtOnce
//	 5 one wrong id spoils a call for many                  /all_or_nothing, /malformed_id
//	 6 two kinds of buckets, without Retry-After            /rates, TestStorm of e2e/clouds
//	 7 no capacity is a 500; fewer are made than wanted     /capacity_by_zone, /partial
//	 8 answers are lost, cut, or a proxy's                  TestLostAnswers
//	 9 accepted, and ended a moment later                   /fails_later
//	10 pages of few, tokens that expire, what moves         /expired_pages, TestPagesMove
//	11 a page token with other filters                      /expired_pages
//	12 spot: a notice and two minutes, or neither           /spot_with_notice, /spot_without, TestMachine of netns
//	13 credentials rotate                                   /rotated, TestCredentialsRotate of e2e/clouds
//	14 the clock is 16 minutes off                          /clock, TestFaults of e2e/clouds
//	15 instances of others, and without tags                /strangers, /untagged
//	16 a subnet is full; stopped instances count            /full_subnet
//	17 quotas in cores; ended instances count for a while   /quota
//	18 DryRun                                               /dry_run
package ec2test
