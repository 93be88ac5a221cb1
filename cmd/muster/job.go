package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

func (a *app) jobCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "job", Short: "Submit, see and stop jobs",
		Long: term.Reflow(`Submit, see and stop jobs.

Jobs are named NAME in the namespace default, and NAMESPACE/NAME, or NAME with
--namespace, in others.`),
		Args: cobra.NoArgs, RunE: needsCommand,
	}
	c.AddCommand(a.submitCommand(), a.validateCommand(), a.jobListCommand(), a.jobShowCommand(), a.logsCommand(), a.fetchCommand(),
		a.scaleCommand(), a.revertCommand(), a.historyCommand(), a.stopCommand())
	return c
}

// needsCommand is the work of a command that has only others below it.
func needsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
		}
	}
	return usage(fmt.Errorf("%s needs one of: %s", c.CommandPath(), strings.Join(names, ", ")))
}

// keyOf is the key of a job that the API has shown.
func keyOf(namespace, name string) muster.JobKey {
	return muster.JobKey{Namespace: muster.Namespace(namespace), Name: name}
}

// standing is how a job stands, in one word.
func standing(j *api.Job) string {
	if j.Stage == string(muster.JobEnded) && j.Outcome != "" {
		return j.Outcome
	}
	if j.Stage == string(muster.JobLive) && j.Counts.Running > 0 {
		return "running"
	}
	if j.Stage == string(muster.JobLive) {
		return "waiting"
	}
	return j.Stage
}

// jobsCommands are those that run jobs and show them.
func jobsCommands(a *app) []*cobra.Command {
	return []*cobra.Command{a.runCommand(), a.jobCommand()}
}
