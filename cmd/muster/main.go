// Command muster is the server and its command line: it starts servers, submits jobs and follows
// them, and shows what there is.
//
// As a client it knows nothing but the HTTP API (package client) and the two small files by which a
// server on the same host is found (internal/locate); it must never read or write a server's state.
// The commands are in the packages below internal; this one puts them together.
package main

import (
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/contexts"
	"github.com/musterhq/muster/cmd/muster/internal/inside"
	"github.com/musterhq/muster/cmd/muster/internal/jobs"
	"github.com/musterhq/muster/cmd/muster/internal/operators"
	"github.com/musterhq/muster/cmd/muster/internal/runners"
	"github.com/musterhq/muster/cmd/muster/internal/serve"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// execute runs the command line and returns its exit code.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := cli.NewApp(stdin, stdout, stderr)
	defer a.End()
	return a.Execute(assemble(a), args)
}

// assemble is the command muster with all commands below it. The tests of docs and of help texts
// use it too.
func assemble(a *cli.App) *cobra.Command {
	root := a.Root()
	// Whoever runs a server is seldom the one who uses it, so help texts show two groups.
	root.AddGroup(&cobra.Group{ID: "work", Title: "Run jobs:"}, &cobra.Group{ID: "server", Title: "Run a server:"})
	for _, c := range slices.Concat(jobs.Commands(a), inside.Commands(a), transfer.Commands(a), runners.Commands(a), operators.Commands(a), contexts.Commands(a)) {
		c.GroupID = "work"
		root.AddCommand(c)
	}
	for _, c := range serve.Commands(a, drivers) {
		c.GroupID = "server"
		root.AddCommand(c)
	}
	root.AddCommand(versionCommand(a), manCommand(a))
	addCompletion(a, root)
	answerOtherVerbs(root)
	root.AddCommand(otherWordCommands()...)
	return root
}
