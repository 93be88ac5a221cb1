package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
)

// How many entries of each list the sentences name. The rest is counted; the data has more.
const (
	linesOfClasses = 8
	linesOfRanked  = 5
	linesOfChoices = 8
)

// PlacementLines returns an explanation of placement as text: the nodes, the node that the member
// is on, where waiting members would be placed, and which allocations would be evicted. Entries of
// a list are indented by two spaces. The text is for people and may change between versions;
// programs read the fields.
func PlacementLines(p *place.Explanation) []string {
	e := placementText{p}
	return slices.Concat(e.nodes(), e.present(), e.placing(), e.evictions())
}

// placementText turns an explanation into lines. Each method returns the lines of one subject, or
// nil if there is nothing to say.
type placementText struct{ *place.Explanation }

// nodes says how many nodes fit and what keeps members from the others, the same for each class,
// and then the best node of each class in the order of choice.
func (e placementText) nodes() []string {
	return slices.Concat([]string{"Nodes: " + e.All.String() + "."}, e.table(), e.ranking())
}

// table has a line for each class, the largest class first. A single class gets only its name,
// because the sentence before has its figures.
func (e placementText) table() []string {
	switch len(e.Classes) {
	case 0:
		return nil
	case 1:
		if e.All.Nodes == 1 {
			return []string{"It is " + e.Classes[0].Name + "."}
		}
		return []string{"All of them are " + e.Classes[0].Name + "."}
	}
	rows := [][]string{{"NODES", "CLASS", "FITS", "BLOCKED BY"}}
	left := 0
	for i := range e.Classes {
		c := &e.Classes[i]
		if i >= linesOfClasses {
			left += c.Nodes
			continue
		}
		way := strings.Join(c.Obstacles(), ", ")
		if way == "" {
			way = "-"
		}
		rows = append(rows, []string{strconv.Itoa(c.Nodes), c.Name, strconv.Itoa(c.Fitting), way})
	}
	lines := columns(rows)
	if left > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more %s, of %s", len(e.Classes)-linesOfClasses, plural("class", len(e.Classes)-linesOfClasses), muster.Counted(left, "node")))
	}
	return lines
}

// columns aligns cells. Every second column, from the first on, holds numbers and is aligned to the
// right. The last column is not padded, so that lines have no trailing spaces.
func columns(rows [][]string) (lines []string) {
	// The width counts characters, not bytes: names of nodes and classes may have any.
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := " "
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			switch {
			case i == len(row)-1:
				line += " " + cell
			case i%2 == 0:
				line += " " + pad + cell + " "
			default:
				line += " " + cell + pad + " "
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// plural returns the plural of a noun that ends in s, unless n is 1.
func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "es"
}

// ranking says which node would be chosen, and which terms rank it before the best nodes of other
// classes.
func (e placementText) ranking() []string {
	who := "Another member"
	if e.Member >= 0 {
		who = fmt.Sprintf("Member %d", e.Member)
	}
	if len(e.Choices) == 0 && e.Bound.Namespace != "" {
		return nil // a limit keeps every member from being placed
	}
	switch len(e.Ranked) {
	case 0:
		return nil
	case 1:
		if len(e.Choices) > 0 {
			return nil // placing lists this node first
		}
		return []string{fmt.Sprintf("%s would be placed on %s: %s.", who, e.Ranked[0].Node, e.Ranked[0].Terms)}
	}
	lines := []string{who + " would be placed on the first of these, the best of their classes in order:"}
	for i := range e.Ranked {
		c := &e.Ranked[i]
		if i == linesOfRanked {
			lines = append(lines, fmt.Sprintf("  and %d more", len(e.Ranked)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("  %d. %s (%s): %s", i+1, c.Node, c.Class, c.Terms))
	}
	return lines
}

// present compares the node that the member is on with the best node now.
func (e placementText) present() []string {
	p := e.Present
	switch {
	case p == nil:
		return nil
	// The obstacle or the score is worth a line only if another node would be chosen.
	case len(e.Ranked) > 0 && e.Ranked[0].Node == p.Node:
		return []string{fmt.Sprintf("Currently on %s: it would be placed there again.", p.Node)}
	case p.Obstacle.Kind != fit.None:
		return []string{fmt.Sprintf("Currently on %s, which would not be chosen now: %s.", p.Node, obstructed(p))}
	}
	return []string{fmt.Sprintf("Currently on %s, which now ranks lower: %s.", p.Node, p.Terms)}
}

// placing says where waiting members would be placed, and what the remaining members would wait
// for. It ignores queue order, because the explanation is of one job.
func (e placementText) placing() (lines []string) {
	// Nodes beyond the listed ones are summed up in one line.
	nodes, members := 0, 0
	placed := 0
	for i, c := range e.Choices {
		placed += c.Members
		if i < linesOfChoices {
			lines = append(lines, fmt.Sprintf("  %d on %s: %s", c.Members, c.Node, c.Terms))
			continue
		}
		nodes++
		members += c.Members
	}
	if placed == 0 {
		if e.Bound.Namespace == "" {
			return nil
		}
		return []string{fmt.Sprintf("%s would wait, independent of free capacity: %s.", muster.Counted(e.Waiting, "member"), e.Why())}
	}
	if nodes > 0 {
		lines = append(lines, fmt.Sprintf("  %d on nodes chosen after these, %d times", members, nodes))
	}
	more := ""
	if e.More {
		more = ", and maybe more,"
	}
	lines = slices.Insert(lines, 0, fmt.Sprintf("Ignoring queue order, %s of it%s would be placed now:", muster.Counted(placed, "member"), more))
	if e.Waiting > 0 {
		lines = append(lines, fmt.Sprintf("%s would wait then: %s.", muster.Counted(e.Waiting, "member"), e.Why()))
	}
	return lines
}

// evictions says which allocations would be evicted, node by node.
func (e placementText) evictions() (lines []string) {
	for i := range e.Evictions {
		if i == linesOfChoices {
			return append(lines, fmt.Sprintf("And on %s more.", muster.Counted(len(e.Evictions)-i, "node")))
		}
		v := &e.Evictions[i]
		ids := make([]string, len(v.Allocs))
		for k, id := range v.Allocs {
			ids[k] = string(id)
		}
		lines = append(lines, fmt.Sprintf("On %s %s would be preempted: %s.", v.Node, strings.Join(ids, ", "), v.Terms))
	}
	return lines
}

// obstructed says what keeps the member from the node that it is on.
func obstructed(p *place.Present) string {
	switch o := p.Obstacle; o.Kind {
	case fit.Filtered:
		return "it does not meet " + o.What
	case fit.Avoided:
		return "the member failed there before"
	case fit.Short:
		return "it is short of " + o.What
	case fit.Occupied:
		return "it has another member of the job"
	default:
		return "it is " + o.What
	}
}
