package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// otherWords are commands that users of Docker, Slurm and Kubernetes type, and what to type instead.
// Whoever types one gets an answer that helps, and not only that there is no such command.
var otherWords = map[string]string{
	"sbatch":   "`muster run --detach --input SCRIPT -- sh SCRIPT` or `muster job submit FILE` submits a job",
	"srun":     "`muster run -- COMMAND` runs a command and prints its output",
	"salloc":   "no nodes are reserved ahead; `muster run` waits until there is one",
	"squeue":   "`muster job list --stage live` shows the jobs that wait and run",
	"sacct":    "`muster history` shows ended jobs with their CPU time, memory and cost, `muster job show JOB` one with its attempts",
	"seff":     "`muster history --id ID` shows the CPU and the memory that a job has used",
	"scancel":  "`muster job stop JOB` ends a job",
	"sinfo":    "`muster node list` shows the nodes, `muster pool list` the pools",
	"requeue":  "`muster job retry JOB` runs the members of a job again that failed",
	"retry":    "`muster job retry JOB` runs the members of a job again that failed",
	"scontrol": "`muster job show JOB` and `muster node show ID` show one, `muster node drain ID` drains a node, `muster job retry JOB` runs again what failed",

	"jobs":     "`muster job list` shows the jobs",
	"nodes":    "`muster node list` shows the nodes",
	"get":      "`muster job list`, `muster node list`, `muster pool list` and `muster env list` list what there is",
	"describe": "`muster job show JOB`, `muster node show ID` and `muster env show NAME` show one, `muster explain` why",
	"apply":    "`muster job submit FILE` submits a job, `muster env apply FILE` makes or changes an environment",
	"submit":   "`muster job submit FILE` submits a job",
	"delete":   "`muster job stop JOB` ends a job, `muster env delete NAME` deletes an environment",
	"cancel":   "`muster job stop JOB` ends a job",
	"scale":    "`muster job scale JOB COUNT` changes the number of members",
	"rollout":  "`muster job show JOB` shows the rollout of an update, `muster job history JOB` the versions",
	"status":   "`muster job list` shows the jobs, `muster pool list` and `muster node list` the capacity",
	"list":     "`muster job list`, `muster node list`, `muster pool list` and `muster env list` list what there is",
	"show":     "`muster job show JOB`, `muster node show ID` and `muster env show NAME` show one",
	"login":    "the token of a server is given with MUSTER_TOKEN; docs/access.md says where it is",

	"ps":      "`muster job list` shows the jobs, `muster top` what runs and what it uses",
	"rm":      "`muster job stop JOB` ends a job; what has ended is deleted by itself after a time",
	"kill":    "`muster job stop JOB` ends a job",
	"stop":    "`muster job stop JOB` ends a job",
	"logs":    "`muster job logs JOB` prints what a job printed",
	"inspect": "`muster job show JOB` shows a job, with --json all of it",
	"stats":   "`muster top` shows what runs and what it uses",
	"images":  "`muster image list` shows the images that nodes have",
	"rmi":     "`muster image prune` deletes images that no sandbox uses",
	"pull":    "an image that a node does not have is pulled by itself; ahead of time: `muster image pull`",
	"build":   "images are built elsewhere; `docker save NAME | muster image load -` loads one on the server",
	"start":   "`muster run` or `muster job submit` starts a job; one that has ended is submitted again",
	"restart": "`muster job retry JOB` runs again what failed; all of a job is submitted again, with `muster run` or `muster job submit`",
	"create":  "`muster run --detach` or `muster job submit` makes a job",
	"attach":  "`muster job logs -f JOB` follows what a job prints; `muster exec -it JOB -- sh` goes into its sandbox",
	"volume":  "volumes are named in the configuration of a pool, and used with `muster run --volume NAME:PATH`; docs/volumes.md shows how",
	"network": "a sandbox's network is `muster run --network none`, bridge or host",
}

// otherVerbs are the second words of a command that users of other systems type, each with what it
// may be called here, the likeliest first.
var otherVerbs = map[string][]string{
	"ls":       {"list"},
	"ps":       {"list"},
	"get":      {"show", "list"},
	"describe": {"show"},
	"inspect":  {"show"},
	"info":     {"show"},
	"status":   {"show", "list"},
	"cancel":   {"stop", "release"},
	"kill":     {"stop", "release", "destroy"},
	"rm":       {"stop", "release", "delete", "destroy", "prune"},
	"remove":   {"stop", "release", "delete", "destroy", "prune"},
	"delete":   {"stop", "release", "destroy", "prune"},
	"create":   {"submit", "apply"},
	"apply":    {"submit"},
	"run":      {"submit"},
	"set":      {"apply", "limit"},
	"restart":  {"retry"},
	"requeue":  {"retry"},
	"rerun":    {"retry"},
}

// answerOtherVerbs adds to each group of commands those verbs that it does not have. They are in no
// help text.
func answerOtherVerbs(root *cobra.Command) {
	for _, group := range root.Commands() {
		if !group.HasSubCommands() || group.Name() == "completion" {
			continue
		}
		have := map[string]*cobra.Command{}
		for _, c := range group.Commands() {
			have[c.Name()] = c
		}
		for _, verb := range slices.Sorted(maps.Keys(otherVerbs)) {
			instead := slices.IndexFunc(otherVerbs[verb], func(name string) bool { return have[name] != nil })
			if have[verb] != nil || instead < 0 {
				continue
			}
			c := have[otherVerbs[verb][instead]]
			what := fmt.Sprintf("`muster %s %s`", group.Name(), c.Use)
			group.AddCommand(otherWordCommand(verb, group.Name()+" "+verb, what+" is the one to use: "+c.Short))
		}
	}
}

// otherWordCommand answers a word. It takes every flag, since the answer does not depend on it.
func otherWordCommand(word, whole, answer string) *cobra.Command {
	return &cobra.Command{
		Use: word, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usage(fmt.Errorf("there is no command %q: %s", whole, answer))
		},
	}
}

// otherWordCommands answer otherWords. They are in no help text.
func otherWordCommands() (list []*cobra.Command) {
	for _, word := range slices.Sorted(maps.Keys(otherWords)) {
		list = append(list, otherWordCommand(word, word, otherWords[word]))
	}
	return list
}
