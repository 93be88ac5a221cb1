package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// stdinName is the input that has what stdin had, in the work directory of each member.
const stdinName = ".muster-stdin"

// giveStdin makes what stdin has an input of a job, and its command one that reads it. A job may start
// when nobody is connected any more, and several members read the same: so stdin is read to its end
// first. remove deletes the file that it is kept in meanwhile.
func giveStdin(spec *api.JobSpec, stdin io.Reader) (remove func(), err error) {
	switch {
	case term.TerminalOf(stdin) != nil:
		return nil, cli.Usage(errors.New("-i reads stdin to its end, and stdin is a terminal; to give the command your terminal, use -it"))
	case len(spec.Command) == 0:
		return nil, cli.Usage(errors.New("-i needs a command; that of the image alone is not known here"))
	case spec.Workdir != "":
		return nil, cli.Usage(errors.New("-i puts what it reads into the job's own work directory; leave --workdir out"))
	case len(spec.Entrypoint) > 0:
		return nil, cli.Usage(errors.New("-i starts the command by sh; leave --entrypoint out"))
	}
	file, err := os.CreateTemp("", "muster-stdin-")
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.Remove(file.Name()) }
	_, err = io.Copy(file, stdin)
	if err = errors.Join(err, file.Close()); err != nil {
		remove()
		return nil, fmt.Errorf("reading stdin: %w", err)
	}
	spec.Inputs = append(spec.Inputs, api.InputSpec{File: file.Name(), Path: stdinName, Mode: "0644"})
	spec.Command = append([]string{"sh", "-c", `exec "$@" < ` + stdinName, "sh"}, spec.Command...)
	if spec.Image != "" {
		// The image's entrypoint would be put before sh.
		spec.Entrypoint = []string{""}
	}
	return remove, nil
}
