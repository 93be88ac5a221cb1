// Package share decides whose turn it is when there is not room for all: among
// equals of priority, classes of namespaces have room in proportion to their
// weights. What a class does not use is lent to those who wait, in proportion to
// theirs, and comes back as work ends: nothing is ever stopped for it.
//
// Both are one rule. The next start is that of the class which, with it, has the
// least for its weight. A class below its part is served before any that is above it,
// and those that borrow do so evenly.
//
// It must never look at a clock, a node or the order of a map, and knows nothing of what fits
// where: package place asks it in which order to try, and the API shows with it who is entitled to what.
package share
