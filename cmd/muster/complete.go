package main

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/locate"
)

const (
	// completionTime is how long a shell waits for names. A server that is not there completes nothing.
	completionTime = time.Second
	// maxCompletions bounds the names that are offered.
	maxCompletions = 200
)

// names lists the names of one kind of object. It has no more than maxCompletions, and ends early
// without an error that anybody would see.
type names func(ctx context.Context, cl *client.Client) iter.Seq[string]

// argumentNames are the kinds of objects that the arguments of commands name, by the path of the
// command below muster.
var argumentNames = map[string]names{
	"job show": jobNames, "job stop": jobNames, "job logs": jobNames, "job wait": jobNames, "job retry": jobNames, "job scale": jobNames,
	"job revert": jobNames, "job history": jobNames, "history": jobNames, "job fetch": jobNames,
	"exec": jobNames, "cp": jobNames, "ls": jobNames, "port": jobNames, "top": jobNames, "explain": jobNames,
	"node show": nodeNames, "node hold": nodeNames, "node run": nodeNames, "node drain": nodeNames, "node destroy": nodeNames,
	"pool show": poolNames, "pool resume": poolNames,
	"env show": environmentNames, "env delete": environmentNames, "claim": environmentNames, "x": environmentNames, "runner list": environmentNames,
	"release": runnerNames, "extend": runnerNames,
	"namespace show": namespaceNames, "namespace set": namespaceNames,
}

// flagNames are those of flags, in whichever command.
var flagNames = map[string]names{"pool": poolNames, "namespace": namespaceNames}

// addCompletion lets shells complete the names of objects. It is in one place, because a command's
// own package has nothing to do with shells.
func addCompletion(a *cli.App, root *cobra.Command) {
	for _, c := range commandsOf(root) {
		path := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		if list := argumentNames[path]; list != nil {
			c.ValidArgsFunction = completer(a, list)
		}
		for flag, list := range flagNames {
			if c.Flags().Lookup(flag) != nil {
				_ = c.RegisterFlagCompletionFunc(flag, completer(a, list))
			}
		}
		if c.Flags().Lookup("network") != nil {
			_ = c.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"none", "bridge", "host"}, cobra.ShellCompDirectiveNoFileComp))
		}
		if path == "job list" {
			_ = c.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(api.JobStatuses(), cobra.ShellCompDirectiveNoFileComp))
		}
		if path == "context use" || path == "context remove" {
			c.ValidArgsFunction = contextNames
		}
	}
	_ = root.RegisterFlagCompletionFunc("context", contextNames)
}

// commandsOf are all commands below one.
func commandsOf(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		all = append(append(all, sub), commandsOf(sub)...)
	}
	return all
}

// completer offers names that begin as what was typed. Where none does, files are offered: cp and
// explain take other arguments too.
func completer(a *cli.App, list names) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		cl, err := a.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		var found []string
		for name := range list(ctx, cl.Patient(-1)) {
			if strings.HasPrefix(name, typed) {
				found = append(found, name)
			}
			if len(found) == maxCompletions {
				break
			}
		}
		if len(found) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := locate.ReadContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return all.Names(), cobra.ShellCompDirectiveNoFileComp
}

func jobNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		l, err := cl.Jobs(ctx, client.JobQuery{Newest: true, Limit: maxCompletions})
		if err != nil {
			return
		}
		for i := range l.Jobs {
			if !yield(cli.JobKeyOf(l.Jobs[i].Namespace, l.Jobs[i].Name).String()) {
				return
			}
		}
	}
}

func nodeNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n, err := range cl.AllNodes(ctx, client.NodeQuery{}) {
			if err != nil || !yield(n.ID) {
				return
			}
		}
	}
}

func poolNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		l, err := cl.Pools(ctx)
		if err != nil {
			return
		}
		for i := range l.Pools {
			if !yield(l.Pools[i].Name) {
				return
			}
		}
	}
}

func environmentNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		for e, err := range cl.Environments(ctx, "") {
			if err != nil || !yield(cli.EnvironmentName(e.Namespace, e.Name)) {
				return
			}
		}
	}
}

func runnerNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		for r, err := range cl.Runners(ctx, client.RunnerQuery{State: "claimed"}) {
			if err != nil || !yield(r.ID) {
				return
			}
		}
	}
}

func namespaceNames(ctx context.Context, cl *client.Client) iter.Seq[string] {
	return func(yield func(string) bool) {
		l, err := cl.Namespaces(ctx)
		if err != nil {
			return
		}
		for i := range l.Namespaces {
			if !yield(l.Namespaces[i].Name) {
				return
			}
		}
	}
}
