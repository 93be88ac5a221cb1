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

func imageCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "See, pull and delete images on nodes",
		Long: term.Reflow(`See, pull and delete the container images that nodes keep.

A node pulls what a job asks for by itself, and deletes what was not used for longest when there
is too much. Credentials of registries stay with the server: see docs/files.md.`),
		Args: cobra.NoArgs, RunE: cli.NeedsCommand,
	}
	c.AddCommand(imageListCommand(a), imagePullCommand(a), imagePruneCommand(a))
	return c
}

// nodesFlags say which nodes are meant.
type nodesFlags struct {
	nodes []string
	pool  string
}

func (n *nodesFlags) flags(c *cobra.Command, what string) {
	c.Flags().StringSliceVar(&n.nodes, "node", nil, what+" this node; may be repeated")
	c.Flags().StringVar(&n.pool, "pool", "", what+" all nodes of this pool that serve")
}

// find is the nodes that are meant; all that serve, if none are named.
func (n *nodesFlags) find(ctx context.Context, cl *client.Client) ([]string, error) {
	if len(n.nodes) > 0 {
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

// noNodes says that there is nobody to ask.
func noNodes(a *cli.App, n *nodesFlags) {
	fmt.Fprintf(a.Stderr, "muster: no node%s serves; nodes are made when there is work, and `muster pool list` shows the pools\n", term.SuffixIf(n.pool != "", " of pool "+n.pool))
}

// nodesAtOnce is how many nodes are spoken to at the same time.
const nodesAtOnce = 8

// each does something on every node, a few at a time.
func each(ids []string, do func(i int, id string)) {
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

// tellNodes tells what went wrong on nodes; the error is for all of them.
func tellNodes(a *cli.App, ids []string, errs []error, what string) error {
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

// nodeImages is what `muster image list --json` tells of a node.
type nodeImages struct {
	Node string `json:"node"`
	*api.ImageList
}

func imageListCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	c := a.ClientCommand("list", "List the images that nodes keep", "Of all nodes that serve, unless some are named.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		ids, err := n.find(ctx, cl)
		if err != nil {
			return err
		}
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
	return c
}

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

// shortDigest is enough of a digest to tell images apart.
func shortDigest(d string) string {
	const most = len("sha256:") + 12
	if strings.HasPrefix(d, "sha256:") && len(d) > most {
		return d[:most]
	}
	return term.OrDash(d)
}

// pulledImage is what `muster image pull --json` tells of a node.
type pulledImage struct {
	Node   string `json:"node"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

func imagePullCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	c := a.Command("pull IMAGE", "Pull an image to nodes ahead of its use", `To the nodes of --node, or to all of --pool that serve now. Nodes that are made later pull it when
they need it. Of each node the digest is printed.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		if len(n.nodes) == 0 && n.pool == "" {
			return cli.Usage(errors.New("where to? give --node NODE or --pool POOL; `muster node list` shows them"))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		ids, err := n.find(ctx, cl)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			noNodes(a, n)
			return cli.ExitSilently(cli.ExitFailed)
		}
		return pull(a, ctx, cl, args[0], ids)
	})
	n.flags(c, "to")
	return c
}

func pull(a *cli.App, ctx context.Context, cl *client.Client, ref string, ids []string) error {
	p := &pulls{screen: term.NewScreen(a.Stdout, a.Stderr), now: map[string]api.ImageProgress{}}
	done, errs := make([]pulledImage, len(ids)), make([]error, len(ids))
	each(ids, func(i int, id string) {
		digest, err := cl.PullImage(ctx, muster.NodeID(id), ref, func(now api.ImageProgress) { p.set(id, &now) })
		done[i], errs[i] = pulledImage{id, ref, digest}, err
		p.set(id, nil)
	})
	p.screen.SetBar("")
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
	return tellNodes(a, ids, errs, fmt.Sprintf("%s could not be pulled", ref))
}

// pulls is how far pulls are that go on at once.
type pulls struct {
	screen *term.Screen
	mu     sync.Mutex
	now    map[string]api.ImageProgress // by node
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
	var sum api.ImageProgress
	for _, n := range p.now {
		sum.Done, sum.Total = sum.Done+n.Done, sum.Total+n.Total
		sum.Layers, sum.LayersDone = sum.Layers+n.Layers, sum.LayersDone+n.LayersDone
	}
	p.screen.SetBar(pullText(sum, len(p.now)))
}

// pullText says how far it is.
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

// prunedNode is what `muster image prune --json` tells of a node.
type prunedNode struct {
	Node  string `json:"node"`
	Freed int64  `json:"freed"`
}

func imagePruneCommand(a *cli.App) *cobra.Command {
	n := &nodesFlags{}
	all := false
	c := a.Command("prune", "Delete images that nothing uses", "From the nodes of --node, or from all of --pool. What a sandbox uses stays.", cobra.NoArgs, func(ctx context.Context, _ []string) error {
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
	c.Flags().BoolVar(&all, "all", false, "also what was used lately")
	return c
}
