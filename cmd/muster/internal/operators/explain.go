package operators

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// explainCommand makes muster explain. A name may be a job, an environment, a member of a job or a
// node; they are tried in this order, and node/ID is always a node. The server explains, and sends
// lines for people beside the data.
func explainCommand(a *cli.App) *cobra.Command {
	c := a.ClientCommand("explain JOB|JOB/INDEX|NODE", "Explain why a job waits, where a member would be placed, or the state of a node", `For a job: the work before it in the queue; why its members do not fit each class of equal nodes, the largest class first; which nodes would be chosen and why; what could be launched and what prevents it; the provider's answers; and when a member may start. For one member, JOB/INDEX: where it would be placed now; a member that has an allocation is explained as if unplaced, because past placement decisions are not recorded. For a node: its stage, health and intent, who changed them and why, what runs there, and when it will be destroyed. A name that is both is a job; node/ID is always a node.`,
		cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
			if id, ok := cutNode(args[0]); ok {
				return explainNode(ctx, a, cl, id, nil)
			}
			// A name with two slashes, or with one beside --namespace, is no job's name.
			key, err := a.JobKey(args[0])
			if err != nil {
				// NAMESPACE/JOB/INDEX, or JOB/INDEX beside --namespace.
				if job, index, ok := cli.SplitMember(args[0]); ok {
					return explainMember(ctx, a, cl, job, index)
				}
				return err
			}
			e, err := cl.ExplainJob(ctx, key)
			if client.IsNotFound(err) {
				// A server that does not know of environments here refuses the name.

				if env, failed := cl.ExplainJob(ctx, muster.EnvironmentKey(key.Namespace, key.Name)); failed == nil {
					return printExplanation(a, env, env.Text)
				}
				if job, index, ok := cli.SplitMember(args[0]); ok {
					return explainMember(ctx, a, cl, job, index)
				}
				return explainNode(ctx, a, cl, muster.NodeID(args[0]), err)
			}
			if err != nil {
				return err
			}
			return printExplanation(a, e, e.Text)
		})
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// explainMember explains one member of a job: where it would go now.
func explainMember(ctx context.Context, a *cli.App, cl *client.Client, job string, index int) error {
	key, err := a.JobKey(job)
	if err != nil {
		return err
	}
	e, err := cl.ExplainMember(ctx, key, index)
	if client.IsNotFound(err) {
		return cli.WithHint(err, cli.JobsHint)
	}
	if err != nil {
		return err
	}
	return printExplanation(a, e, e.Text)
}

// cutNode is the id in node/ID, which names a node even if a job has that name. ok is false for
// every other name.
func cutNode(name string) (muster.NodeID, bool) {
	const prefix = "node/"
	if len(name) > len(prefix) && name[:len(prefix)] == prefix {
		return muster.NodeID(name[len(prefix):]), true
	}
	return "", false
}

// explainNode explains a node. noJob is why the name is not a job, if that was asked first: it is
// the error to show, because a job was most likely meant.
func explainNode(ctx context.Context, a *cli.App, cl *client.Client, id muster.NodeID, noJob error) error {
	e, err := cl.ExplainNode(ctx, id)
	switch {
	// It is neither a job nor a node. The job's error names what was looked for.
	case client.IsNotFound(err) && noJob != nil:
		return cli.WithHint(noJob, "nor is there such a node; `muster job list` and `muster node list --all` show what there is")
	case err != nil:
		return nodeHint(err)
	}
	return printExplanation(a, e, e.Text)
}

// printExplanation prints an explanation: the server's lines, or all of it for programs.
func printExplanation(a *cli.App, whole any, text []string) error {
	if a.JSON {
		return a.PrintJSON(whole)
	}
	for _, line := range text {
		fmt.Fprintln(a.Stdout, term.Clean(line))
	}
	return nil
}
