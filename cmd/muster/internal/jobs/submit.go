package jobs

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
	"github.com/musterhq/muster/internal/specfile"
)

// submitCommand makes muster job submit. It prints the job's name alone, which a script can keep.
func submitCommand(a *cli.App) *cobra.Command {
	var ifVersion uint64
	var replace bool
	var c *cobra.Command
	c = a.Command("submit FILE", "Submit a job from a file", `The file is YAML or JSON; - is stdin. Files that its inputs name (file: PATH, relative to
the job file) are uploaded first. The job's name is printed. If the job exists with the same content, nothing changes.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		s := api.JobSubmission{Replace: replace}
		// 0 has a meaning of its own: the job must not exist.
		if c.Flags().Changed("if-version") {
			s.IfVersion = &ifVersion
		}
		spec, err := specfile.JobAt(args[0], a.Stdin)
		if err != nil {
			return err
		}
		if err := intoNamespace(a, spec); err != nil {
			return err
		}
		s.Spec = *spec
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		done, err := submit(ctx, a, cl, s, cli.FolderOf(args[0]))
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(done)
		}
		key := cli.JobKeyOf(done.Namespace, done.Name)
		if done.Unchanged {
			fmt.Fprintf(a.Stderr, "muster: job %s is there with the same content (version %d); nothing was done\n", key, done.Version)
		}
		_, err = fmt.Fprintln(a.Stdout, key)
		return err
	})
	c.Flags().Uint64Var(&ifVersion, "if-version", 0, "only if the job is at this version; 0: only if it does not exist")
	c.Flags().BoolVar(&replace, "replace", false, "stop the members of a running job of this name, and run this one instead")
	a.NamespaceFlag(c, "namespace of the job, if the file names none")
	return c
}

// intoNamespace puts a job into the namespace of the flag.
func intoNamespace(a *cli.App, spec *api.JobSpec) error {
	return a.IntoNamespace(&spec.Namespace, "job")
}

// submit uploads what a submission's inputs name, and submits it. It is done once, however often
// the connection is lost: the key tells the server that an attempt is the same submission.
func submit(ctx context.Context, a *cli.App, cl *client.Client, s api.JobSubmission, folder string) (*api.JobSubmitted, error) {
	if err := transfer.UploadInputs(ctx, cl, &s.Spec, folder, term.NewScreen(a.Stdout, a.Stderr)); err != nil {
		return nil, err
	}
	return cl.Submit(ctx, s, client.NewKey())
}
