package operators

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// imageCommand makes muster image, with all that is below it. Commands for nodes ask them one by
// one: the server has a list of the images only that were loaded on it.
func imageCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "Load images on the server; list, pull and delete images on nodes",
		Long: term.Reflow(`Load container images on the server, for jobs without a registry, and list, pull and delete the images on nodes.

A node pulls the images of its jobs by itself, from the server or from a registry, and deletes the least recently used ones when they take too much disk. Credentials of registries stay with the server: see docs/files.md.`),
		Args: cobra.NoArgs, RunE: cli.NeedsCommand,
	}
	c.AddCommand(imageLoadCommand(a), imageListCommand(a), imageRemoveCommand(a), imagePullCommand(a), imagePruneCommand(a))
	return c
}

// nodesFlags say which nodes are meant: some by name, or all of a pool. Without them all nodes that
// serve are meant, where a command allows that.
type nodesFlags struct {
	// nodes are named by their ids.
	nodes []string
	// pool stands for all of its nodes that serve. It excludes nodes; find refuses both.
	pool string
}

// flags adds them to a command. What begins their help: "to" or "from".
func (n *nodesFlags) flags(c *cobra.Command, what string) {
	c.Flags().StringSliceVar(&n.nodes, "node", nil, what+" this node; may be repeated")
	c.Flags().StringVar(&n.pool, "pool", "", what+" all nodes of this pool that serve")
}

// find returns the ids of the nodes that are meant, in order; of all that serve if none are named.
// Nodes that are named are not looked up: each says by itself that it does not exist.
func (n *nodesFlags) find(ctx context.Context, cl *client.Client) ([]string, error) {
	if len(n.nodes) > 0 {
		// Both together could mean either of two things.
		if n.pool != "" {
			return nil, cli.Usage(errors.New("--node and --pool: give one of them"))
		}
		return n.nodes, nil
	}
	var ids []string
	for node, err := range cl.AllNodes(ctx, client.NodeQuery{Pool: muster.PoolName(n.pool), Stage: muster.NodeServing}) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, node.ID)
	}
	sort.Strings(ids)
	return ids, nil
}

// noNodes says that there is no node to ask. It is no error where there is nothing to do: nodes are
// made when there is work.
func noNodes(a *cli.App, n *nodesFlags) {
	fmt.Fprintf(a.Stderr, "muster: no node%s serves; nodes are made when there is work, and `muster pool list` shows the pools\n", term.SuffixIf(n.pool != "", " of pool "+n.pool))
}

// nodesAtOnce is how many nodes are asked at the same time.
const nodesAtOnce = 8

// each does something on every node, a few at a time, and returns when all is done. The index lets
// the work write its result without a lock.
func each(ids []string, do func(i int, id string)) {
	// A place is taken before the goroutine is made, so there are never more of them.
	places := make(chan struct{}, nodesAtOnce)
	var wg sync.WaitGroup
	for i, id := range ids {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			do(i, id)
		})
	}
	wg.Wait()
}

// tellNodes says what went wrong on which node, and returns one error for all of them. A server
// that is away is not the fault of a node, and is returned as it is: its exit code is another one.
func tellNodes(a *cli.App, ids []string, errs []error, what string) error {
	// Every node's own error is said, and only the last of those of a server that is away.
	failed, unreachable := 0, error(nil)
	for i, err := range errs {
		if err == nil {
			continue
		}
		failed++
		if client.IsUnreachable(err) {
			unreachable = err
			continue
		}
		// Of many nodes some may be gone by now; of one that was named the name is probably wrong.
		if client.IsNotFound(err) && client.Code(err) == string(muster.FaultNotFound) && len(ids) == 1 {
			err = cli.WithHint(err, "`muster node list` shows the nodes")
		}
		fmt.Fprintf(a.Stderr, "muster: node %s: %s\n", term.Clean(ids[i]), term.OneLine(err.Error()))
	}
	switch {
	case unreachable != nil:
		return unreachable
	case failed > 0:
		return cli.Failure(fmt.Errorf("%s on %d of %s", what, failed, muster.Counted(len(ids), "node")))
	}
	return nil
}

// nodeImages is what `muster image list --json` prints of a node.
type nodeImages struct {
	Node string `json:"node"`
	*api.ImageList
}

// imageListCommand makes muster image list. Nodes that do not answer are reported after those that
// do.
func imageListCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	server := false
	c := a.ClientCommand("list", "List the images on the server or on nodes", "Of all serving nodes, unless some are named. With --server those that were loaded on the server.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		if server {
			if len(n.nodes) > 0 || n.pool != "" {
				return cli.Usage(errors.New("--server: excludes --node and --pool"))
			}
			return listLoaded(ctx, a, cl)
		}
		ids, err := n.find(ctx, cl)
		if err != nil {
			return err
		}
		// A program gets an empty list.
		if len(ids) == 0 && !a.JSON {
			noNodes(a, n)
			return nil
		}
		lists, errs := make([]*api.ImageList, len(ids)), make([]error, len(ids))
		each(ids, func(i int, id string) { lists[i], errs[i] = cl.Images(ctx, muster.NodeID(id)) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		printImages(a, ids, lists, errs)
		return tellNodes(a, ids, errs, "the images could not be listed")
	})
	n.flags(c, "only of")
	c.Flags().BoolVar(&server, "server", false, "the images that were loaded on the server")
	return c
}

// printImages prints what nodes keep; those that did not answer are left out. How full each node's
// store is goes to stderr: it is no row of the table.
func printImages(a *cli.App, ids []string, lists []*api.ImageList, errs []error) {
	now := time.Now()
	var rows [][]string
	shown := []nodeImages{}
	sums := make([]string, 0, len(ids))
	for i, l := range lists {
		if errs[i] != nil {
			continue
		}
		shown = append(shown, nodeImages{ids[i], l})
		for k := range l.Images {
			im := &l.Images[k]
			used := term.Ago(&im.Used, now) + " ago"
			// An image that is used now is never deleted, so when it was used last does not matter.
			if im.InUse > 0 {
				used = fmt.Sprintf("by %d now", im.InUse)
			}
			rows = append(rows, []string{ids[i], im.Ref, shortDigest(im.Digest), muster.Bytes(im.Size).String(), fmt.Sprint(im.Layers), used})
		}
		sums = append(sums, fmt.Sprintf("node %s: %s, %s of %s", ids[i], muster.Counted(len(l.Images), "image"), muster.Bytes(l.Used), muster.Bytes(l.Limit)))
	}
	if a.JSON {
		_ = a.PrintJSON(shown)
		return
	}
	if len(rows) > 0 {
		a.PrintTable([]string{"NODE", "IMAGE", "DIGEST", "SIZE", "LAYERS", "USED"}, rows)
	}
	for _, s := range sums {
		fmt.Fprintf(a.Stderr, "muster: %s\n", term.Clean(s))
	}
}

// shortDigest is enough of a digest to tell images apart. With --json all of it is there.
func shortDigest(d string) string {
	const most = len("sha256:") + 12
	if strings.HasPrefix(d, "sha256:") && len(d) > most {
		return d[:most]
	}
	return term.OrDash(d)
}

// pulledImage is what `muster image pull --json` prints of a node.
type pulledImage struct {
	Node   string `json:"node"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

// imagePullCommand makes muster image pull. It wants nodes or a pool to be named: an image on every
// node of a large cluster is seldom meant, and costs disk and time.
func imagePullCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	c := a.Command("pull IMAGE", "Pull an image to nodes ahead of its use", `To the nodes of --node, or to all of --pool that serve now. Nodes that are created later pull it when they need it. The digest is printed for each node.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		if len(n.nodes) == 0 && n.pool == "" {
			return cli.Usage(errors.New("where to? give --node NODE or --pool POOL; `muster node list` shows them"))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		// Nodes of a pool are those that serve now. One that joins later pulls when it needs the
		// image.
		ids, err := n.find(ctx, cl)
		if err != nil {
			return err
		}
		// Nothing was pulled, so what comes after in a script must not run.
		if len(ids) == 0 {
			noNodes(a, n)
			return cli.ExitSilently(cli.ExitFailed)
		}
		return pull(ctx, a, cl, api.ImagePull{Ref: args[0], Namespace: a.Namespace}, ids)
	})
	n.flags(c, "to")
	a.NamespaceFlag(c, "pull with the registry credentials of this namespace (default: those for all namespaces)")
	return c
}

// pull pulls an image to nodes, shows how far that is, and prints the digests. A node that fails
// does not end the pulls of others. The digests are printed also then: what was pulled is there.
func pull(ctx context.Context, a *cli.App, cl *client.Client, want api.ImagePull, ids []string) error {
	// Each node reports by itself, and one bar adds them up.
	p := &pulls{screen: term.NewScreen(a.Stdout, a.Stderr), now: map[string]api.ImageProgress{}}
	done, errs := make([]pulledImage, len(ids)), make([]error, len(ids))
	each(ids, func(i int, id string) {
		digest, err := cl.PullImage(ctx, muster.NodeID(id), want, func(now api.ImageProgress) { p.set(id, &now) })
		done[i], errs[i] = pulledImage{id, want.Ref, digest}, err
		p.set(id, nil)
	})
	// What follows is printed below the bar's line, so that goes first.
	p.screen.SetBar("")
	// The user has left, and what every node says of that is of no use.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	good := []pulledImage{}
	for i := range done {
		if errs[i] == nil {
			good = append(good, done[i])
		}
	}
	if a.JSON {
		if err := a.PrintJSON(good); err != nil {
			return err
		}
	} else {
		for _, g := range good {
			fmt.Fprintf(a.Stdout, "%s %s\n", term.OneLine(g.Node), term.OneLine(g.Digest))
		}
	}
	return tellNodes(a, ids, errs, fmt.Sprintf("%s could not be pulled", want.Ref))
}

// pulls is how far all pulls are that run at once, on one bar.
type pulls struct {
	screen *term.Screen
	// mu guards now: each node's pull reports from a goroutine of its own.
	mu sync.Mutex
	// now is what was heard last, by node.
	now map[string]api.ImageProgress
}

// set takes what is heard of one; nil when it is over.
func (p *pulls) set(node string, now *api.ImageProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now == nil {
		delete(p.now, node)
	} else {
		p.now[node] = *now
	}
	// Nodes that are done are not part of it any more, so the bar may go back. It says what still
	// runs.
	var sum api.ImageProgress
	for _, n := range p.now {
		sum.Done, sum.Total = sum.Done+n.Done, sum.Total+n.Total
		sum.Layers, sum.LayersDone = sum.Layers+n.Layers, sum.LayersDone+n.LayersDone
	}
	p.screen.SetBar(pullText(sum, len(p.now)))
}

// pullText says how far pulls are, those of all nodes added up. What is not known yet is left out:
// the sizes of an image are known only when its manifest was read.
func pullText(p api.ImageProgress, nodes int) string {
	if nodes == 0 {
		return ""
	}
	text := "pulling"
	if nodes > 1 {
		text += fmt.Sprintf(" to %d nodes", nodes)
	}
	if p.Layers > 0 {
		text += fmt.Sprintf("  %d of %d layers", p.LayersDone, p.Layers)
	}
	switch {
	case p.Total > 0:
		text += fmt.Sprintf("  %s of %s", muster.Bytes(p.Done), muster.Bytes(p.Total))
	case p.Done > 0:
		text += "  " + muster.Bytes(p.Done).String()
	}
	return text
}

// prunedNode is what `muster image prune --json` prints of a node.
type prunedNode struct {
	Node  string `json:"node"`
	Freed int64  `json:"freed"`
}

// imagePruneCommand makes muster image prune. It wants nodes or a pool to be named: by mistake it
// should not delete the images of all nodes, which would be pulled again for every job.
func imagePruneCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	all := false
	c := a.Command("prune", "Delete images that nothing uses", "From the nodes of --node, or from all of --pool. Images in use are kept.", cobra.NoArgs, func(ctx context.Context, _ []string) error {
		if len(n.nodes) == 0 && n.pool == "" {
			return cli.Usage(errors.New("where? give --node NODE or --pool POOL; `muster node list` shows them"))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		ids, err := n.find(ctx, cl)
		if err != nil {
			return err
		}
		// No node has images that could be deleted, so there is nothing to do.
		if len(ids) == 0 {
			noNodes(a, n)
			return nil
		}
		done, errs := make([]*api.ImagesPruned, len(ids)), make([]error, len(ids))
		each(ids, func(i int, id string) { done[i], errs[i] = cl.PruneImages(ctx, muster.NodeID(id), all) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		good := []prunedNode{}
		for i := range done {
			if errs[i] == nil {
				good = append(good, prunedNode{ids[i], done[i].Freed})
			}
		}
		if a.JSON {
			if err := a.PrintJSON(good); err != nil {
				return err
			}
		} else {
			for _, g := range good {
				fmt.Fprintf(a.Stdout, "%s %s freed\n", term.Clean(g.Node), muster.Bytes(g.Freed))
			}
		}
		return tellNodes(a, ids, errs, "images could not be deleted")
	})
	n.flags(c, "from")
	c.Flags().BoolVar(&all, "all", false, "also recently used ones")
	return c
}
