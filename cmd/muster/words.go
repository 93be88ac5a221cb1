package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// otherWords are commands that users of Docker type, and what to type instead. Whoever types one
// gets an answer that helps, and not only that there is no such command.
var otherWords = map[string]string{
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
	"build":   "images are built elsewhere; `muster run --image` takes a registry's, oci:DIR or docker-archive:FILE",
	"start":   "`muster run` or `muster job submit` starts a job; one that has ended is submitted again",
	"restart": "a job that has ended is submitted again, with `muster run` or `muster job submit`",
	"create":  "`muster run --detach` or `muster job submit` makes a job",
	"attach":  "`muster job logs -f JOB` follows what a job prints; `muster exec -it JOB -- sh` goes into its sandbox",
	"volume":  "a sandbox sees no directory of its node; bring files with --input SOURCE:PATH or `muster cp`, keep them with --output PATH",
	"network": "a sandbox's network is `muster run --network none`, bridge or host",
}

// otherWordCommands answer those words. They are in no help text. They take every flag, since the
// answer does not depend on it.
func otherWordCommands() (list []*cobra.Command) {
	for _, word := range slices.Sorted(maps.Keys(otherWords)) {
		list = append(list, &cobra.Command{
			Use: word, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
			RunE: func(*cobra.Command, []string) error {
				return cli.Usage(fmt.Errorf("there is no command %q: %s", word, otherWords[word]))
			},
		})
	}
	return list
}
